"""Compare the kernels with the definition, computed by torch in double precision; and test that they are loaded once,
before the first step."""

from __future__ import annotations

import copy
import itertools
import types

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("numba")

from rigdyno.engines.dp import GivenBatches, PrivacyEngine
from rigdyno.engines.dp.gradients.clipping import Clipping, ClippingNorm
from rigdyno.engines.dp.gradients.contributions import KernelNorms, PerSample, rounding_share
from rigdyno.engines.dp.kernels import Kernel, convolution, depthwise, gram, group_norm, layer_norm, noise
from rigdyno.engines.dp.kernels import sums as norms
from rigdyno.engines.dp.kernels.loading import find_code_pages
from rigdyno.engines.dp.layers import LayerCall, PrivateLayer
from rigdyno.engines.dp.layers import conv as _depthwise
from rigdyno.engines.dp.layers.common import recompute
from rigdyno.engines.dp.layers.common.patches import Geometry, build_by_kernel, kernel_is_cheaper
from rigdyno.engines.dp.layers.conv import depthwise_by_kernel
from rigdyno.engines.dp.layers.group_norm import run_fused
from rigdyno.engines.dp.layers.layer_norm import _backward_by_kernel

CLOSE = 3e-6  # relative to the largest value

CONVOLUTIONS = [  # samples, channels, height, width, outputs, kernel, stride, padding
    (3, 1, 28, 28, 16, (8, 8), (2, 2), (3, 3)),
    (2, 3, 17, 11, 10, (7, 5), (2, 1), (3, 0)),
    (2, 16, 13, 13, 32, (4, 4), (2, 2), (0, 0)),
    (1, 5, 6, 9, 17, (3, 2), (1, 3), (1, 2)),
    (2, 2, 32, 32, 33, (3, 3), (1, 1), (1, 1)),
    (0, 3, 8, 8, 4, (3, 3), (1, 1), (1, 1)),
]


NORMED = [  # samples, channels, height, width, groups
    (5, 32, 16, 16, 32),
    (2, 96, 8, 8, 32),
    (3, 24, 6, 4, 24),
    (9, 40, 4, 4, 20),
    (2, 150, 7, 7, 10),
    (3, 1152, 1, 1, 32),
    (2, 513, 2, 2, 1),
    (2, 3, 13, 1, 3),
    (0, 16, 4, 4, 4),
]


@pytest.mark.parametrize("activation", [None, nn.SiLU, nn.ReLU])
@pytest.mark.parametrize("case", NORMED)
def test_group_norm_kernels_match_torch_and_give_per_sample_gradients(case, activation):
    samples, channels, height, width, groups = case
    torch.manual_seed(0)
    norm = nn.GroupNorm(groups, channels)
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    reported: list[tuple[object, Tensor, Tensor]] = []
    anchor = torch.zeros((), requires_grad=True)
    call = types.SimpleNamespace(module=norm, anchor=anchor, add_sums=lambda *sums: reported.extend(sums))
    given = (torch.randn(samples, channels, height, width) + 3).to(memory_format=torch.channels_last).requires_grad_()
    found = run_fused(given, call, activation)  # type: ignore[arg-type]
    gradient = torch.randn(found.shape)
    (back,) = torch.autograd.grad(found, given, gradient)
    exact, inputs = norm.double(), given.detach().double().requires_grad_()
    answers = (activation or nn.Identity)()(exact(inputs))
    assert answers.shape == found.shape
    assert back.shape == inputs.shape
    if samples == 0:
        return
    assert _distance(found.detach(), answers.detach()) < CLOSE
    close = 10 * CLOSE  # the mean is rounded to single precision, and sums over few positions cancel
    assert _distance(back, torch.autograd.grad(answers, inputs, gradient.double(), retain_graph=True)[0]) < close
    for (parameter, sums, squared), weight in zip(reported, (exact.weight, exact.bias), strict=True):
        assert parameter is weight
        for sample in range(samples):
            own = torch.zeros_like(gradient).double()
            own[sample] = gradient[sample]
            # Not the weight's alone: torch's own backward then crashes for channels-last maps.
            _, true = torch.autograd.grad(answers, (inputs, weight), own, retain_graph=True)
            assert _distance(sums[sample], true) < close
            assert float(squared[sample]) == pytest.approx(float(true.square().sum()), rel=close)


