"""Single layers: folding and fusing, in-place operators, and networks that aren't understood."""

from __future__ import annotations

import pytest
import torch
from blockwise_networks import ACTIVATIONS, assert_close, blockwise, both_graphs, expected, full_shape, randomise_norms
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.blockwise.errors import BadNetwork, BadSetting
from rigdyno.engines.blockwise.network.graph import Network
from rigdyno.engines.blockwise.network.layers.convolution import ConvolutionSum, Deconvolution
from rigdyno.engines.blockwise.network.maps import NotUnderstood
from rigdyno.engines.blockwise.network.understood import Trimming
from rigdyno.engines.blockwise.network.unet import UNet3d

pytestmark = pytest.mark.usefixtures("one_thread")
BLOCKS = [((5, 6, 7), (0, 0, 0)), ((5, 2, 7), (2, 1, 1)), ((1, 1, 1), (1, 1, 1))]  # sizes, and halos in steps


class Forward(nn.Module):
    """A network made of one function and the modules that it uses."""

    def __init__(self, function, **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, own in parts.items():
            self.add_module(name, own)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def conv(inputs: int, outputs: int, **options) -> nn.Conv3d:
    torch.manual_seed(inputs + 100 * outputs)
    return nn.Conv3d(inputs, outputs, 3, padding=1, **options)


def check(module: nn.Module, shape=(8, 8, 8)) -> Network:
    """Compare the plain and the simplified graph with the module on some blocks; return the simplified one."""
    randomise_norms(module)
    for graph in both_graphs(module, 1, shape):
        trimming = Trimming(graph)
        for size, steps in BLOCKS:
            halo = tuple(map(int.__mul__, steps, trimming.step))
            block = torch.randn(1, 1, *full_shape(trimming, size, halo), generator=torch.Generator().manual_seed(0))
            found = blockwise(graph, trimming, block, size, halo)
            assert_close(found, expected(module, block, size, halo, trimming.margin))
    return graph


def joined(activation: nn.Module, bias: bool) -> nn.Module:
    """Return a level of a U-Net's decoder: concatenation with a skip, convolution, norm, activation."""

    def forward(own: nn.Module, x: Tensor) -> Tensor:
        skipped = own.first(x)
        coarse = functional.interpolate(functional.max_pool3d(skipped, 2), scale_factor=2.0)
        return own.activation(own.norm(own.second(torch.cat([coarse, skipped], 1))))

    parts = {"first": conv(1, 8), "second": conv(16, 5, bias=bias), "norm": nn.BatchNorm3d(5)}
    return Forward(forward, **parts, activation=activation)


@pytest.mark.parametrize(
    ("make", "kernels"), [*((make, True) for make in ACTIVATIONS), *((make, False) for make in ACTIVATIONS[::3])]
)
def test_every_activation_works_after_a_sum_of_convolutions(make, kernels, monkeypatch):
    """oneDNN fuses some of them with a convolution, but only ReLU with one that adds to a sum."""
    if not kernels:
        monkeypatch.setattr("rigdyno.engines.blockwise.network.layers.kernels.can_fuse", lambda tensor: False)
    graph = check(joined(make(), bias=kernels))
    assert any(isinstance(node.layer, ConvolutionSum) and len(node.layer.parts) == 2 for node in graph.nodes)


@pytest.mark.parametrize("some", [0, 1, 2, 3])
def test_every_activation_works_after_one_convolution(some):
    chosen = [*ACTIVATIONS, nn.Mish, nn.SELU, nn.Hardsigmoid, nn.Softplus][some::4]
    pairs = [[conv(4, 4), make()] for make in chosen]
    check(nn.Sequential(conv(1, 4), *(layer for pair in pairs for layer in pair)))


def test_a_unet_becomes_few_layers():
    graph = check(UNet3d(features=(8, 8, 16)), (8, 8, 8))
    kinds = [type(node.layer).__name__ for node in graph.nodes]
    assert sorted(set(kinds)) == ["ConvolutionSum", "Pooling"]
    assert kinds.count("ConvolutionSum") == 11
    parts = [part for node in graph.nodes if isinstance(node.layer, ConvolutionSum) for part in node.layer.parts]
    assert sum(isinstance(part, Deconvolution) for part in parts) == 2


@pytest.mark.parametrize("kernel", [2, 3, (1, 3, 5)])
@pytest.mark.parametrize("factor", [2, 3, (1, 3, 2)])
@pytest.mark.parametrize("linear", [False, True])
def test_a_convolution_after_an_upsampling_becomes_coarse(kernel, factor, linear):
    factors = factor if isinstance(factor, tuple) else (factor,) * 3
    scale = tuple(float(number) for number in factors)
    grow = nn.Upsample(scale_factor=scale, mode="trilinear" if linear else "nearest")
    torch.manual_seed(0)
    odd = tuple(int(size) % 2 for size in nn.Conv3d(1, 1, kernel).weight.shape[2:])
    padding = tuple(size // 2 for size in nn.Conv3d(1, 1, kernel).weight.shape[2:])
    back = [] if all(odd) else [nn.Conv3d(3, 3, kernel)]  # an even kernel makes the map one voxel longer
    network = nn.Sequential(
        conv(1, 4), nn.MaxPool3d(factors), grow, nn.Conv3d(4, 3, kernel, padding=padding), *back, nn.Sigmoid()
    )
    shapes = tuple(6 * number for number in factors)
    graph = check(network, shapes)
    coarse = any(isinstance(part, Deconvolution) for node in graph.nodes for part in getattr(node.layer, "parts", ()))
    assert coarse != linear


def test_a_large_upsampling_is_not_merged():
    """A kernel of 18 x 18 x 18 would take more memory than the map that it saves."""
    network = nn.Sequential(nn.MaxPool3d(16), nn.Upsample(scale_factor=16), conv(1, 2))
    assert [type(node.layer).__name__ for node in check(network, (16, 16, 16)).nodes][1:] == [
        "Resizing",
        "ConvolutionSum",
    ]


IN_PLACE = {
    "used before and after": lambda own, x: (lambda y: torch.cat([y, torch.relu_(y), y], 1))(own.a(x)),
    "by another name": lambda own, x: (lambda y: (lambda z: torch.relu_(z) + y)(y.detach()))(own.a(x)),
    "after dropout": lambda own, x: (lambda y: torch.relu_(functional.dropout(y, 0.5, False)) - y)(own.a(x)),
    "on the input": lambda own, x: torch.relu_(x * 1.0) + own.a(x)[:, :1],
    "a sum": lambda own, x: (lambda y: y.add_(own.b(y)).mul_(0.5) * y)(own.a(x)),
}
NOT_IN_PLACE = {
    "on a part": lambda own, x: (lambda y: (torch.relu_(y[:, :2]), y)[1])(own.a(x)),
    "on what has parts": lambda own, x: (lambda y: (lambda z: (y.mul_(2.0), z)[1])(y[:, :2]))(own.a(x)),
    "on a copy": lambda own, x: (lambda y: torch.relu_(y.clone()) + y)(own.a(x)),
}


@pytest.mark.parametrize("what", IN_PLACE)
def test_an_in_place_operator_changes_all_names_of_a_map(what):
    check(Forward(IN_PLACE[what], a=conv(1, 4), b=conv(4, 4)))


@pytest.mark.parametrize("what", NOT_IN_PLACE)
def test_an_in_place_operator_on_a_part_is_refused(what):
    with pytest.raises(NotUnderstood, match="part or a copy"):
        both_graphs(Forward(NOT_IN_PLACE[what], a=conv(1, 4)).eval(), 1, (8, 8, 8))


ARITHMETIC = {
    "clamped above": lambda own, x: own.a(x).clamp(max=0.1),
    "clamped below": lambda own, x: own.a(x).clamp(min=0.1),
    "clamped on both sides": lambda own, x: own.a(x).clamp(-0.1, 0.2),
    "one minus": lambda own, x: 1 - own.a(x),
    "a constant made on the way": lambda own, x: own.a(x) * torch.tensor(2.5) + torch.tensor(1),
    "one channel times many": lambda own, x: own.a(x) * torch.sigmoid(own.c(x)),
    "the input itself": lambda own, x: own.a(x) + x,
    "divided": lambda own, x: own.a(x) / (own.a(x).abs() + 1.0),
    "all channels but the first": lambda own, x: own.a(x)[:, 1:] - own.a(x)[:, :-1],
    "every other channel": lambda own, x: own.a(x)[:, ::2, :, :],
    "a layer without use": lambda own, x: (own.b(own.a(x)), own.a(x))[1],
    "nothing": lambda own, x: x,
    "finer than the input": lambda own, x: functional.max_pool3d(own.a(functional.interpolate(x, scale_factor=3)), 3),
}


@pytest.mark.parametrize("what", ARITHMETIC)
def test_arithmetic_is_understood(what):
    check(Forward(ARITHMETIC[what], a=conv(1, 4), b=conv(4, 4), c=conv(1, 1)))


def test_a_network_finer_than_its_input_has_a_step_of_one():
    network = Forward(ARITHMETIC["finer than the input"], a=conv(1, 4)).eval()
    assert Trimming(both_graphs(network, 1, (8, 8, 8))[1]).step == (1, 1, 1)


UNKNOWN = {
    "aten.cumsum": lambda own, x: own.a(x).cumsum(2),
    "along z, y or x": lambda own, x: own.a(x)[:, :, 1:-1],
    "softmax to something other than channels": lambda own, x: own.a(x).softmax(2),
    "unusual way": lambda own, x: torch.add(own.a(x), x, alpha=2),
    "padding, dilation or rounding up": lambda own, x: functional.max_pool3d(own.a(x), 3, 1, 1),
    "aligned corners": lambda own, x: functional.interpolate(
        own.a(x), scale_factor=2, mode="trilinear", align_corners=True
    ),
    "isn't a whole number": lambda own, x: functional.interpolate(own.a(x), scale_factor=1.5),
    "approximate GELU": lambda own, x: functional.gelu(own.a(x), approximate="tanh"),
    "computes some of its weights": lambda own, x: functional.conv3d(x, own.a.weight * 2.0),
    "different resolution": lambda own, x: own.a(x) * functional.avg_pool3d(x, 8),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_an_unknown_operator_is_named(what):
    with pytest.raises(NotUnderstood, match=what) as caught:
        both_graphs(Forward(UNKNOWN[what], a=conv(1, 4), c=conv(1, 1)).eval(), 1, (8, 8, 8))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "odd",
    [
        nn.Conv3d(4, 4, 1, padding=1),
        nn.Conv3d(4, 4, 2, padding="same"),
        nn.ConvTranspose3d(4, 4, 1, stride=2),
        nn.ConvTranspose3d(4, 4, 2, stride=2, output_padding=1),
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolutions_that_leave_voxels_without_input_arent_trimmed(odd):
    with pytest.raises(NotUnderstood, match=r"padding|leaves voxels empty"):
        both_graphs(nn.Sequential(conv(1, 4), odd).eval(), 1, (8, 8, 8))


def test_constants_that_differ_between_voxels_are_refused():
    network = nn.Sequential(conv(1, 4), nn.ReLU())
    network.register_buffer("figures", torch.linspace(0, 1, 8))
    with pytest.raises(NotUnderstood, match="from voxel to voxel"):
        both_graphs(Forward(lambda own, x: own.net[0](x) * own.net.figures, net=network).eval(), 1, (8, 8, 8))


def test_norms_without_statistics_are_refused():
    with pytest.raises(BadNetwork, match=r"BatchNorm.*eval"):
        both_graphs(nn.Sequential(nn.BatchNorm3d(1, track_running_stats=False)), 1, (8, 8, 8))


@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(2, 4), nn.InstanceNorm3d(4), nn.InstanceNorm3d(4, affine=True), nn.GroupNorm(1, 4, eps=0.1)]
)
@pytest.mark.parametrize("last", [True, False])
def test_norms_over_the_block_see_all_of_it(norm, last):
    after = [] if last else [nn.ReLU(), nn.MaxPool3d(2), nn.Upsample(scale_factor=2)]
    graph = check(nn.Sequential(conv(1, 4), norm, *after))
    assert graph.sees_block
    placement = Trimming(graph).compute_placement((4, 4, 4), (4, 4, 4))
    assert placement.boxes[1].shape == (12, 12, 12)


def test_an_instance_norm_with_fixed_statistics_is_folded():
    norm = nn.InstanceNorm3d(4, track_running_stats=True, affine=True)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    graph = check(nn.Sequential(conv(1, 4), norm))
    assert [type(node.layer).__name__ for node in graph.nodes] == ["ConvolutionSum"]
    assert not graph.sees_block


def test_a_halo_smaller_than_the_margin_is_refused():
    network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.Conv3d(2, 1, 5)).eval()
    trimming = Trimming(both_graphs(network, 1, (16, 16, 16))[1])
    assert trimming.margin == trimming.least_halo() == trimming.exact_halo == (3, 3, 3)
    with pytest.raises(BadSetting, match="it loses 3 at each side"):
        trimming.compute_placement((8, 8, 8), (3, 2, 3))


def test_halos_must_be_whole_steps():
    trimming = Trimming(both_graphs(UNet3d(features=(2, 2, 2)), 1, (8, 8, 8))[1])
    with pytest.raises(BadSetting, match="multiple of 4"):
        trimming.compute_placement((8, 8, 8), (4, 6, 4))


def test_blocks_that_are_too_small_are_refused():
    network = nn.Sequential(nn.Conv3d(1, 1, 3), nn.ConvTranspose3d(1, 1, 3)).eval()
    trimming = Trimming(both_graphs(network, 1, (16, 16, 16))[1])
    with pytest.raises(BadSetting, match="too small"):
        trimming.compute_placement((2, 2, 2), (0, 0, 0))


@pytest.mark.parametrize(
    "network", [nn.Conv3d(1, 1, 2), nn.Conv3d(1, 1, 3, stride=2, padding=1), nn.Upsample(scale_factor=2)]
)
def test_networks_that_change_the_resolution_are_refused(network):
    with pytest.raises(BadNetwork, match="one for each"):
        Trimming(both_graphs(nn.Sequential(network).eval(), 1, (16, 16, 16))[1])
