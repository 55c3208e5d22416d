"""Differential privacy as a property: two trainings whose batches differ in one sample make the same calls, in any
order, right ones and wrong ones. Whatever both of them release is never further apart than the bound, and the ledger
counts at least as many steps as were released."""

from __future__ import annotations

from collections.abc import Callable

import torch
from dp_guarded import BOUND, Guarded, batch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch.utils.checkpoint import checkpoint

from rigdyno.engines.dp import PrivacyEngine, Unprotected, micro_batches

SIZES = [5, 1, 6, 0, 4, 7, 5, 5, 3, 6, 2, 8]
NEWEST = st.integers(0, 2)  # how many draws ago


class Neighbours(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        """The neighbour lacks the last sample of every batch that has one."""
        drawn = [batch(size, seed + number) for number, size in enumerate(SIZES)]
        without = [(inputs[:-1], answers[:-1]) for inputs, answers in drawn]
        self.sides = [Guarded(drawn), Guarded(without)]
        self.drawn: list[list[tuple]] = [[], []]
        self.released = 0

    def both(self, act: Callable[[Guarded, tuple], object], ago: int) -> None:
        if len(self.drawn[0]) > ago:
            for side, drawn in zip(self.sides, self.drawn, strict=True):
                allowed(lambda side=side, drawn=drawn: act(side, drawn[-1 - ago]))

    @rule()
    def draw(self) -> None:
        if len(self.drawn[0]) < len(SIZES):
            for side, drawn in zip(self.sides, self.drawn, strict=True):
                drawn.append(side.draw())

    @rule(ago=NEWEST, twice=st.booleans())
    def backward(self, ago: int, twice: bool) -> None:
        def act(side: Guarded, drawn: tuple) -> None:
            loss = side.loss(drawn)
            loss.backward(retain_graph=twice)
            if twice:
                loss.backward()

        self.both(act, ago)

    @rule(ago=NEWEST, first=st.integers(0, 4), count=st.integers(1, 8), step=st.integers(1, 2))
    def backward_of_rows(self, ago: int, first: int, count: int, step: int) -> None:
        rows = slice(first, first + count, step)
        self.both(lambda side, drawn: side.loss((drawn[0][rows], drawn[1][rows])).backward(), ago)

    @rule(ago=NEWEST, size=st.integers(1, 4), copied=st.booleans(), repeat=st.integers(1, 2))
    def backward_of_pieces(self, ago: int, size: int, copied: bool, repeat: int) -> None:
        def act(side: Guarded, drawn: tuple) -> None:
            for inputs, answers in micro_batches(drawn, size) * repeat:
                side.loss((inputs * 1.0 if copied else inputs, answers)).backward()

        self.both(act, ago)

    @rule(ago=NEWEST, reentrant=st.booleans())
    def backward_of_a_checkpoint(self, ago: int, reentrant: bool) -> None:
        def act(side: Guarded, drawn: tuple) -> None:
            found = checkpoint(side.net, drawn[0].detach().requires_grad_(), use_reentrant=reentrant)
            torch.nn.functional.cross_entropy(found, drawn[1]).backward()

        self.both(act, ago)

    @rule(ago=NEWEST)
    def backward_of_parts(self, ago: int) -> None:
        def act(side: Guarded, drawn: tuple) -> None:
            found = side.net[2](torch.relu(side.net[0](drawn[0])))
            torch.nn.functional.cross_entropy(found, drawn[1]).backward()

        self.both(act, ago)

    @rule(ago=NEWEST)
    def a_log(self, ago: int) -> None:
        self.both(lambda side, drawn: side.net(drawn[0]), ago)

    @rule(ago=NEWEST)
    def a_saliency_map(self, ago: int) -> None:
        def act(side: Guarded, drawn: tuple) -> None:
            looked_at = drawn[0].clone().requires_grad_()
            torch.autograd.grad(side.net(looked_at).sum(), looked_at)

        self.both(act, ago)

    @rule()
    def a_penalty(self) -> None:
        for side in self.sides:
            allowed(lambda side=side: side.net[0].weight.square().sum().backward())

    @rule()
    def skip(self) -> None:
        for side in self.sides:
            side.optimizer.zero_grad()

    @rule()
    def resume(self) -> None:
        for side in self.sides:
            other = PrivacyEngine()
            other.ledger.load_state_dict(side.engine.ledger.state_dict())
            side.engine.ledger.load_state_dict(other.ledger.state_dict())

    @rule()
    def step(self) -> None:
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


def allowed(act: Callable[[], object]) -> bool:
    try:
        act()
    except Unprotected:
        return False
    return True


TestNeighbours = Neighbours.TestCase
TestNeighbours.settings = settings(max_examples=40, stateful_step_count=20, deadline=None, derandomize=True)