DEPTHWISE = [  # samples, channels, height, width, kernel, stride, padding, dilation
    (3, 32, 16, 16, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 144, 8, 8, (5, 5), (2, 2), (2, 2), (1, 1)),
    (2, 113, 4, 5, (5, 3), (1, 2), (2, 1), (1, 1)),
    (2, 20, 1, 1, (5, 5), (1, 1), (2, 2), (1, 1)),
    (1, 3, 9, 11, (2, 4), (3, 2), (0, 3), (2, 1)),
    (2, 17, 10, 7, (3, 3), (2, 3), (4, 2), (4, 3)),
    (2, 70, 7, 9, (3, 2), (4, 2), (1, 0), (2, 3)),
    (1, 16, 5, 5, (1, 1), (3, 3), (0, 0), (1, 1)),
    (2, 2, 2, 2, (3, 3), (4, 4), (3, 3), (1, 1)),
    (0, 16, 8, 8, (3, 3), (1, 1), (1, 1), (1, 1)),
]


class TestRecomputedMap:
    """A depthwise convolution keeps the recipe of its map instead of the map."""

    @pytest.mark.parametrize("activation", [nn.SiLU, nn.ReLU])
    @pytest.mark.parametrize("case", [case for case in DEPTHWISE if case[0]])
    def test_clipped_sums_are_bitwise_equal_and_the_map_is_not_kept(self, case, activation, monkeypatch):
        samples, channels, height, width, kernel, *steps = case
        torch.manual_seed(0)
        groups = next(count for count in range(min(8, channels), 0, -1) if channels % count == 0)
        conv = nn.Conv2d(channels, channels, kernel, *steps, groups=channels)
        chain = nn.Sequential(nn.GroupNorm(groups, channels), activation(), conv)
        given = torch.randn(samples, channels, height, width)
        kept, kept_floats = _clipped_sums(chain, given, monkeypatch, again=False)
        made, made_floats = _clipped_sums(chain, given, monkeypatch, again=True)
        assert all(torch.equal(one, other) for one, other in zip(kept, made, strict=True))
        assert made_floats == kept_floats - given.numel()

    def test_a_map_changed_in_place_has_no_recipe(self):
        made, recipe = torch.ones(4), recompute.Recipe((), torch.ones(1), torch.ones(1), 0)
        recompute.attach_recipe(made, recipe)
        assert recompute.find_recipe(made) is recipe
        made.mul_(2)
        assert recompute.find_recipe(made) is None


