"""Networks for tests, their expected outputs, and their outputs block by block."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Zyx, round_up
from rigdyno.engines.blockwise.network.graph import Network
from rigdyno.engines.blockwise.network.simplify import simplify_network
from rigdyno.engines.blockwise.network.tracing import trace_module
from rigdyno.engines.blockwise.network.understood import Trimming, build_network, run_network

WITHIN = 2e-5  # share of the output range; float32 sums in another order


def randomise_norms(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give norms random statistics and weights, as after training."""
    generator = torch.Generator().manual_seed(seed)
    for own in module.modules():
        if isinstance(own, nn.BatchNorm3d) and own.running_mean is not None:
            own.running_mean.normal_(0.0, 0.5, generator=generator)
            own.running_var.uniform_(0.5, 2.0, generator=generator)
            if own.affine:
                nn.init.normal_(own.weight, 1.0, 0.3, generator=generator)
                nn.init.normal_(own.bias, 0.0, 0.5, generator=generator)
    return module.eval()


def both_graphs(module: nn.Module, channels: int, shape: Zyx) -> list[Network]:
    plain = build_network(trace_module(module, channels, shape))
    return [plain, simplify_network(plain)]


def full_shape(trimming: Trimming, size: Zyx, halo: Zyx) -> Zyx:
    z, y, x = (round_up(length, step) + 2 * own for length, step, own in zip(size, trimming.step, halo, strict=True))
    return z, y, x


def sizes(step: Zyx) -> st.SearchStrategy[Zyx]:
    """Draw sizes: one voxel, a whole step, one more than that, an odd number."""
    return st.tuples(*(st.sampled_from([1, own, own + 1, 2 * own - 1]) for own in step))


def some_halos(trimming: Trimming) -> list[Zyx]:
    """Return the least halo, a small one, the exact one, and a larger one."""
    least, step = trimming.least_halo(), trimming.step
    exact = tuple(map(max, trimming.exact_halo, least))
    return [least, tuple(map(max, step, least)), exact, tuple(map(sum, zip(exact, step, strict=True)))]


def part(tensor: Tensor, start: Zyx, shape: Zyx) -> Tensor:
    for axis in range(3):
        tensor = tensor.narrow(axis + 2, start[axis], shape[axis])
    return tensor


def expected(module: nn.Module, block: Tensor, size: Zyx, halo: Zyx, margin: Zyx) -> Tensor:
    """Run the original network on the whole block in double precision, and crop the result."""
    doubled = module.double()
    with torch.no_grad():
        answer = doubled(block.double())
    module.float()
    z, y, x = (own - lost for own, lost in zip(halo, margin, strict=True))
    return part(answer, (z, y, x), size)


def blockwise(network: Network, trimming: Trimming, block: Tensor, size: Zyx, halo: Zyx) -> Tensor:
    placement = trimming.compute_placement(size, halo)
    z, y, x = (start + own for start, own in zip(placement.read.start, halo, strict=True))
    with torch.no_grad():
        return run_network(network, placement, part(block, (z, y, x), placement.read.shape))


def assert_close(found: Tensor, wanted: Tensor, within: float = WITHIN) -> None:
    assert found.shape == wanted.shape
    span = float(wanted.max() - wanted.min()) + float(wanted.abs().max())
    worst = float((found.double() - wanted.double()).abs().max())
    assert worst <= within * max(span, 1e-3), f"{worst:g} of {span:g}"


