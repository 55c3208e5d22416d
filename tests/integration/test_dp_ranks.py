"""Private training on two ranks over real sockets: each clips its own samples, the noise comes once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from rigdyno.engines.dp import PrivacyEngine

rank, world, sigma, store = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
chance = torch.Generator().manual_seed(0)
inputs = torch.randn(200, 50, generator=chance)
data = TensorDataset(inputs, torch.arange(200) % 40)
torch.manual_seed(rank)  # ranks start apart, and the engine brings them together
net = nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 40))
if world == 1:
    net.load_state_dict(torch.load(store, weights_only=True))
optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
engine = PrivacyEngine(generator=torch.Generator().manual_seed(7))
loader = DataLoader(data, batch_size=80)
net, optimizer, loader = engine.make_private(
    module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=sigma, max_grad_norm=1.0)
start = torch.cat([p.detach().flatten() for p in net.parameters()])
if world > 1 and rank == 0:
    torch.save({name: value.clone() for name, value in net.state_dict().items()}, store + ".start")
images, labels = next(iter(loader))
functional.cross_entropy(net(images), labels).backward()
optimizer.step()
moved = start - torch.cat([p.detach().flatten() for p in net.parameters()])
found = {"drawn": len(images), "moved": moved.tolist(), "steps": engine.ledger.spent[0].steps}
with open(f"{store}.{rank}.json", "w") as file:
    json.dump(found, file)
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
"""


def run(world: int, sigma: float, store: Path) -> list[dict]:
    figures = [str(world), str(sigma), str(store)]
    ranks = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), *figures]) for rank in range(world)]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads(Path(f"{store}.{rank}.json").read_text()) for rank in range(world)]


def test_two_ranks_take_the_step_that_one_would(tmp_path):
    """The ranks' shares together are the batch that one rank draws from the same seed, so the sums agree."""
    first, second = run(2, 1e-9, tmp_path / "store")
    (alone,) = run(1, 1e-9, tmp_path / "store.start")
    assert first["moved"] == second["moved"]
    assert first["drawn"] + second["drawn"] == alone["drawn"]
    assert first["moved"] == pytest.approx(alone["moved"], abs=2e-6)


def test_the_noise_comes_once(tmp_path):
    sigma, expected_batch = 50.0, 80
    first, second = run(2, sigma, tmp_path / "store")
    assert first["moved"] == second["moved"]
    assert first["steps"] == second["steps"] == 1
    squares = [value * value for value in first["moved"]]
    width = (sum(squares) / len(squares)) ** 0.5 * expected_batch / sigma
    assert width == pytest.approx(1.0, abs=0.04)  # twice would be 1.41
