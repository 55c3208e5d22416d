"""Shuffled batches: each sample comes once per epoch, and an epoch costs as much as one step on all samples."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from dp_oracle import gaussian_epsilon
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from rigdyno.engines.dp import BadSetting, PrivacyEngine
from rigdyno.engines.dp.batches.shuffled import shuffled_loader

SAMPLES, BATCH = 50, 8


def data() -> TensorDataset:
    return TensorDataset(torch.arange(SAMPLES).float().unsqueeze(1), torch.zeros(SAMPLES, dtype=torch.long))


def private(**options):
    torch.manual_seed(0)
    net = nn.Linear(1, 2)
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(data(), batch_size=BATCH, drop_last=options.pop("drop_last", False))
    made = engine.make_private(
        module=net,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.5,
        max_grad_norm=1.0,
        poisson_sampling=False,
        **options,
    )
    return engine, *made


def train(net, optimizer, batches) -> None:
    for inputs, answers in batches:
        optimizer.zero_grad()
        functional.cross_entropy(net(inputs), answers).backward()
        optimizer.step()


def test_every_sample_comes_once_per_epoch_in_a_new_order():
    _, _, _, loader = private()
    first, second = (torch.cat([inputs for inputs, _ in loader]).flatten().tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second
    assert len(loader) == 7


def test_an_epoch_costs_one_gaussian_step():
    engine, net, optimizer, loader = private()
    for _ in range(3):
        train(net, optimizer, loader)
    assert [(run.noise_multiplier, run.sample_rate, run.steps) for run in engine.ledger.spent] == [(1.5, 1.0, 3)]
    found = engine.epsilon(1e-3)
    assert found.epsilon == pytest.approx(gaussian_epsilon(1.5, 3, 1e-3), rel=1e-3)
    assert "place empty" in str(found)


def test_an_epoch_left_early_counts_in_full():
    engine, net, optimizer, loader = private()
    for _ in range(4):
        train(net, optimizer, islice(loader, 2))
    assert sum(run.steps for run in engine.ledger.spent) == 4


def test_noise_that_falls_within_an_epoch_is_counted():
    """A sample in a later batch is protected only by that batch's noise."""
    engine, net, optimizer, loader = private()
    for number, batch in enumerate(loader):
        engine.noise_multiplier = 1.5 if number < 3 else 0.5
        train(net, optimizer, [batch])
    assert [(run.noise_multiplier, run.steps) for run in engine.ledger.spent] == [(1.5, 1), (0.5, 1)]


def test_skipping_the_first_batch_does_not_skip_the_cost_of_the_epoch():
    engine, net, optimizer, loader = private()
    train(net, optimizer, islice(loader, 1, None))
    assert sum(run.steps for run in engine.ledger.spent) == 1


def test_the_noise_for_a_target_accounts_for_shuffled_batches():
    torch.manual_seed(0)
    net = nn.Linear(1, 2)
    engine = PrivacyEngine()
    _, optimizer, loader = engine.make_private_with_epsilon(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(data(), batch_size=BATCH),
        target_epsilon=4.0,
        target_delta=1e-3,
        epochs=2,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    for _ in range(2):
        train(net, optimizer, loader)
    assert 3.9 < engine.get_epsilon(1e-3) <= 4.0


def test_drop_last_drops_the_last_batch():
    _, _, _, loader = private(drop_last=True)
    assert [len(inputs) for inputs, _ in loader] == [BATCH] * 6


def test_unsuitable_settings_are_refused():
    with pytest.raises(BadSetting, match="no batch is full"):
        shuffled_loader(DataLoader(data(), batch_size=BATCH * 10, drop_last=True), None, ranks=1)
    weighted = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)
    with pytest.raises(BadSetting, match="WeightedRandomSampler"):
        shuffled_loader(DataLoader(data(), batch_size=BATCH, sampler=weighted), None, ranks=1)
    with pytest.raises(BadSetting, match="several ranks"):
        shuffled_loader(DataLoader(data(), batch_size=BATCH), None, ranks=2)
