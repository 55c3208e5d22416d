"""Compare per-sample gradients with those of Opacus, on the layers that it supports."""

from __future__ import annotations

import copy

import pytest
import torch
from dp_naive import assert_close, engine_sum
from torch import Tensor, nn
from torch.nn import functional

opacus = pytest.importorskip("opacus")


def opacus_sum(network: nn.Module, inputs: Tensor, answers: Tensor, bound: float) -> Tensor:
    network = opacus.GradSampleModule(copy.deepcopy(network), loss_reduction="mean")
    functional.cross_entropy(network(inputs), answers).backward()
    samples = [parameter.grad_sample.flatten(1).double() for parameter in network.parameters()]
    flat = torch.cat(samples, dim=1)
    return (flat * (bound / flat.norm(dim=1)).clamp(max=1.0)[:, None]).sum(dim=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 4)), (6,)),
        (
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)),
            (3, 8, 8),
        ),
        (nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(288, 4)), (4, 8, 8)),
        (nn.Sequential(nn.Conv1d(3, 8, 3, dilation=2), nn.Flatten(), nn.Linear(64, 4)), (3, 12)),
        (nn.Sequential(nn.Conv3d(2, 4, 3), nn.Flatten(), nn.Linear(108, 4)), (2, 5, 5, 5)),
    ],
)
def test_clipped_sums_equal_those_of_opacus(network, shape):
    chance = torch.Generator().manual_seed(0)
    inputs, answers = torch.randn(7, *shape, generator=chance), torch.randint(4, (7,), generator=chance)
    expected = opacus_sum(network, inputs, answers, 0.5)
    assert_close(engine_sum(network, (inputs,), answers, 0.5), expected)