class Same(nn.Module):
    """A network that keeps the size of its input."""

    def __init__(self, kind: str, body: nn.Module, skipped: int = 0) -> None:
        super().__init__()
        self.kind, self.body, self.skipped = kind, body, skipped
        self.register_buffer("figures", torch.linspace(0.5, 1.5, max(skipped, 1)).view(1, -1, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x)
        if self.kind == "add":
            return found + x
        if self.kind == "cat":
            return torch.cat([found, x], 1)
        if self.kind == "twice":
            return torch.cat([torch.cat([x, found], 1), x], dim=-4)
        if self.kind == "constants":
            return (found * self.figures - 0.25) / 2.0 + self.figures
        if self.kind == "channels":
            return found[:, 1 : self.skipped]
        if self.kind == "clamped":
            return torch.clamp(found, max=0.7) + torch.clamp(found, -0.5) - torch.clamp(found, -0.1, 0.2)
        if self.kind == "arithmetic":
            return torch.maximum(torch.exp(-found.abs()), functional.softplus(found, 2.0)) * torch.minimum(found, x)
        return found


class Level(nn.Module):
    """A level of a U-Net: down, inner network, up, with a skip or without."""

    def __init__(self, down: nn.Module, inner: nn.Module, up: nn.Module, skip: str) -> None:
        super().__init__()
        self.down, self.inner, self.up, self.skip = down, inner, up, skip

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(self.down(x))
        if isinstance(self.up, ToSize):
            found = functional.interpolate(found, size=x.shape[2:], mode=self.up.mode)
        else:
            found = self.up(found)
        if self.skip == "cat":
            return torch.cat([found, x], 1)
        return found + x if self.skip == "add" else found


class ToSize(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode


ACTIVATIONS = [
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, lambda: nn.LeakyReLU(0.2), nn.Hardtanh, lambda: nn.Hardtanh(-0.3, 0.6), nn.ELU,
    lambda: nn.ELU(0.7), nn.Sigmoid, nn.Tanh, nn.SiLU, nn.GELU, nn.Hardswish, lambda: nn.ReLU(inplace=True),
    lambda: nn.SiLU(inplace=True), nn.PReLU, lambda: nn.Softmax(dim=1),
]  # fmt: skip
KERNELS = [1, 3, 5, (1, 3, 3), (3, 1, 5), (5, 3, 1)]
FACTORS = [2, 2, 3, (1, 3, 3), (1, 2, 2), (2, 1, 1)]


def three(value) -> Zyx:
    return value if isinstance(value, tuple) else (value, value, value)


@st.composite
def convolutions(draw, inputs: int, outputs: int, valid: bool = False) -> nn.Module:
    kernel, dilation = three(draw(st.sampled_from(KERNELS))), three(draw(st.sampled_from([1, 1, 1, 2, (1, 2, 3)])))
    fitting = tuple((k - 1) * d // 2 for k, d in zip(kernel, dilation, strict=True))
    padding = draw(st.sampled_from([fitting, fitting, "same", *([0, "valid"] if valid else [])]))
    groups = draw(st.sampled_from([1, 1, 2])) if inputs % 2 == outputs % 2 == 0 else 1
    return nn.Conv3d(
        inputs, outputs, kernel, padding=padding, dilation=dilation, groups=groups, bias=draw(st.booleans())
    )


@st.composite
def blocks(draw, inputs: int, outputs: int, valid: bool = False) -> nn.Module:
    """Draw a convolution, mostly followed by a norm and an activation in either order."""
    norm = draw(st.sampled_from([None, nn.BatchNorm3d(outputs), nn.BatchNorm3d(outputs, affine=False, eps=1e-3)]))
    activation = draw(st.sampled_from([None, *ACTIVATIONS]))
    after = [norm, activation() if activation else None]
    if draw(st.integers(0, 3)) == 0:
        after.reverse()
    dropout = nn.Dropout3d() if draw(st.integers(0, 3)) == 0 else None
    convolution = draw(convolutions(inputs, outputs, valid))
    return nn.Sequential(convolution, *(layer for layer in (*after, dropout) if layer))


@st.composite
def even_kernels(draw, channels: int) -> nn.Module:
    """Draw two convolutions with even kernels: the first enlarges the map, the second shrinks it again."""
    kernel = draw(st.sampled_from([2, (2, 1, 2)]))
    padding = tuple(k - 1 for k in three(kernel))
    pair = [nn.Conv3d(channels, channels, kernel, padding=padding), nn.Conv3d(channels, channels, kernel)]
    return nn.Sequential(*pair)


@st.composite
def same_size_networks(draw, inputs: int) -> tuple[nn.Module, int]:
    kind = draw(st.sampled_from(["plain", "plain", "add", "cat", "twice", "constants", "channels", "clamped", "rest"]))
    outputs = draw(st.sampled_from([2, 4, 8, 8, 9]))
    if kind == "rest":
        kind, outputs = draw(st.sampled_from(["arithmetic", "shifted"])), inputs
        if kind == "shifted":
            return draw(even_kernels(inputs)), inputs
    if kind in ("add", "arithmetic"):
        outputs = inputs
    body = draw(blocks(inputs, outputs))
    if kind == "cat":
        return Same("cat", body), outputs + inputs
    if kind == "twice":
        return Same("twice", body), outputs + 2 * inputs
    if kind == "constants":
        return Same("constants", body, outputs), outputs
    if kind == "channels":
        return Same("channels", body, outputs), outputs - 1
    return Same(kind, body), outputs


@st.composite
def downs(draw, channels: int, factor) -> nn.Module:
    whole = three(factor)
    strided = tuple(3 if f > 1 else 1 for f in whole)
    half = tuple(k // 2 for k in strided)
    return draw(
        st.sampled_from(
            [
                nn.MaxPool3d(whole),
                nn.AvgPool3d(whole),
                nn.Conv3d(channels, channels, whole, stride=whole),
                nn.Conv3d(channels, channels, strided, stride=whole, padding=half, bias=False),
                nn.Conv3d(channels, channels, 1, stride=whole),
                nn.MaxPool3d((1, 1, 1), stride=whole),
            ]
        )
    )


@st.composite
def ups(draw, channels: int, factor) -> nn.Module:
    whole = three(factor)
    scale = tuple(float(f) for f in whole)
    twice = [
        nn.ConvTranspose3d(channels, channels, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose3d(channels, channels, 4, stride=2, padding=1, bias=False),
        nn.ConvTranspose3d(channels, channels, (2, 4, 3), stride=2, padding=(0, 1, 1), output_padding=(0, 0, 1)),
        nn.ConvTranspose3d(channels, channels, 2, stride=2, dilation=3, padding=1),
    ]
    return draw(
        st.sampled_from(
            [
                nn.Upsample(scale_factor=scale),
                nn.Upsample(scale_factor=scale),
                nn.Upsample(scale_factor=scale, mode="trilinear"),
                ToSize("nearest"),
                ToSize("trilinear"),
                nn.ConvTranspose3d(channels, channels, whole, stride=whole),
                nn.ConvTranspose3d(channels, channels, whole, stride=whole, groups=2 - channels % 2),
                *(twice if factor == 2 else []),
            ]
        )
    )


@st.composite
def levels(draw, channels: int, depth: int) -> tuple[nn.Module, int]:
    factor = draw(st.sampled_from(FACTORS))
    inner, outputs = draw(chains(channels, depth - 1, 2))
    skip = draw(st.sampled_from(["cat", "cat", "none", *(["add"] if outputs == channels else [])]))
    made = Level(draw(downs(channels, factor)), inner, draw(ups(outputs, factor)), skip)
    return made, outputs + channels if skip == "cat" else outputs


@st.composite
def chains(draw, channels: int, depth: int, most: int = 3) -> tuple[nn.Module, int]:
    made: list[nn.Module] = []
    for _ in range(draw(st.integers(1, most))):
        piece, channels = draw(same_size_networks(channels))
        made.append(piece)
        if depth and draw(st.booleans()):
            piece, channels = draw(levels(channels, depth))
            made.append(piece)
        if channels > 20:
            made.append(nn.Conv3d(channels, 8, 1))
            channels = 8
    return nn.Sequential(*made), channels


@st.composite
def random_networks(draw, deepest: int = 2) -> nn.Module:
    """Draw a network of one input channel; first and last layers may have no padding, as no skip must fit them."""
    torch.manual_seed(draw(st.integers(0, 2**20)))
    depth = draw(st.integers(0, deepest))
    first = draw(blocks(1, draw(st.sampled_from([2, 8, 8])), valid=not depth))
    chain, channels = draw(chains(first[0].out_channels, depth))
    ends: list[nn.Module] = [draw(blocks(channels, 3, valid=True))]
    if draw(st.booleans()):
        ends.append(draw(st.sampled_from([nn.MaxPool3d(3, stride=1), nn.AvgPool3d((3, 1, 3), stride=1)])))
    return randomise_norms(nn.Sequential(first, chain, *ends), draw(st.integers(0, 99)))
