"""Estimated costs of a block, compared with the live bytes and the products that torch counts."""

from __future__ import annotations

import pytest
import torch
from blockwise_networks import both_graphs, randomise_norms
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rigdyno.engines.blockwise.network.opaque import LiveTensorCounter
from rigdyno.engines.blockwise.network.tracing import trace_module
from rigdyno.engines.blockwise.network.understood import Trimming, Understood, run_network
from rigdyno.engines.blockwise.network.unet import UNet3d

pytestmark = pytest.mark.usefixtures("one_thread")
FIGURES = 4096  # bytes of statistics of norms and the like, which the counter sees where they are used


class Shallow(nn.Module):
    """A network of softmax, mean pooling and slices, whose maps kernels must copy first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv3d(2, 8, 3, padding=1), nn.Conv3d(12, 4, 3, padding=1)
        self.pool, self.grow = nn.AvgPool3d(2), nn.ConvTranspose3d(4, 4, 4, stride=2, padding=1)
        self.middle = nn.Conv3d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.first(x).softmax(1)
        return self.second(torch.cat([self.grow(self.middle(self.pool(skipped))), skipped], 1))[:, 1:]


NETWORKS = {
    "u-net": (lambda: UNet3d(features=(8, 8, 16)), 1),
    "elu": (lambda: UNet3d(features=(8, 8), activation="elu"), 1),
    "chain": (lambda: nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.GELU(), nn.Conv3d(8, 4, 3, padding=1)), 1),
    "trilinear": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 4, 3, padding=1), nn.MaxPool3d(2), nn.Upsample(scale_factor=2, mode="trilinear"), nn.Tanh()
        ),
        1,
    ),
    "loose": (Shallow, 2),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("halo", [0, 4, 8])
def test_peak_bytes_are_those_of_live_tensors(name, halo):
    make, channels = NETWORKS[name]
    torch.manual_seed(0)
    for graph in both_graphs(randomise_norms(make()), channels, (16, 16, 16)):
        trimming, size, around = Trimming(graph), (13, 12, 16), (halo, halo, halo)
        placement = trimming.compute_placement(size, around)
        block = torch.randn(1, channels, *placement.read.shape)
        with torch.no_grad():
            run_network(graph, placement, block)  # the first run reorders the weights
            with LiveTensorCounter() as alive:
                alive.watch(block)
                run_network(graph, placement, block)
        estimated = trimming.peak_bytes(size, around)
        assert alive.peak - FIGURES <= estimated <= 1.05 * alive.peak


CONVOLUTIONS = {
    "u-net": (lambda: UNet3d(features=(8, 8, 8), norm=False), (8, 8, 8)),
    "thick slices": (lambda: UNet3d(features=(2, 4), factor=(1, 3, 3), norm=False), (6, 9, 9)),
    "groups and strides": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 8, 3, stride=2, padding=1, groups=2),
            nn.ConvTranspose3d(8, 4, 2, stride=2, groups=2), nn.Conv3d(4, 1, (1, 3, 5), padding=(0, 1, 2)),
        ),
        (8, 6, 10),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_multiply_adds_are_those_that_torch_counts(name):
    make, size = CONVOLUTIONS[name]
    module = make().eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(1, 1, *size))
    plain, simple = (Trimming(graph) for graph in both_graphs(module, 1, size))
    assert 2 * plain.count_multiply_adds(size, (0, 0, 0)) == counter.get_total_flops()
    if "u-net" in name:
        assert simple.count_multiply_adds(size, (0, 0, 0)) < plain.count_multiply_adds(size, (0, 0, 0))


def test_products_of_a_block_approach_those_of_a_volume():
    model = Understood(trace_module(UNet3d(features=(2, 4, 8)), 1, (16, 16, 16)))
    large = (400, 400, 400)
    assert model.products(large, (0, 0, 0)) == pytest.approx(model.products_per_voxel * 400**3, rel=1e-6)
    halo = model.exact_halo
    assert model.products((8, 8, 8), halo) > 3 * model.products_per_voxel * 8**3


def test_a_network_without_multiplications_still_costs_something():
    model = Understood(trace_module(nn.Sequential(nn.MaxPool3d(2), nn.Upsample(scale_factor=2)), 1, (16, 16, 16)))
    assert model.products_per_voxel == 1.0
    assert model.products((4, 4, 4), (2, 2, 2)) == 64