def _clipped_sums(network: nn.Module, given: Tensor, monkeypatch, again: bool) -> tuple[list[Tensor], int]:
    """Return the clipped sums, and the number of floats of maps that were kept for backward."""
    monkeypatch.setattr(_depthwise, "find_recipe", recompute.find_recipe if again else lambda made: None)
    engine, storages = PrivacyEngine(generator=torch.Generator().manual_seed(1)), {}
    network = copy.deepcopy(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    batches = GivenBatches([(given,)] * 2, expected_batch=len(given))
    network, optimizer, loader = engine.make_private_with_batches(
        module=network, optimizer=optimizer, batches=batches, noise_multiplier=1.0, max_grad_norm=1.0
    )

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dim() > 2 and tensor.numel() == given.numel():
            storages[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    for (inputs,) in loader:
        optimizer.zero_grad()
        storages.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = network(inputs).square().flatten(1).sum(dim=1).mean()
        loss.backward()
        optimizer.step()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    return gradients, sum(storages.values())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", DEPTHWISE)
def test_depthwise_kernels_give_outputs_both_gradients_and_norms(case, threads):
    samples, channels, height, width, kernel, *steps = case
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, channels, kernel, *steps, groups=channels)
    reported: list[tuple[object, PerSample]] = []
    call = types.SimpleNamespace(
        anchor=torch.zeros((), requires_grad=True),
        is_trained=lambda parameter: True,
        add=lambda parameter, contribution: reported.append((parameter, contribution)),
    )
    given = torch.randn(samples, channels, height, width).to(memory_format=torch.channels_last).requires_grad_()
    with _Threads(threads):
        found = depthwise_by_kernel(call, given, Geometry.from_module(layer), (layer.weight, layer.bias))  # type: ignore[arg-type]
        gradient = torch.randn(found.shape)
        (back,) = torch.autograd.grad(found, given, gradient)
    exact = layer.double()
    inputs = given.detach().double().requires_grad_()
    answers = exact(inputs)
    assert answers.shape == found.shape
    if samples == 0:
        return
    assert _distance(found.detach(), answers.detach()) < CLOSE
    assert _distance(back, torch.autograd.grad(answers, inputs, gradient.double(), retain_graph=True)[0]) < CLOSE
    weights = reported[0][1]
    for sample in range(samples):
        own = torch.zeros_like(gradient).double()
        own[sample] = gradient[sample]
        (true,) = torch.autograd.grad(answers, exact.weight, own, retain_graph=True)
        assert _distance(weights.per_sample()[sample], true) < CLOSE
        assert weights.squared_norms(KernelNorms())[sample] == pytest.approx(float(true.square().sum()), rel=CLOSE)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_the_convolution_kernel_gives_per_sample_gradients_and_norms(case, threads):
    samples, channels, height, width, outputs, kernel, stride, padding = case
    torch.manual_seed(0)
    weight = torch.randn(outputs, channels, *kernel)
    inputs = torch.randn(samples, channels, height, width).to(memory_format=torch.channels_last)
    geometry = Geometry(kernel, stride, padding, (1, 1), 1)
    gradient = torch.randn(samples, outputs, *geometry.output_size(inputs.shape[2:]))
    with _Threads(threads):
        found = build_by_kernel(geometry, inputs, gradient, weight)
    for sample in range(samples):
        pair = inputs[sample : sample + 1].double(), gradient[sample : sample + 1].double()
        true = torch.nn.grad.conv2d_weight(pair[0], weight.shape, pair[1], stride, padding)
        assert _distance(found.per_sample()[sample], true) < CLOSE
        assert found.squared_norms(KernelNorms())[sample] == pytest.approx(float(true.square().sum()), rel=CLOSE)


def test_gradients_of_the_convolution_kernel_give_the_weighted_sum():
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 10, 5, 2, 2, bias=False).double()
    inputs, weights = torch.randn(4, 3, 15, 15), torch.rand(4)
    gradient = torch.randn(4, 10, 8, 8)
    found = build_by_kernel(Geometry.from_module(layer), inputs, gradient, layer.weight.detach().float())
    into = torch.zeros(10, 3, 5, 5).to(memory_format=torch.channels_last)
    found.add_weighted(weights, into, beta=0.0)
    (layer(inputs.double()) * gradient * weights.view(-1, 1, 1, 1)).sum().backward()
    assert _distance(into, layer.weight.grad) < CLOSE


def test_the_convolution_kernel_is_used_only_where_it_applies():
    gradient, weight = torch.empty(1, 8, 16, 16, device="meta"), torch.empty(8, 2, 3, 3, device="meta")

    def wanted(**changed: object) -> bool:
        fields = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, **changed}
        return kernel_is_cheaper(Geometry(**fields), gradient, weight)

    assert wanted()
    assert not wanted(dilation=(1, 2))
    assert not wanted(groups=2)
    assert not wanted(kernel=(3, 3, 3))
    far = torch.empty(1, 8, 64, 64, device="meta")
    assert not kernel_is_cheaper(Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1), far, weight)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("terms", "width", "height"), [(1, 20, 7), (2, 16, 16), (5, 13, 35), (25, 256, 32), (131, 48, 5)]
)
def test_the_gram_kernel_gives_a_close_upper_bound_of_the_norm(terms, width, height, threads):
    torch.manual_seed(0)
    inputs, gradients = torch.randn(3, terms, width), torch.randn(3, terms, height)
    with _Threads(threads):
        found = KernelNorms().compute_products(inputs, gradients)
    true = (gradients.double().mT @ inputs.double()).square().sum(dim=(1, 2))
    energy = inputs.double().square().sum(dim=(1, 2)) * gradients.double().square().sum(dim=(1, 2))
    slack = 0.0 if terms == 1 else rounding_share(inputs, gradients) * energy
    assert bool((found >= true * (1 - 1e-6)).all())
    assert torch.allclose(found, true + slack, rtol=1e-5)


def test_the_gram_kernel_detects_values_that_are_not_finite():
    inputs, gradients = torch.ones(2, 6, 40), torch.ones(2, 6, 5)
    inputs[1, 5, 39] = torch.nan
    found = KernelNorms().compute_products(inputs, gradients)
    assert bool(torch.isfinite(found[0]))
    assert not bool(torch.isfinite(found[1]))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(3, 7, 20), (2, 33), (2, 3, 5, 16), (0, 4, 8)])
