"""Engines to audit: correct ones, and ours used in a way that its user's claim doesn't cover.

A fault is planted around the engine, never inside: less noise than is claimed, batches that the accounting knows
nothing of. An arm's claim is what the accountant says of the steps that were meant.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import GivenBatches, PrivacyEngine, Spent, epsilon

Train = Callable[[nn.Module, TensorDataset, int], object]
Batch = tuple[Tensor, Tensor]

BOUND, LEARNING_RATE = 1.0, 0.1
LITTLE = 1e-4  # as good as no noise; an engine refuses none


@dataclass(frozen=True)
class Arm:
    name: str
    claim: Spent
    train: Train

    def claimed(self, delta: float) -> float:
        return _epsilon(self.claim, delta)


@cache
def _epsilon(claim: Spent, delta: float) -> float:
    return epsilon([claim], delta).epsilon


@dataclass(frozen=True)
class Ours:
    """Our engine, called as its users call it."""

    sigma: float
    rate: float
    steps: int
    bound: float = BOUND

    def __call__(self, model: nn.Module, dataset: TensorDataset, seed: int) -> None:
        engine = PrivacyEngine(generator=torch.Generator().manual_seed(seed), kernels=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(dataset, batch_size=round(self.rate * len(dataset))),
            noise_multiplier=self.sigma,
            max_grad_norm=self.bound,
        )
        take_steps(model, optimizer, loader, self.steps)


@dataclass(frozen=True)
class Opacus:
    sigma: float
    rate: float
    steps: int

    def __call__(self, model: nn.Module, dataset: TensorDataset, seed: int) -> None:
        from opacus import PrivacyEngine as OpacusEngine

        random = torch.Generator().manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            private, optimizer, loader = OpacusEngine().make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
                data_loader=DataLoader(dataset, batch_size=round(self.rate * len(dataset)), generator=random),
                noise_multiplier=self.sigma,
                max_grad_norm=BOUND,
                noise_generator=torch.Generator().manual_seed(seed + 1),
            )
            take_steps(private, optimizer, loader, self.steps)


@dataclass(frozen=True)
class WithBatches:
    """Our engine on batches that were drawn outside of it, whatever is claimed about them."""

    sigma: float
    expected_share: float
    draw: Callable[[int, torch.Generator], list[Tensor]]  # indices of each batch

    def __call__(self, model: nn.Module, dataset: TensorDataset, seed: int) -> None:
        drawn = self.draw(len(dataset), torch.Generator().manual_seed(seed))
        engine = PrivacyEngine(generator=torch.Generator().manual_seed(seed + 1), kernels=False)
        batches = [(dataset.tensors[0][each], dataset.tensors[1][each]) for each in drawn]
        given = GivenBatches(batches, expected_batch=self.expected_share * len(dataset))
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        model, optimizer, given = engine.make_private_with_batches(
            module=model, optimizer=optimizer, batches=given, noise_multiplier=self.sigma, max_grad_norm=BOUND
        )
        take_steps(model, optimizer, given, len(batches))


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable[Batch], steps: int) -> None:
    taken = 0
    while taken < steps:
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            taken += 1
            if taken == steps:
                return


def poisson_twice(samples: int, random: torch.Generator) -> list[Tensor]:
    """Two batches at a rate of a half, each used twice."""
    drawn = [torch.nonzero(torch.rand(samples, generator=random) < 0.5).flatten() for _ in range(2)]
    return [each for each in drawn for _ in range(2)]


def shuffled(samples: int, random: torch.Generator) -> list[Tensor]:
    """An epoch of four batches: every sample is in one of them for sure, which Poisson sampling doesn't promise."""
    return list(torch.randperm(samples, generator=random).chunk(4))


def no_noise_on_the_last_layer(model: nn.Module, dataset: TensorDataset, seed: int) -> None:
    quiet = copy.deepcopy(model)
    Ours(1.0, 1.0, 1)(model, dataset, seed)
    Ours(LITTLE, 1.0, 1)(quiet, dataset, seed)
    with torch.no_grad():
        model[-1].weight.copy_(quiet[-1].weight)


WHOLE = Spent(1.0, 1.0, 1)
FAULTS = [
    *(Arm(f"noise at {share:g} of the claim", WHOLE, Ours(share, 1.0, 1)) for share in (0.3, 0.5, 0.8)),
    Arm("a batch used twice", Spent(1.0, 0.5, 2), WithBatches(1.0, 0.5, poisson_twice)),
    Arm("clipping at 2 C", WHOLE, Ours(0.5, 1.0, 1, bound=2 * BOUND)),
    Arm("full batches as subsampled", Spent(1.0, 0.25, 2), Ours(1.0, 1.0, 2)),
    Arm("shuffled batches as Poisson", Spent(0.3, 0.25, 4), WithBatches(0.3, 0.25, shuffled)),
    Arm("no noise on the last layer", WHOLE, no_noise_on_the_last_layer),
]
CORRECT = [
    Arm("ours, full batches", WHOLE, Ours(1.0, 1.0, 1)),
    Arm("ours, Poisson at 1/2", Spent(1.0, 0.5, 2), Ours(1.0, 0.5, 2)),
    Arm("ours, Poisson at 1/4, little noise", Spent(0.3, 0.25, 4), Ours(0.3, 0.25, 4)),
]
OPACUS_CORRECT = [
    Arm("Opacus, full batches", WHOLE, Opacus(1.0, 1.0, 1)),
    Arm("Opacus, Poisson at 1/2", Spent(1.0, 0.5, 2), Opacus(1.0, 0.5, 2)),
]
OPACUS_FAULT = Arm("Opacus, noise at 0.5 of the claim", WHOLE, Opacus(0.5, 1.0, 1))
# Audits from a single run use more noise, since they show small epsilons best.
ONCE = Spent(2.0, 1.0, 1)
ONCE_FAULTS = [Arm(f"one run, noise at {share:g} of the claim", ONCE, Ours(2 * share, 1.0, 1)) for share in (0.3, 0.5)]
ONCE_CORRECT = Arm("one run, ours", ONCE, Ours(2.0, 1.0, 1))
