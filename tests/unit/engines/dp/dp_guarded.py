"""A small private training whose steps change the weights by the clipped sum itself: almost no noise, a learning rate
and an expected batch of one. What a step released is read from the weights, independently of what the engine reports.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from dp_naive import naive_gradients, naive_sum
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.dp import GivenBatches, PrivacyEngine

FEATURES, CLASSES, BOUND, SIGMA = 6, 3, 0.3, 1e-9
Batch = tuple[Tensor, Tensor]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def batch(samples: int = 8, seed: int = 0) -> Batch:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(samples, FEATURES, generator=chance) * 3, torch.randint(CLASSES, (samples,), generator=chance)


def weights(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().double() for parameter in net.parameters()])


class Guarded:
    """One private training. `draw()` returns the next batch; `released()` is the change of the weights by the last
    step."""

    def __init__(
        self,
        batches: Iterable[Batch] | None = None,
        net: nn.Module | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        engine: PrivacyEngine | None = None,
        sigma: float = SIGMA,
        **options: int,
    ) -> None:
        given = [batch(seed=seed) for seed in range(5)] if batches is None else batches
        self.net = network() if net is None else net
        self.before = copy.deepcopy(self.net)
        self.start = weights(self.net)
        self.optimizer = optimizer([p for p in self.net.parameters() if p.requires_grad], lr=1.0)
        self.engine = engine or PrivacyEngine(kernels=False)
        self.loader = GivenBatches(given, expected_batch=1.0, **options)
        self.engine.make_private_with_batches(
            module=self.net, optimizer=self.optimizer, batches=self.loader, noise_multiplier=sigma, max_grad_norm=BOUND
        )
        self._draws = iter(self.loader)

    def draw(self) -> Batch:
        return next(self._draws)

    def loss(self, drawn: Batch) -> Tensor:
        return functional.cross_entropy(self.net(drawn[0]), drawn[1])

    def step(self, drawn: Batch) -> None:
        self.optimizer.zero_grad()
        self.loss(drawn).backward()
        self.optimizer.step()

    def released(self) -> Tensor:
        return self.start - weights(self.net)

    def expected(self, *drawn: Batch) -> Tensor:
        """Return the clipped sum by the definition, at the initial weights."""
        inputs, answers = torch.cat([one[0] for one in drawn]), torch.cat([one[1] for one in drawn])
        return naive_sum(naive_gradients(self.before, (inputs,), answers), BOUND)

    def steps(self) -> int:
        return sum(run.steps for run in self.engine.ledger.spent)


def same(found: Tensor, expected: Tensor) -> bool:
    return bool(torch.allclose(found, expected.double(), rtol=1e-3, atol=1e-6))
