"""Audit our engine and Opacus, as users use them: they are not refuted as they are, and refuted with faults."""

from __future__ import annotations

import functools
import itertools
import warnings

import pytest
import torch
from dp_oracle import gaussian_epsilon, pld_epsilon
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from rigdyno.engines.dp import AuditTask, PrivacyEngine, audit

TASK = AuditTask(canaries=32)
DELTA, BOUND = 1e-5, 1.0


@functools.cache
def whole(delta):
    return gaussian_epsilon(1.0, 1, delta)


@functools.cache
def halves(delta):
    return pld_epsilon([(1.0, 0.5, 2)], delta)


def train(model, dataset, seed, *, sigma=1.0, bound=BOUND, batch=TASK.samples, steps=1):
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(seed), kernels=False)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(dataset, batch_size=batch),
        noise_multiplier=sigma,
        max_grad_norm=bound,
    )
    take_steps(model, optimizer, loader, steps)


def train_with_opacus(model, dataset, seed, *, sigma=1.0):
    opacus = pytest.importorskip("opacus")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(dataset, batch_size=TASK.samples),
            noise_multiplier=sigma,
            max_grad_norm=BOUND,
            noise_generator=torch.Generator().manual_seed(seed),
        )
        take_steps(model, optimizer, loader, 1)


def take_steps(model, optimizer, loader, steps):
    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    for inputs, labels in itertools.islice(epochs, steps):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def refuted_early(engine, claimed, runs=400):
    found = audit(engine, claimed=claimed, delta=DELTA, task=TASK, runs=runs, progress=lambda *seen: seen[2] <= 0.05)
    print(found)
    return not found.holds


@pytest.mark.parametrize(
    ("engine", "claimed"),
    [(train, whole), (functools.partial(train, batch=16, steps=2), halves), (train_with_opacus, whole)],
    ids=["whole", "subsampled", "Opacus"],
)
def test_correct_engines_are_not_refuted(engine, claimed):
    """Each is refuted with a probability of at most 5 %; the seeds are fixed."""
    found = audit(engine, claimed=claimed, delta=DELTA, task=TASK, runs=100)
    assert found.holds, str(found)


@pytest.mark.parametrize("engine", [train, train_with_opacus], ids=["ours", "Opacus"])
def test_half_of_the_claimed_noise_is_refuted(engine):
    assert refuted_early(functools.partial(engine, sigma=0.5), whole)


def test_three_tenths_of_the_claimed_noise_are_refuted_in_one_run():
    claimed = gaussian_epsilon(2.0, 1, 1e-6)
    task = AuditTask(canaries=1000, layers=1)
    found = audit(
        functools.partial(train, sigma=0.6, batch=1000), claimed=claimed, delta=1e-6, task=task, runs=1, seed=1
    )
    assert not found.holds, str(found)


def test_twice_the_clipping_norm_is_refuted():
    assert refuted_early(functools.partial(train, sigma=0.5, bound=2 * BOUND), whole)


def test_twice_the_steps_are_refuted():
    assert refuted_early(functools.partial(train, steps=2), whole)


def test_full_batches_claimed_as_subsampled_are_refuted():
    assert refuted_early(functools.partial(train, steps=2), halves)
