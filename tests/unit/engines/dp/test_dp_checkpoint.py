"""Save network, optimizer and ledger in one file: a loaded run continues where it was, and never counts less."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import BadSetting, PrivacyEngine


def private(seed: int = 1, **options):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(seed), **options)
    chance = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(40, 4, generator=chance), torch.arange(40) % 2), batch_size=8)
    made = engine.make_private(
        module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    return engine, *made


def train(net, optimizer, loader) -> None:
    for inputs, answers in loader:
        optimizer.zero_grad()
        functional.cross_entropy(net(inputs), answers, reduction="mean").backward() if len(answers) else None
        optimizer.step()


def steps(engine: PrivacyEngine) -> int:
    return sum(run.steps for run in engine.ledger.spent)


def test_a_checkpoint_restores_network_optimizer_and_ledger(tmp_path):
    engine, net, optimizer, loader = private()
    train(net, optimizer, loader)
    engine.save_checkpoint(tmp_path / "here", module=net, optimizer=optimizer, extra={"epoch": 3})
    other, other_net, other_optimizer, _ = private(seed=2)
    assert other.load_checkpoint(tmp_path / "here", module=other_net, optimizer=other_optimizer) == {"epoch": 3}
    for one, another in zip(net.parameters(), other_net.parameters(), strict=True):
        assert torch.equal(one, another)
        mean = optimizer.state[one]["exp_avg"]
        assert torch.equal(mean, other_optimizer.state[another]["exp_avg"])
    assert steps(other) == steps(engine) == 5


def test_what_was_spent_after_the_checkpoint_stays_counted(tmp_path):
    engine, net, optimizer, loader = private(ledger=tmp_path / "ledger")
    engine.save_checkpoint(tmp_path / "here", module=net, optimizer=optimizer)
    train(net, optimizer, loader)
    engine.load_checkpoint(tmp_path / "here", module=net, optimizer=optimizer)
    assert steps(engine) == 5


def test_a_resumed_run_repeats_neither_noise_nor_batches(tmp_path):
    """The seed is the same, but the ledger shows that it was used."""
    engine, net, optimizer, loader = private()
    drawn = [len(inputs) for inputs, _ in loader]
    optimizer.step()
    before = net[0].weight.grad.clone()
    engine.save_checkpoint(tmp_path / "here", module=net, optimizer=optimizer)
    again, net, optimizer, loader = private()
    again.load_checkpoint(tmp_path / "here", module=net, optimizer=optimizer)
    batches = [len(inputs) for inputs, _ in loader]
    for parameter in net.parameters():
        parameter.data.zero_()
    optimizer.step()
    assert not torch.allclose(net[0].weight.grad, before)
    assert batches != drawn


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x80\x02cos\nsystem\n."])
def test_other_files_are_refused(tmp_path, content):
    engine, net, optimizer, _ = private()
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BadSetting, match="no checkpoint of private training"):
        engine.load_checkpoint(tmp_path / "file", module=net, optimizer=optimizer)


def test_a_truncated_file_is_refused_and_nothing_changes(tmp_path):
    engine, net, optimizer, loader = private()
    train(net, optimizer, loader)
    engine.save_checkpoint(tmp_path / "here", module=net, optimizer=optimizer)
    whole = (tmp_path / "here").read_bytes()
    (tmp_path / "here").write_bytes(whole[: len(whole) // 2])
    before = [parameter.clone() for parameter in net.parameters()]
    with pytest.raises(BadSetting, match="damaged"):
        engine.load_checkpoint(tmp_path / "here", module=net, optimizer=optimizer)
    assert all(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))


def test_a_plain_state_dict_is_refused(tmp_path):
    engine, net, _, _ = private()
    torch.save(net.state_dict(), tmp_path / "weights")
    with pytest.raises(BadSetting, match="save_checkpoint writes one"):
        engine.load_checkpoint(tmp_path / "weights", module=net)
    with pytest.raises(BadSetting, match="can't read"):
        engine.load_checkpoint(tmp_path / "missing", module=net)


def test_a_checkpoint_without_an_optimizer_loads_without_one(tmp_path):
    engine, net, optimizer, _ = private()
    engine.save_checkpoint(tmp_path / "here", module=net)
    assert engine.load_checkpoint(tmp_path / "here", module=net) == {}
    with pytest.raises(BadSetting, match="without an optimizer"):
        engine.load_checkpoint(tmp_path / "here", module=net, optimizer=optimizer)


def test_an_older_checkpoint_survives_a_failure(tmp_path, monkeypatch):
    engine, net, optimizer, _ = private()
    engine.save_checkpoint(tmp_path / "here", module=net, optimizer=optimizer)
    before = (tmp_path / "here").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        engine.save_checkpoint(tmp_path / "here", module=net, optimizer=optimizer)
    assert (tmp_path / "here").read_bytes() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "here"]
