"""Differential privacy as a property: two trainings whose batches differ in one sample make the same calls, in any
order, right and wrong ones. What they release never differs by more than the clipping norm, and the ledger counts at
least as many steps as were released."""

from __future__ import annotations

from collections.abc import Callable

import torch
from dp_guarded import BOUND, Guarded, batch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch.utils.checkpoint import checkpoint

from rigdyno.engines.dp import PrivacyEngine, Unprotected, micro_batches

SIZES = [5, 1, 6, 4, 7, 5, 5, 3, 6, 0, 2, 8] * 3
AGO = st.sampled_from([0, 0, 0, 1, 2])  # how many draws ago; mostly the newest


class Neighbours(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        """Start both trainings. The neighbour lacks the last sample of every batch that has one."""
        drawn = [batch(size, seed + number) for number, size in enumerate(SIZES)]
        without = [(inputs[:-1], answers[:-1]) for inputs, answers in drawn]
        self.sides = [Guarded(drawn), Guarded(without)]
        self.drawn: list[list[tuple]] = [[], []]
        self.released = 0
        self.draw()

    def both(self, act: Callable[[Guarded, tuple], object], ago: int, go: bool = False) -> None:
        if len(self.drawn[0]) > ago:
            for side, drawn in zip(self.sides, self.drawn, strict=True):
                allowed(lambda side=side, drawn=drawn: act(side, drawn[-1 - ago]))
        if go:
            self.step(1)

    def draw(self) -> None:
        if len(self.drawn[0]) < len(SIZES):
            for side, drawn in zip(self.sides, self.drawn, strict=True):
                drawn.append(side.draw())

    @rule(go=st.booleans(), ago=AGO, twice=st.booleans())
    def backward(self, go: bool, ago: int, twice: bool) -> None:
        def act(side: Guarded, drawn: tuple) -> None:
            loss = side.loss(drawn)
            loss.backward(retain_graph=twice)
            if twice:
                loss.backward()

        self.both(act, ago, go)

    @rule(go=st.booleans(), ago=AGO, first=st.integers(0, 4), count=st.integers(1, 8), step=st.integers(1, 2))
    def backward_of_rows(self, go: bool, ago: int, first: int, count: int, step: int) -> None:
        rows = slice(first, first + count, step)
        self.both(lambda side, drawn: side.loss((drawn[0][rows], drawn[1][rows])).backward(), ago, go)

    @rule(go=st.booleans(), ago=AGO, size=st.integers(1, 4), copied=st.booleans(), repeat=st.integers(1, 2))
    def backward_of_pieces(self, go: bool, ago: int, size: int, copied: bool, repeat: int) -> None:
        def act(side: Guarded, drawn: tuple) -> None:
            for inputs, answers in micro_batches(drawn, size) * repeat:
                side.loss((inputs * 1.0 if copied else inputs, answers)).backward()

        self.both(act, ago, go)

    @rule(go=st.booleans(), ago=AGO, reentrant=st.booleans())
    def backward_of_a_checkpoint(self, go: bool, ago: int, reentrant: bool) -> None:
        def act(side: Guarded, drawn: tuple) -> None:
            found = checkpoint(side.net, drawn[0].detach().requires_grad_(), use_reentrant=reentrant)
            torch.nn.functional.cross_entropy(found, drawn[1]).backward()

        self.both(act, ago, go)

    @rule(go=st.booleans(), ago=AGO)
    def backward_of_parts(self, go: bool, ago: int) -> None:
        def act(side: Guarded, drawn: tuple) -> None:
            found = side.net[2](torch.relu(side.net[0](drawn[0])))
            torch.nn.functional.cross_entropy(found, drawn[1]).backward()

        self.both(act, ago, go)

    @rule(ago=AGO)
    def a_log(self, ago: int) -> None:
        self.both(lambda side, drawn: side.net(drawn[0]), ago)

    @rule(ago=AGO)
    def a_saliency_map(self, ago: int) -> None:
        def act(side: Guarded, drawn: tuple) -> None:
            looked_at = drawn[0].clone().requires_grad_()
            torch.autograd.grad(side.net(looked_at).sum(), looked_at)

        self.both(act, ago)

    @rule(what=st.sampled_from(["penalty", "zero_grad", "resume", "draw"]))
    def something_else(self, what: str) -> None:
        if what == "draw":
            self.draw()
        for side in self.sides:
            if what == "penalty":
                allowed(lambda side=side: side.net[0].weight.square().sum().backward())
            elif what == "zero_grad":
                side.optimizer.zero_grad()
            elif what == "resume":
                other = PrivacyEngine()
                other.ledger.load_state_dict(side.engine.ledger.state_dict())
                side.engine.ledger.load_state_dict(other.ledger.state_dict())

    @rule(draws=st.sampled_from([1, 1, 1, 0, 2]))
    def step(self, draws: int) -> None:
        done = [allowed(side.optimizer.step) for side in self.sides]
        if all(done):
            self.released += 1
            one, other = (side.released() for side in self.sides)
            assert float((one - other).norm()) <= BOUND
            assert all(side.steps() >= self.released for side in self.sides)
        for side, released in zip(self.sides, done, strict=True):
            if not released:
                side.optimizer.zero_grad()
            torch.nn.utils.vector_to_parameters(side.start.float(), side.net.parameters())
        for _ in range(draws):
            self.draw()


def allowed(act: Callable[[], object]) -> bool:
    try:
        act()
    except Unprotected:
        return False
    return True


TestNeighbours = Neighbours.TestCase
TestNeighbours.settings = settings(max_examples=15, stateful_step_count=20, deadline=None, derandomize=True)
