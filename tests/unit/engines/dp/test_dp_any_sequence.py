"""Differential privacy as a property: in any sequence of calls, one more sample changes what is released by at most C,
the noise has the stated size, and everything is counted.

Two worlds make the same calls from the same seed, one of them without one sample. Their noise is the same, so what they
release differs only by their clipped sums. Parameters don't change (the learning rate is 0), so that every step is
compared with the same network. Illegitimate calls are tried as well: each is refused, or harmless.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, note, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scipy.stats import chi2
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.dp import GivenBatches, PrivacyEngine, PrivacyError, micro_batches, seeds

BOUND, SIGMA, EXPECTED, CLASSES, SIDE = 0.7, 1.3, 5.0, 3, 6
SAMPLES, VICTIM = 12, 0
ROUNDING = 1e-4  # error of adding noise in single precision
ONE_IN = 1e-9  # probability that the test of the noise's size fails for a correct run

Batch = tuple[Tensor, Tensor]


class Reused(nn.Module):
    """A network that uses one layer twice, and has a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(SIDE, SIDE), nn.Parameter(torch.ones(SIDE))

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(values)) * self.scale)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(SIDE, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, CLASSES))


def reused() -> nn.Module:
    return nn.Sequential(Reused(), nn.ReLU(), nn.Linear(SIDE, CLASSES))


def convolutional() -> nn.Module:
    body = [nn.Unflatten(1, (1, SIDE)), nn.Conv1d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU()]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(4 * SIDE, CLASSES))


class WithSpare(nn.Module):
    """A network with a layer that is trained but never used, so it gets only noise."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.spare = body, nn.Linear(10, 10, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.body(values)


def all_samples() -> Batch:
    """Return samples, some with gradients far above the clipping norm, some far below it."""
    chance = torch.Generator().manual_seed(7)
    sizes = torch.logspace(-2, 2, SAMPLES).unsqueeze(1)
    inputs = torch.randn(SAMPLES, SIDE, generator=chance) * sizes.flip(0)
    return inputs, torch.randint(CLASSES, (SAMPLES,), generator=chance)


class World:
    """One private training. What it releases is read from the gradients after a step."""

    def __init__(self, make: Callable[[], nn.Module], seed: int, victim: bool) -> None:
        self._make, self._seed, self._victim = make, seed, victim
        torch.manual_seed(seed)
        self.network: nn.Module = WithSpare(make())
        self.engine = PrivacyEngine(generator=torch.Generator().manual_seed(seed))
        self._rows: list[list[int]] = []
        self.released = 0
        self.begin()

    def begin(self) -> None:
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.0)
        given = GivenBatches(self._batches(), EXPECTED)
        self.engine.make_private_with_batches(
            module=self.network,
            optimizer=self.optimizer,
            batches=given,
            noise_multiplier=SIGMA,
            max_grad_norm=BOUND,
        )
        self._drawing = iter(given)

    def _batches(self) -> Iterator[Batch]:
        inputs, answers = all_samples()
        while True:
            rows = [row for row in self._rows.pop(0) if self._victim or row != VICTIM]
            yield inputs[rows], answers[rows]

    def draw(self, rows: list[int]) -> Batch:
        self._rows.append(rows)
        return next(self._drawing)

    def loss(self, batch: Batch) -> Tensor:
        inputs, answers = batch
        return functional.cross_entropy(self.network(inputs), answers) if len(answers) else self.network(inputs).sum()

    def step(self) -> Tensor:
        self.optimizer.step()
        self.released += 1
        return torch.cat([p.grad.detach().flatten() for p in self.network.parameters() if p.requires_grad]).double()

    def spare(self) -> Tensor:
        return self.network.spare.weight.grad.detach().clone()

    def resume(self) -> None:
        """Restart as after a crash: make everything again from the same seed, and load the ledger's state."""
        state, weights = self.engine.ledger.state_dict(), copy.deepcopy(self.network.state_dict())
        frozen = [not parameter.requires_grad for parameter in self.network.parameters()]
        torch.manual_seed(self._seed)
        self.network = WithSpare(self._make())
        self.network.load_state_dict(weights)
        for parameter, still in zip(self.network.parameters(), frozen, strict=True):
            parameter.requires_grad_(not still)
        self.engine = PrivacyEngine(generator=torch.Generator().manual_seed(self._seed))
        self.engine.ledger.load_state_dict(state)
        self.begin()

    def toggle(self) -> None:
        """Freeze what was trained, or train what was frozen, and begin again with the same ledger."""
        self.engine.release()
        first = next(self.network.body.parameters())
        first.requires_grad_(not first.requires_grad)
        self.begin()


