"""The auditor on our own engine: not refuted as it is, refuted with each of its safeguards taken out."""

from __future__ import annotations

import torch
from dp_oracle import pld_epsilon
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import AuditTask, PrivacyEngine, audit
from rigdyno.engines.dp.clipping import Bound
from rigdyno.engines.dp.noise import TorchNoise

SAMPLES, BATCH, STEPS, SIGMA, DELTA = 100, 50, 3, 3.0, 1e-3
CLAIMED = pld_epsilon([(SIGMA, BATCH / SAMPLES, STEPS)], DELTA)


def train(model: nn.Module, dataset: TensorDataset, seed: int) -> None:
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(seed), kernels=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        # One sample more or less must not change what is divided by.
        data_loader=DataLoader(dataset, batch_size=BATCH),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
    )
    batches = iter(loader)
    for step in range(STEPS):
        if step and step % len(loader) == 0:
            batches = iter(loader)
        inputs, answers = next(batches)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), answers).backward()
        optimizer.step()


def test_the_engine_is_not_refuted():
    found = audit(train, claimed=CLAIMED, delta=DELTA, task=AuditTask(samples=SAMPLES), runs=600)
    assert found.holds, str(found)


def test_without_noise_it_is(monkeypatch):
    monkeypatch.setattr(TorchNoise, "release_", lambda self, buffer, std, factor: buffer.mul_(factor))
    found = audit(train, claimed=CLAIMED, delta=DELTA, task=AuditTask(samples=SAMPLES), runs=600)
    assert not found.holds, str(found)


def test_without_clipping_it_is(monkeypatch):
    monkeypatch.setattr(Bound, "weights", lambda self, squared, together: torch.full_like(squared, len(squared)))
    found = audit(train, claimed=CLAIMED, delta=DELTA, task=AuditTask(samples=SAMPLES), runs=600)
    assert not found.holds, str(found)
