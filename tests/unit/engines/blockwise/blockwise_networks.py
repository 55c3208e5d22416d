"""Networks for tests, what they must give, and what they do give block by block."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.building import network_of
from rigdyno.engines.blockwise.network.graph import Network
from rigdyno.engines.blockwise.network.running import run
from rigdyno.engines.blockwise.network.simplify import simplified
from rigdyno.engines.blockwise.network.spans import rounded_up
from rigdyno.engines.blockwise.network.tracing import traced
from rigdyno.engines.blockwise.network.trimming import Trimming

WITHIN = 2e-5  # of the answer's range: float32 in another order of adding up


def lively(module: nn.Module, seed: int = 0) -> nn.Module:
    """Norms as they are after training, weights that neither fade nor explode."""
    chance = torch.Generator().manual_seed(seed)
    for own in module.modules():
        if isinstance(own, nn.BatchNorm3d) and own.running_mean is not None:
            own.running_mean.normal_(0.0, 0.5, generator=chance)
            own.running_var.uniform_(0.5, 2.0, generator=chance)
            if own.affine:
                nn.init.normal_(own.weight, 1.0, 0.3, generator=chance)
                nn.init.normal_(own.bias, 0.0, 0.5, generator=chance)
    return module.eval()


def both_graphs(module: nn.Module, channels: int, shape: Zyx) -> list[Network]:
    plain = network_of(traced(module, channels, shape))
    return [plain, simplified(plain)]


def full_shape(trimming: Trimming, size: Zyx, halo: Zyx) -> Zyx:
    z, y, x = (rounded_up(length, step) + 2 * own for length, step, own in zip(size, trimming.step, halo, strict=True))
    return z, y, x


def sizes(step: Zyx) -> st.SearchStrategy[Zyx]:
    """One voxel, a whole block, one more than that, an odd number."""
    return st.tuples(*(st.sampled_from([1, own, own + 1, 2 * own - 1]) for own in step))


def some_halos(trimming: Trimming) -> list[Zyx]:
    """None, or the least that will do; some; all that counts; more than that."""
    least, step = trimming.least_halo(), trimming.step
    exact = tuple(map(max, trimming.exact_halo, least))
    return [least, tuple(map(max, step, least)), exact, tuple(map(sum, zip(exact, step, strict=True)))]


def part(tensor: Tensor, start: Zyx, shape: Zyx) -> Tensor:
    for axis in range(3):
        tensor = tensor.narrow(axis + 2, start[axis], shape[axis])
    return tensor


def expected(module: nn.Module, block: Tensor, size: Zyx, halo: Zyx, margin: Zyx) -> Tensor:
    """The whole network on the whole block, in double precision, and then cut."""
    doubled = module.double()
    with torch.no_grad():
        answer = doubled(block.double())
    module.float()
    z, y, x = (own - lost for own, lost in zip(halo, margin, strict=True))
    return part(answer, (z, y, x), size)


def blockwise(network: Network, trimming: Trimming, block: Tensor, size: Zyx, halo: Zyx) -> Tensor:
    placement = trimming.placement(size, halo)
    z, y, x = (start + own for start, own in zip(placement.read.start, halo, strict=True))
    with torch.no_grad():
        return run(network, placement, part(block, (z, y, x), placement.read.shape))


def assert_close(found: Tensor, wanted: Tensor, within: float = WITHIN) -> None:
    assert found.shape == wanted.shape
    span = float(wanted.max() - wanted.min()) + float(wanted.abs().max())
    worst = float((found.double() - wanted.double()).abs().max())
    assert worst <= within * max(span, 1e-3), f"{worst:g} of {span:g}"


class Same(nn.Module):
    """Something that looks at one voxel, or a neighbourhood of it, and keeps the size."""

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
    """Down, something there, up again, with a skip or without."""

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
    """A convolution, and mostly a norm and an activation after it, in either order."""
    norm = draw(st.sampled_from([None, nn.BatchNorm3d(outputs), nn.BatchNorm3d(outputs, affine=False, eps=1e-3)]))
    activation = draw(st.sampled_from([None, *ACTIVATIONS]))
    after = [norm, activation() if activation else None]
    if draw(st.integers(0, 3)) == 0:
        after.reverse()
    dropout = nn.Dropout3d() if draw(st.integers(0, 3)) == 0 else None
    convolution = draw(convolutions(inputs, outputs, valid))
    return nn.Sequential(convolution, *(layer for layer in (*after, dropout) if layer))


@st.composite
def shifted(draw, channels: int) -> nn.Module:
    """Even kernels: one grows the map, the next takes that back."""
    kernel = draw(st.sampled_from([2, (2, 1, 2)]))
    padding = tuple(k - 1 for k in three(kernel))
    pair = [nn.Conv3d(channels, channels, kernel, padding=padding), nn.Conv3d(channels, channels, kernel)]
    return nn.Sequential(*pair)


@st.composite
def keeping(draw, inputs: int) -> tuple[nn.Module, int]:
    kind = draw(st.sampled_from(["plain", "plain", "add", "cat", "twice", "constants", "channels", "clamped", "rest"]))
    outputs = draw(st.sampled_from([2, 4, 8, 8, 9]))
    if kind == "rest":
        kind, outputs = draw(st.sampled_from(["arithmetic", "shifted"])), inputs
        if kind == "shifted":
            return draw(shifted(inputs)), inputs
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
        piece, channels = draw(keeping(channels))
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
    """One channel in; at the ends also without padding, where nothing must fit a skip."""
    torch.manual_seed(draw(st.integers(0, 2**20)))
    depth = draw(st.integers(0, deepest))
    first = draw(blocks(1, draw(st.sampled_from([2, 8, 8])), valid=not depth))
    chain, channels = draw(chains(first[0].out_channels, depth))
    ends: list[nn.Module] = [draw(blocks(channels, 3, valid=True))]
    if draw(st.booleans()):
        ends.append(draw(st.sampled_from([nn.MaxPool3d(3, stride=1), nn.AvgPool3d((3, 1, 3), stride=1)])))
    return lively(nn.Sequential(first, chain, *ends), draw(st.integers(0, 99)))
