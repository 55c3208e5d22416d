"""The exact halo: enough, and where the layers leave no choice, not a step more than enough."""

from __future__ import annotations

import pytest
import torch
from blockwise_networks import assert_close, blockwise, both_graphs, expected, full_shape, lively, part
from torch import Tensor, nn

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.graph import Network
from rigdyno.engines.blockwise.network.probing import probed
from rigdyno.engines.blockwise.network.running import run
from rigdyno.engines.blockwise.network.spans import rounded_up
from rigdyno.engines.blockwise.network.trimming import Trimming
from rigdyno.engines.blockwise.network.unet import UNet3d

pytestmark = pytest.mark.usefixtures("one_thread")


def chain(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*layers).eval()


NETWORKS = {
    "one convolution": lambda: chain(nn.Conv3d(1, 2, (3, 5, 1), padding=(1, 2, 0))),
    "dilated": lambda: chain(nn.Conv3d(1, 2, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv3d(2, 1, 3, padding=1)),
    "without padding": lambda: chain(nn.Conv3d(1, 2, 3), nn.Conv3d(2, 1, (1, 3, 5))),
    "u-net": lambda: UNet3d(features=(2, 2)),
    "thick slices": lambda: UNet3d(features=(2, 2), factor=(1, 3, 3)),
    "strided": lambda: chain(
        nn.Conv3d(1, 2, 3, stride=2, padding=1), nn.ELU(), nn.ConvTranspose3d(2, 1, 3, 2, padding=1, output_padding=1)
    ),
    "overlapping": lambda: chain(nn.MaxPool3d(3, stride=1), nn.ConvTranspose3d(1, 1, 3)),
}


def trimming_of(module: nn.Module) -> Trimming:
    return Trimming(both_graphs(lively(module), 1, (72, 72, 72))[1])


def with_nan_beyond(halo: int, given: int, shape: Zyx, axis: int) -> Tensor:
    """Zeros as far as `halo`, not-a-number from there to what is given."""
    block = torch.full((1, 1, *shape), torch.nan)
    block.narrow(axis + 2, given - halo, shape[axis] - 2 * (given - halo)).zero_()
    return block


@pytest.mark.parametrize("name", NETWORKS)
def test_exact_is_enough_and_a_step_less_isnt(name):
    network = NETWORKS[name]()
    trimming = trimming_of(network)
    step, halo = trimming.step, tuple(map(max, trimming.exact_halo, trimming.least_halo()))
    for axis, exact in enumerate(halo):
        given = tuple(own + step[axis] if number == axis else own for number, own in enumerate(halo))
        shape = full_shape(trimming, step, given)
        enough, less = (
            expected(network, with_nan_beyond(kept, given[axis], shape, axis), step, given, trimming.margin)
            for kept in (exact, max(0, exact - step[axis]))
        )
        assert not enough.isnan().any()
        assert less.isnan().any() == (exact > 0)


def test_probing_finds_the_same():
    """Two ways without a line in common: by arithmetic, and by not-a-number through the network as it is."""
    coarse = [nn.Conv3d(1, 1, 3, padding=1) for _ in range(4)]
    network = chain(nn.MaxPool3d(8), *coarse, nn.Upsample(scale_factor=8), nn.Conv3d(1, 1, (3, 5, 1)))
    trimming, found = trimming_of(network), probed(network, 1)
    assert found.margin == trimming.margin
    assert found.reach == tuple(rounded_up(own, found.step) for own in trimming.exact_halo)
    assert found.steady


def test_what_a_u_net_of_three_poolings_sees():
    """By hand: 2 x (1 + 2 + 4 + 8) on the way down and 2 x (4 + 2 + 1) on the way up are 44, on whole steps of 8."""
    trimming = trimming_of(UNet3d(features=(2, 2, 2, 2), norm=False))
    assert trimming.step == (8, 8, 8)
    assert trimming.exact_halo == (48, 48, 48)


def test_thick_slices_are_seen_less_far():
    trimming = trimming_of(UNet3d(features=(2, 2, 2), factor=(1, 3, 3), norm=False))
    assert trimming.step == (1, 9, 9)
    assert trimming.exact_halo == (10, 36, 36)  # ten convolutions; 2 x (1 + 3 + 9) + 2 x (3 + 1) are 34


def test_blocks_lie_side_by_side_without_a_seam():
    network = lively(UNet3d(features=(2, 8), activation="silu"))
    graph = both_graphs(network, 1, (8, 8, 8))[1]
    trimming = Trimming(graph)
    exact = trimming.exact_halo
    volume = torch.randn(1, 1, 4 + 2 * exact[0], 14 + 2 * exact[1], 22 + 2 * exact[2])
    whole = expected(network, volume, (4, 14, 22), exact, (0, 0, 0))
    found = torch.full_like(whole, torch.nan)
    for y, height in ((0, 8), (8, 6)):
        for x, width in ((0, 10), (10, 10), (20, 2)):
            piece = part(volume, (0, y, x), full_shape(trimming, (4, height, width), exact))
            answer = blockwise(graph, trimming, piece.contiguous(), (4, height, width), exact)
            part(found, (0, y, x), (4, height, width)).copy_(answer)
    assert_close(found, whole)


class SeesBlock(Network):
    """Said to see its block as a norm over it does: nothing is trimmed."""

    sees_block = True


def test_trimmed_and_untrimmed_are_the_same():
    network = lively(UNet3d(features=(8, 8, 8)))
    graph = both_graphs(network, 1, (16, 16, 16))[1]
    trimming, size, halo = Trimming(graph), (5, 4, 3), (8, 4, 12)
    block = torch.randn(1, 1, *full_shape(trimming, size, halo))
    trimmed = trimming.placement(size, halo)
    everything = Trimming(SeesBlock(graph.channels_in, graph.nodes)).placement(size, halo)
    assert everything.read.shape == tuple(block.shape[2:])
    assert trimmed.boxes[-2].voxels < everything.boxes[-2].voxels
    with torch.no_grad():
        assert_close(blockwise(graph, trimming, block, size, halo), run(graph, everything, block))