def test_the_layer_norm_kernel_matches_torch_and_gives_per_sample_gradients(shape, threads):
    torch.manual_seed(0)
    norm = nn.LayerNorm(shape[-1])
    nn.init.normal_(norm.weight)
    inputs, gradient = 3 + 2 * torch.randn(shape), torch.randn(shape)
    _, mean, rstd = torch.native_layer_norm(inputs, [shape[-1]], norm.weight, norm.bias, norm.eps)
    clipping = Clipping(list(norm.named_parameters()), ClippingNorm(1.0), kernels=True)
    reported: dict[int, PerSample] = {}
    current_pass = types.SimpleNamespace(add=lambda parameter, sums: reported.__setitem__(id(parameter), sums))
    with _Threads(threads):
        back = _backward_by_kernel(
            LayerCall(PrivateLayer(norm, "norm", clipping), current_pass), inputs, gradient, mean, rstd
        )
    exact = norm.double()
    for sample in range(shape[0]):
        one = inputs[sample].double().requires_grad_()
        found = torch.autograd.grad((exact(one) * gradient[sample]).sum(), (one, exact.weight, exact.bias))
        assert _distance(back[sample], found[0]) < CLOSE
        for parameter, true in ((norm.weight, found[1]), (norm.bias, found[2])):
            assert _distance(reported[id(parameter)].per_sample()[sample], true) < CLOSE
            squared = reported[id(parameter)].squared_norms(KernelNorms())[sample]
            assert squared == pytest.approx(float(true.square().sum()), rel=CLOSE)


def test_all_kernels_of_a_network_are_loaded_before_its_first_step():
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.Conv2d(8, 4, 1), nn.Flatten(), nn.LayerNorm(4 * 64), nn.Linear(4 * 64, 2),
    )  # fmt: skip
    loader = DataLoader(TensorDataset(torch.randn(16, 3, 8, 8), torch.zeros(16, dtype=torch.int64)), batch_size=16)
    network, optimizer, loader = PrivacyEngine(kernels=True).make_private(
        module=network, optimizer=torch.optim.SGD(network.parameters(), lr=0.1), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    before = _signatures()
    inputs, answers = next(iter(loader))
    functional.cross_entropy(network(inputs), answers).backward()
    optimizer.step()
    assert _signatures() == before
    assert all(count >= 1 for name, count in before.items() if "double" not in name)


def test_only_unchanged_code_pages_are_returned():
    lines = [
        ("1000-3000 r-xp 00000000 08:01 1 /x/libllvmlite.so", 0, 0),
        ("3000-4000 r-xp 00002000 08:01 1 /x/libllvmlite.so", 4, 4),
        ("4000-5000 r--p 00003000 08:01 1 /x/libllvmlite.so", 0, 0),
        ("4800-5000 r--p 00003000 08:01 1 /x/libllvmlite.so", 0, 4),
        ("5000-6000 rw-p 00004000 08:01 1 /x/libllvmlite.so", 0, 0),
        ("6000-7000 r-xp 00000000 08:01 2 /x/libtorch.so", 0, 0),
    ]
    smaps = "\n".join(
        f"{head}\nRss: 8 kB\nPrivate_Dirty: {dirty} kB\nAnonymous: {own} kB" for head, dirty, own in lines
    )
    assert find_code_pages(smaps) == [(0x1000, 0x3000), (0x4000, 0x5000)]


def _signatures() -> dict[str, int]:
    modules: list[types.ModuleType] = [convolution, depthwise, gram, group_norm, layer_norm, noise, norms]
    pairs = itertools.chain.from_iterable(((module, *item) for item in vars(module).items()) for module in modules)
    found = {f"{module.__name__}.{name}": made for module, name, made in pairs if isinstance(made, Kernel)}
    variant = "parallel" if torch.get_num_threads() > 1 else "serial"
    return {name: len(getattr(made, variant).signatures) for name, made in found.items()}


def _distance(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true).abs().max() / true.abs().max())


class _Threads:
    def __init__(self, count: int) -> None:
        self._count, self._before = count, torch.get_num_threads()

    def __enter__(self) -> None:
        torch.set_num_threads(self._count)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)
