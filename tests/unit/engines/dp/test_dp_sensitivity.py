"""The clipped sums of neighbouring batches, as computed, differ by at most C, without any tolerance for rounding."""

from __future__ import annotations

import pytest
import torch
from dp_naive import engine_sum
from torch import Tensor, nn

from rigdyno.engines.dp.kernels import explain_unavailable

BOUND = 1.0
CLASSES = 10
ROUTES = [False, *([True] if explain_unavailable() is None else [])]


def wide() -> nn.Module:
    """Return a layer of four million weights, for which norms in single precision go wrong."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5000), nn.ReLU(), nn.Linear(5000, CLASSES))


def convolutional() -> nn.Module:
    body = [nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 32, 5, groups=32, padding=2)]
    return nn.Sequential(*body, nn.Conv2d(32, 64, 1), nn.ReLU(), nn.Conv2d(64, 8, 3), nn.Flatten(), nn.Linear(1568, 10))


def sums(network: nn.Module, inputs: Tensor, target: Tensor, kernels: bool) -> Tensor:
    return engine_sum(network, (inputs,), target, BOUND, kernels)


@pytest.mark.parametrize("kernels", ROUTES)
@pytest.mark.parametrize("make", [wide, convolutional])
@pytest.mark.parametrize("samples", [1, 2, 65])
def test_one_sample_changes_the_sum_by_at_most_the_norm(kernels, make, samples):
    torch.manual_seed(samples)
    network = make()
    inputs, target = torch.randn(samples, 3, 16, 16) * 50, torch.randint(CLASSES, (samples,))
    whole = sums(network, inputs, target, kernels)
    for left_out in {0, samples - 1}:
        rest = [row for row in range(samples) if row != left_out]
        without = sums(network, inputs[rest], target[rest], kernels) if rest else torch.zeros_like(whole)
        assert float((whole - without).norm()) <= BOUND


@pytest.mark.parametrize("kernels", ROUTES)
def test_equal_samples_keep_to_the_norm(kernels):
    """Their sum is as large as possible, and so is its rounding error."""
    torch.manual_seed(0)
    network = convolutional()
    inputs, target = (torch.randn(1, 3, 16, 16) * 50).expand(100, -1, -1, -1), torch.zeros(100, dtype=torch.long)
    whole, without = (sums(network, inputs[:count], target[:count], kernels) for count in (100, 99))
    assert float((whole - without).norm()) <= BOUND
    assert float(whole.norm()) > 99 * BOUND


@pytest.mark.parametrize("kernels", ROUTES)
def test_positions_that_cancel_keep_to_the_norm(kernels):
    """The Gram matrices have large values whose sum is small: rounding must not make a norm too small."""

    class Cancelling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 32, bias=False)

        def forward(self, values: Tensor) -> Tensor:
            signs = torch.ones(16, 1)
            signs[1::2] = -1.0
            return (self.layer(values) * signs * 1000).sum(dim=1)[:, :CLASSES]

    torch.manual_seed(0)
    network = Cancelling()
    base = torch.randn(4, 1, 64) * 100
    inputs, target = base.expand(-1, 16, -1) + torch.randn(4, 16, 64) * 1e-2, torch.randint(CLASSES, (4,))
    for sample in range(4):
        alone = sums(network, inputs[sample : sample + 1], target[sample : sample + 1], kernels)
        assert float(alone.norm()) <= BOUND
