"""Compare clipped sums of random networks with the definition, by torch alone and by kernels."""

from __future__ import annotations

import math

import pytest
import torch
from dp_naive import assert_close, engine_sum, naive_gradients, naive_sum
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.dp import training
from rigdyno.engines.dp.gradients import contributions
from rigdyno.engines.dp.kernels import explain_unavailable

ROUTES = [False, *([True] if explain_unavailable() is None else [])]
CLASSES = 5

few = settings(max_examples=25, deadline=None, derandomize=True)


def images(chance: torch.Generator, samples: int, channels: int, side: int) -> Tensor:
    return torch.randn(samples, channels, side, side, generator=chance) * 2


def answers(chance: torch.Generator, samples: int) -> Tensor:
    return torch.randint(CLASSES, (samples,), generator=chance)


def check(network: nn.Module, inputs: tuple[Tensor, ...], target: Tensor, kernels: bool, **options) -> None:
    gradients = naive_gradients(network, inputs, target)
    norms = sorted(float(gradient.norm()) for gradient in gradients)
    bound = norms[len(norms) // 2] * 1.01  # some are clipped, some aren't
    assert_close(engine_sum(network, inputs, target, bound, kernels, **options), naive_sum(gradients, bound))


@st.composite
def convolutions(draw, inputs: int) -> tuple[nn.Module, int]:
    kind = draw(st.sampled_from(["full", "grouped", "depthwise", "pointwise"]))
    outputs = inputs if kind == "depthwise" else inputs * draw(st.sampled_from([1, 2]))
    groups = {"full": 1, "pointwise": 1, "grouped": math.gcd(inputs, 2), "depthwise": inputs}[kind]
    kernel = 1 if kind == "pointwise" else draw(st.sampled_from([(3, 3), (3, 1), (5, 5), (2, 4)]))
    mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "circular", "replicate"]))
    padding = 0 if kind == "pointwise" else draw(st.sampled_from([(1, 1), (2, 1), "same"]))
    stride = 1 if padding == "same" else draw(st.sampled_from([1, 2, (2, 1)]))
    dilation = draw(st.sampled_from([1, 1, 2]))
    made = nn.Conv2d(
        inputs, outputs, kernel, stride, padding, dilation, groups, bias=draw(st.booleans()), padding_mode=mode
    )
    return made, outputs


@st.composite
def image_networks(draw) -> nn.Module:
    torch.manual_seed(draw(st.integers(0, 2**20)))
    layers, channels = [nn.Conv2d(3, 4, 3, padding=2)], 4
    for _ in range(draw(st.integers(1, 3))):
        made, channels = draw(convolutions(channels))
        layers.append(made)
        norm = nn.GroupNorm(draw(st.sampled_from([1, 2, 4])), channels)
        layers += [norm] if draw(st.booleans()) else []
        layers.append(draw(st.sampled_from([nn.SiLU, nn.ReLU, nn.Tanh]))())
    for norm in layers:
        if isinstance(norm, nn.GroupNorm):
            nn.init.normal_(norm.weight, 1.0, 0.3)
            nn.init.normal_(norm.bias, 0.0, 0.3)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(channels * 4, CLASSES))


@pytest.mark.parametrize("kernels", ROUTES)
@few
@given(network=image_networks(), samples=st.integers(1, 7), seed=st.integers(0, 1000))
def test_random_image_networks_match_the_definition(kernels, network, samples, seed):
    chance = torch.Generator().manual_seed(seed)
    check(network, (images(chance, samples, 3, 13),), answers(chance, samples), kernels)


@pytest.mark.filterwarnings("ignore:.*no rule")
@pytest.mark.parametrize("kernels", ROUTES)
@pytest.mark.parametrize("route", ["gram", "built", "generic"])
def test_every_route_gives_the_same_sum(route, kernels, monkeypatch):
    """The route of a layer depends on its shape; here all layers are forced to one route."""
    monkeypatch.setattr(contributions, "TRAFFIC", {"gram": 1e18, "built": 0.0}.get(route, contributions.TRAFFIC))
    if route == "generic":
        monkeypatch.setattr(training, "rules", dict)
    chance = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 16, 3, groups=4, stride=2)]
    body += [nn.Conv2d(16, 16, 3, groups=16, padding=1), nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Flatten(2), nn.LayerNorm(9)]
    network = nn.Sequential(*body, nn.Linear(9, 9), nn.Flatten(), nn.Linear(72, CLASSES))
    check(network, (images(chance, 6, 3, 8),), answers(chance, 6), kernels)


class Tokens(nn.Module):
    """A network with embedding, attention and both norms; tied or not, with or without masks."""

    def __init__(self, width: int, heads: int, tied: bool, own: bool, padded: bool, shares: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(11, width, padding_idx=0)
        self.norm, self.root = nn.LayerNorm(width), nn.RMSNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, 11, bias=False)
        self.own, self.padded, self.shares = own, padded, shares
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.words(tokens)
        normed = self.norm(seen)
        mask = (tokens == 0) & (torch.arange(tokens.shape[1]) > 0) if self.padded else None
        other = normed if self.own else seen
        found, _ = self.attention(normed, other, other, key_padding_mask=mask, need_weights=self.shares)
        return self.head(self.root(seen + self.mlp(found)).mean(dim=1))[:, :CLASSES]


