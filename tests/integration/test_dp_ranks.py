"""Test private training on two ranks over real sockets: each clips its samples, and the noise is added once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from driving import PATIENCE_SECONDS

PROGRAM = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from rigdyno.engines.dp import PrivacyEngine

rank, world, folder, multipliers = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
torch.set_num_threads(1)
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
chance = torch.Generator().manual_seed(0)
inputs = torch.randn(200, 50, generator=chance)
data = TensorDataset(inputs, torch.arange(200) % 40)

def take_a_step(sigma):
    torch.manual_seed(rank)  # ranks start with different weights, and the engine synchronises them
    net = nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 40))
    if world == 1:
        net.load_state_dict(torch.load(f"{folder}/start.pt", weights_only=True))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(7))
    loader = DataLoader(data, batch_size=80)
    net, optimizer, loader = engine.make_private(
        module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=sigma, max_grad_norm=1.0)
    start = torch.cat([p.detach().flatten() for p in net.parameters()])
    if world > 1 and rank == 0:
        torch.save({name: value.clone() for name, value in net.state_dict().items()}, f"{folder}/start.pt")
    images, labels = next(iter(loader))
    functional.cross_entropy(net(images), labels).backward()
    optimizer.step()
    moved = start - torch.cat([p.detach().flatten() for p in net.parameters()])
    return {"drawn": len(images), "moved": moved.tolist(), "steps": engine.ledger.spent[0].steps}

found = {sigma: take_a_step(float(sigma)) for sigma in multipliers}
with open(f"{folder}/{world}.{rank}.json", "w") as file:
    json.dump(found, file)
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
"""
QUIET, LOUD = "1e-9", "50.0"  # noise multipliers


def run(world: int, folder: Path, *multipliers: str) -> list[dict]:
    """Return the results of each rank, by noise multiplier."""
    command = [sys.executable, "-c", PROGRAM]
    ranks = [subprocess.Popen([*command, str(rank), str(world), str(folder), *multipliers]) for rank in range(world)]
    try:
        assert [rank.wait(timeout=PATIENCE_SECONDS) for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads((folder / f"{world}.{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def together(folder) -> list[dict]:
    return run(2, folder, LOUD, QUIET)


def test_two_ranks_take_the_same_step_as_one(together, folder):
    """Together the ranks draw the batch that one rank draws from the same seed, so the sums agree."""
    first, second = (answers[QUIET] for answers in together)
    (alone,) = run(1, folder, QUIET)
    assert first["moved"] == second["moved"]
    assert first["drawn"] + second["drawn"] == alone[QUIET]["drawn"]
    assert first["moved"] == pytest.approx(alone[QUIET]["moved"], abs=2e-6)


def test_the_noise_is_added_once(together):
    expected_batch = 80
    first, second = (answers[LOUD] for answers in together)
    assert first["moved"] == second["moved"]
    assert first["steps"] == second["steps"] == 1
    squares = [value * value for value in first["moved"]]
    width = (sum(squares) / len(squares)) ** 0.5 * expected_batch / float(LOUD)
    assert width == pytest.approx(1.0, abs=0.04)  # twice would be 1.41