rows = st.lists(st.integers(0, SAMPLES - 1), unique=True, max_size=8).map(sorted)


class AnySequence(RuleBasedStateMachine):
    """The state machine. `held` are the drawn and unused batches: a pair each, of what the two worlds got."""

    @initialize(make=st.sampled_from([dense, reused, convolutional]), seed=st.integers(0, 2**20))
    def start(self, make: Callable[[], nn.Module], seed: int) -> None:
        # After a resume the noise depends on a random name, which must be the same in both worlds.
        self.calls = 0
        self.naming = patch.object(seeds, "_make_name", lambda: str(self.calls))
        self.naming.start()
        self.worlds = [World(make, seed, victim) for victim in (True, False)]
        self.held: list[list[Batch]] = []
        self.old: list[list[Batch]] = []
        self.noise: list[Tensor] = []
        self.losses: list[Tensor] = []

    # Legitimate calls.

    @rule(chosen=rows)
    def draw(self, chosen: list[int]) -> None:
        if len(self.held) < 2:
            self.held.append([world.draw(chosen) for world in self.worlds])

    @precondition(lambda self: self.held)
    @rule()
    def train(self) -> None:
        self.tried(lambda world, batches: world.loss(batches[0]).backward())

    @precondition(lambda self: self.held)
    @rule(size=st.integers(1, 4))
    def train_in_pieces(self, size: int) -> None:
        def pieces(world: World, batches: list[Batch]) -> None:
            for piece in micro_batches(batches[0], size):
                world.loss(piece).backward()

        self.tried(pieces)

    @rule()
    def step(self) -> None:
        self.release()
        self.old, self.held = (self.held[:1] or self.old), self.held[1:]

    @precondition(lambda self: self.held)
    @rule(train=st.booleans())
    def skip(self, train: bool) -> None:
        if train:
            self.train()
        for world in self.worlds:
            world.optimizer.zero_grad()
        self.held = self.held[1:]

    @precondition(lambda self: self.held)
    @rule()
    def forward_for_a_log(self) -> None:
        self.tried(lambda world, batches: world.loss(batches[0]))

    @rule(gradients=st.booleans())
    def evaluate(self, gradients: bool) -> None:
        with torch.set_grad_enabled(gradients):
            for world in self.worlds:
                world.network.eval()
                world.network(torch.ones(4, SIDE))
                world.network.train()

    @rule()
    def resume(self) -> None:
        self.begin_again(World.resume)

    @rule()
    def freeze_or_unfreeze(self) -> None:
        self.begin_again(World.toggle)

    # Illegitimate calls: refused, or harmless.

    @precondition(lambda self: self.old)
    @rule()
    def train_on_an_old_batch(self) -> None:
        held, self.held = self.held, self.old
        self.tried(lambda world, batches: world.loss(batches[0]).backward())
        self.held = held

    @precondition(lambda self: self.held)
    @rule()
    def backward_twice(self) -> None:
        def twice(world: World, batches: list[Batch]) -> None:
            loss = world.loss(batches[0])
            loss.backward(retain_graph=True)
            loss.backward()

        self.tried(twice)

    @precondition(lambda self: self.held)
    @rule()
    def half_a_batch_twice(self) -> None:
        def twice(world: World, batches: list[Batch]) -> None:
            half = tuple(part[: (len(part) + 1) // 2] for part in batches[0])
            for _ in range(2):
                world.loss(half).backward()

        self.tried(twice)

    @precondition(lambda self: self.held)
    @rule()
    def every_sample_twice(self) -> None:
        self.tried(lambda world, batches: world.loss(tuple(torch.cat([part, part]) for part in batches[0])).backward())

    @precondition(lambda self: len(self.held) == 2)
    @rule()
    def two_batches_at_once(self) -> None:
        def both(world: World, batches: list[Batch]) -> None:
            for batch in batches:
                world.loss(batch).backward()

        self.tried(both)

    @rule()
    def penalty_on_weights(self) -> None:
        self.tried(lambda world, batches: sum(p.square().sum() for p in world.network.body.parameters()).backward())

    @rule()
    def gradient_by_hand(self) -> None:
        def put(world: World, batches: list[Batch]) -> None:
            for parameter in world.network.body.parameters():
                parameter.grad = torch.full_like(parameter, 100.0 if world is self.worlds[0] else 0.0)

        self.tried(put)

    @precondition(lambda self: self.held)
    @rule()
    def scaled_after_backward(self) -> None:
        def scale(world: World, batches: list[Batch]) -> None:
            world.loss(batches[0]).backward()
            for parameter in world.network.parameters():
                if parameter.grad is not None:
                    parameter.grad.data.mul_(50.0)

        self.tried(scale)

    @precondition(lambda self: self.held)
    @rule()
    def unfrozen_without_a_word(self) -> None:
        def unfreeze(world: World, batches: list[Batch]) -> None:
            frozen = [p for p in world.network.parameters() if not p.requires_grad]
            for parameter in frozen:
                parameter.requires_grad_(True)
            try:
                world.loss(batches[0]).backward()
                world.step()
            finally:
                for parameter in frozen:
                    parameter.requires_grad_(False)

        if any(not p.requires_grad for p in self.worlds[0].network.parameters()):
            self.tried(unfreeze)
            self.give_up()

    @invariant()
    def count_calls(self) -> None:
        self.calls = getattr(self, "calls", 0) + 1

    # Invariants.

    def tried(self, action: Callable[[World, list[Batch]], object]) -> None:
        refused = [self._refused(action, world, number) for number, world in enumerate(self.worlds)]
        if any(refused):
            note(f"refused: {refused}")
            self.give_up()

    def _refused(self, action: Callable[[World, list[Batch]], object], world: World, number: int) -> str | None:
        try:
            action(world, [pair[number] for pair in self.held])
        except PrivacyError as error:
            return str(error)
        except RuntimeError as error:
            if "a second time" not in str(error):  # an error by torch
                raise
            return str(error)
        return None

    def give_up(self) -> None:
        """Give up this batch, as a user does after a refusal."""
        for world in self.worlds:
            world.optimizer.zero_grad()
        self.held = []

    def release(self) -> None:
        found: list[Tensor] = []
        refused = [
            self._refused(lambda world, _: found.append(world.step()), world, n) for n, world in enumerate(self.worlds)
        ]
        note(f"released {len(found)}, refused {refused}")
        if found:
            self.noise.append(self.worlds[0].spare() if refused[0] is None else self.worlds[1].spare())
        if len(found) == 2:
            moved = float((found[0] - found[1]).norm()) * EXPECTED
            assert moved <= BOUND * (1 + ROUNDING), f"one sample moved the sum by {moved / BOUND:.3f} C"
        elif found:  # their noise is no longer the same
            self.give_up()
            self.apart()

    def begin_again(self, how: Callable[[World], None]) -> None:
        """Begin again, unless only one world has counted anything (a skipped batch of the victim alone): then their
        noise would differ."""
        self.held = []
        if len({world.engine.ledger.used for world in self.worlds}) == 2:
            self.apart()
            return
        for world in self.worlds:
            how(world)

    def apart(self) -> None:
        seed = int(torch.randint(2**20, ())) + len(self.noise)
        make = self.worlds[0]._make
        self.check_count()
        self.worlds = [World(make, seed, victim) for victim in (True, False)]

    def check_count(self) -> None:
        for world in self.worlds:
            counted = world.engine.ledger.spent
            assert sum(run.steps for run in counted) >= world.released
            assert all((run.noise_multiplier, run.sample_rate) == (SIGMA, 1.0) for run in counted)

    def teardown(self) -> None:
        if not hasattr(self, "worlds"):
            return
        self.naming.stop()
        self.check_count()
        if not self.noise:
            return
        values = torch.stack(self.noise).double() * EXPECTED / (SIGMA * BOUND)
        size, count = float(values.square().sum()), values.numel()
        low, high = (float(chi2.ppf(share, count)) for share in (ONE_IN / 2, 1 - ONE_IN / 2))
        assert low <= size <= high, f"noise of {math.sqrt(size / count):.3f} times the stated size"
        for number, one in enumerate(values):
            assert all(float((one - other).abs().max()) > 1e-6 for other in values[:number]), "noise was repeated"


TestAnySequence = AnySequence.TestCase
TestAnySequence.pytestmark = [pytest.mark.filterwarnings("ignore:.*Reused.* has parameters of its own and no rule")]
TestAnySequence.settings = settings(
    max_examples=8, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