@few
@given(
    heads=st.sampled_from([1, 2, 4]),
    tied=st.booleans(),
    own=st.booleans(),
    padded=st.booleans(),
    shares=st.booleans(),
    samples=st.integers(1, 6),
    length=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_random_token_networks_match_the_definition(heads, tied, own, padded, shares, samples, length, seed):
    torch.manual_seed(seed)
    chance = torch.Generator().manual_seed(seed)
    tokens = torch.randint(11, (samples, length), generator=chance)
    check(Tokens(8, heads, tied, own, padded, shares), (tokens,), answers(chance, samples), False)


@pytest.mark.parametrize("kernels", ROUTES)
def test_signals_and_volumes_match_the_definition(kernels):
    chance = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    signal = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(8, 8, 1), nn.GroupNorm(2, 8), nn.ReLU())
    signal = nn.Sequential(*signal, nn.Conv1d(8, 8, 5, groups=2), nn.Flatten(), nn.Linear(96, CLASSES))
    check(signal, (torch.randn(6, 3, 16, generator=chance),), answers(chance, 6), kernels)
    volume = nn.Sequential(nn.Conv3d(2, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv3d(8, 8, 3, groups=8))
    volume = nn.Sequential(*volume, nn.Conv3d(8, 4, 1, stride=2), nn.Flatten(), nn.Linear(32, CLASSES))
    check(volume, (torch.randn(5, 2, 6, 6, 6, generator=chance),), answers(chance, 5), kernels)


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.body(torch.relu(self.body(values))))


class Scaled(nn.Module):
    """A module with its own parameters, which only the generic layer supports."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.randn(12)), nn.Linear(12, 12)

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values * self.scale)


class Recurrent(nn.Module):
    """A network with an LSTM, which vmap doesn't support: its samples are run one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(12, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.body(values.unflatten(1, (3, 4)).repeat(1, 1, 3))[0][:, -1])


@pytest.mark.filterwarnings("ignore:.*no rule")
@pytest.mark.parametrize("make", [Reused, lambda: nn.Sequential(nn.Linear(12, 12), Scaled(), Reused()), Recurrent])
def test_reused_and_unknown_modules_match_the_definition(make):
    chance = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    check(make(), (torch.randn(6, 12, generator=chance),), answers(chance, 6), False)


def test_the_generic_layer_warns_once(recwarn):
    from rigdyno.engines.dp.layers.common import generic

    generic._warned.clear()
    chance = torch.Generator().manual_seed(0)
    inputs, target = (torch.randn(4, 12, generator=chance),), answers(chance, 4)
    for _ in range(2):
        engine_sum(nn.Sequential(Scaled(), Reused()), inputs, target, 1.0)
    said = [str(warning.message) for warning in recwarn if "slower" in str(warning.message)]
    assert len(said) == 1
    assert "Scaled" in said[0]


@pytest.mark.filterwarnings("ignore:.*no rule")
def test_dropout_in_a_generic_module_is_the_same_in_forward_and_backward():
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(200))

        def forward(self, values: Tensor) -> Tensor:
            return functional.dropout(values * self.scale, 0.5, training=True).sum(dim=1, keepdim=True)

    network, inputs = Dropping(), torch.ones(8, 200)
    from dp_naive import wired

    network, clipping = wired(network, None, False)
    found = network(inputs)
    found.sum().backward()
    # With inputs and scale of one, a gradient is the mask, and the output is its sum.
    assert float(clipping.gradients.flat.sum()) == pytest.approx(float(found.detach().sum()))


@pytest.mark.parametrize("kernels", ROUTES)
@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_micro_batches_and_reductions_are_exact(kernels, pieces, reduction):
    chance = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))
    check(network, (images(chance, 7, 3, 8),), answers(chance, 7), kernels, pieces=pieces, reduction=reduction)


def test_frozen_parameters_are_left_out():
    chance = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, CLASSES))
    network[0].weight.requires_grad_(False)
    network[1].bias.requires_grad_(False)
    network[3].bias.requires_grad_(False)
    check(network, (images(chance, 5, 3, 8),), answers(chance, 5), False)


class Two(nn.Module):
    """A network with several inputs, one of them by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, CLASSES), nn.Linear(3, CLASSES)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.first(one) + self.second(other)


def test_several_inputs_match_the_definition():
    chance = torch.Generator().manual_seed(0)
    inputs = (torch.randn(6, 4, generator=chance), torch.randn(6, 3, generator=chance))
    check(Two(), inputs, answers(chance, 6), False)


def test_float64_is_exact_to_its_own_precision():
    chance = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, CLASSES)).double()
    inputs, target = (torch.randn(6, 6, generator=chance, dtype=torch.float64),), answers(chance, 6)
    gradients = naive_gradients(network, inputs, target)
    found = engine_sum(network, inputs, target, 1e9)
    assert_close(found, naive_sum(gradients, 1e9), within=1e-12)


@pytest.mark.skipif(True not in ROUTES, reason="no kernels here")
def test_two_threads_give_the_same_sum_as_one():
    chance = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    body = [
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
    ]
    network = nn.Sequential(*body, nn.Flatten(), nn.Linear(128, CLASSES))
    inputs, target = (images(chance, 9, 3, 8),), answers(chance, 9)
    one = engine_sum(network, inputs, target, 1.0, kernels=True)
    torch.set_num_threads(2)
    assert_close(engine_sum(network, inputs, target, 1.0, kernels=True), one, within=1e-6)


@pytest.mark.parametrize("kernels", ROUTES)
def test_training_without_a_clipping_norm_is_plain(kernels):
    chance = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(144, CLASSES))
    inputs, target = (images(chance, 5, 3, 8),), answers(chance, 5)
    plain = torch.autograd.grad(functional.cross_entropy(network(*inputs), target), list(network.parameters()))
    found = engine_sum(network, inputs, target, None, kernels)
    assert_close(found, torch.cat([gradient.flatten() for gradient in plain]).double(), within=1e-6)
