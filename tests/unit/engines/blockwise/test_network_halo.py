"""The exact halo is enough, and not a step more than that."""

from __future__ import annotations

import pytest
import torch
from blockwise_networks import assert_close, blockwise, both_graphs, expected, full_shape, part, randomise_norms
from torch import Tensor, nn

from rigdyno.engines.blockwise.boxes import Zyx, round_up
from rigdyno.engines.blockwise.network.graph import Network
from rigdyno.engines.blockwise.network.opaque import measure_reach
from rigdyno.engines.blockwise.network.understood import Trimming, run_network
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
    return Trimming(both_graphs(randomise_norms(module), 1, (72, 72, 72))[1])


def with_nan_beyond(halo: int, given: int, shape: Zyx, axis: int) -> Tensor:
    """Return a block of zeros up to `halo`, and of NaN from there to `given`."""
    block = torch.full((1, 1, *shape), torch.nan)
    block.narrow(axis + 2, given - halo, shape[axis] - 2 * (given - halo)).zero_()
    return block


@pytest.mark.parametrize("name", NETWORKS)
def test_the_exact_halo_is_enough_and_a_step_less_is_not(name):
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


def test_measuring_finds_the_computed_halo():
    """Both ways have no code in common: arithmetic, and NaN sent through the network."""
    coarse = [nn.Conv3d(1, 1, 3, padding=1) for _ in range(4)]
    network = chain(nn.MaxPool3d(8), *coarse, nn.Upsample(scale_factor=8), nn.Conv3d(1, 1, (3, 5, 1)))
    trimming, found = trimming_of(network), measure_reach(network, 1)
    assert found.margin == trimming.margin
    assert found.reach == tuple(round_up(own, found.step) for own in trimming.exact_halo)
    assert found.shift_invariant


def test_the_halo_of_a_u_net_is_that_computed_by_hand():
    """2 x (1 + 2 + 4 + 8) on the way down and 2 x (4 + 2 + 1) on the way up are 44, in whole steps of 8: 48."""
    trimming = trimming_of(UNet3d(features=(2, 2, 2, 2), norm=False))
    assert trimming.step == (8, 8, 8)
    assert trimming.exact_halo == (48, 48, 48)


def test_thick_slices_have_a_smaller_halo():
    trimming = trimming_of(UNet3d(features=(2, 2, 2), factor=(1, 3, 3), norm=False))
    assert trimming.step == (1, 9, 9)
    assert trimming.exact_halo == (
        10,
        36,
        36,
    )  # ten convolutions along z; along y and x 2 x (1 + 3 + 9) + 2 x (3 + 1) are 34


def test_adjacent_blocks_have_no_seam():
    network = randomise_norms(UNet3d(features=(2, 8), activation="silu"))
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
    """A network that claims to see its whole block, like a norm over it, so that nothing is trimmed."""

    sees_block = True


def test_trimmed_and_untrimmed_are_the_same():
    network = randomise_norms(UNet3d(features=(8, 8, 8)))
    graph = both_graphs(network, 1, (16, 16, 16))[1]
    trimming, size, halo = Trimming(graph), (5, 4, 3), (8, 4, 12)
    block = torch.randn(1, 1, *full_shape(trimming, size, halo))
    trimmed = trimming.compute_placement(size, halo)
    everything = Trimming(SeesBlock(graph.channels_in, graph.nodes)).compute_placement(size, halo)
    assert everything.read.shape == tuple(block.shape[2:])
    assert trimmed.boxes[-2].voxels < everything.boxes[-2].voxels
    with torch.no_grad():
        assert_close(blockwise(graph, trimming, block, size, halo), run_network(graph, everything, block))
