"""Modules of every kind: their per-sample gradients match the definition, or they are refused with a one-line error."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from dp_naive import assert_close, engine_sum, naive_gradients, naive_sum, wired
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import BadSetting, MixesSamples, PrivacyEngine, PrivacyError, Unprotected, replace_batch_norm
from rigdyno.engines.dp.checks.validate import check_network
from rigdyno.engines.dp.kernels import explain_unavailable

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*no rule", "ignore:.*deprecated", "ignore:.*vmap", "ignore:.*performance"
)

ROUTES = [False, *([True] if explain_unavailable() is None else [])]
CLASSES, SAMPLES = 5, 6


def check(net: nn.Module, inputs: Tensor | tuple[Tensor, ...], kernels: bool = False) -> None:
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    target = torch.randint(CLASSES, (len(inputs[0]),))
    gradients = naive_gradients(net, inputs, target)
    bound = sorted(float(gradient.norm()) for gradient in gradients)[len(target) // 2] * 1.01
    assert_close(engine_sum(net, inputs, target, bound, kernels), naive_sum(gradients, bound))


def private(net: nn.Module, inputs: Tensor):
    """Make a network private as a user would, with all labels zero."""
    engine, optimizer = PrivacyEngine(), torch.optim.SGD(net.parameters(), lr=1.0)
    data = TensorDataset(inputs, torch.zeros(len(inputs), dtype=torch.long))
    loader = DataLoader(data, batch_size=len(inputs))
    made = engine.make_private(
        module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    return engine, *made


def head(width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(width, CLASSES))


class Adapted(nn.Module):
    """A frozen layer with two small ones in parallel."""

    def __init__(self, modules: bool) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        if modules:
            self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        else:
            self.a, self.b = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(8, 2))

    def forward(self, values: Tensor) -> Tensor:
        if hasattr(self, "down"):
            return self.base(values) + 0.5 * self.up(self.down(values))
        return self.base(values) + 0.5 * values @ self.a.T @ self.b.T


class Twice(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        if tied:
            self.two.weight = self.one.weight

    def forward(self, values: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(torch.tanh(self.one(values)))))


class Mapped(nn.Module):
    """A network with the user's own vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.randn(8)), nn.Linear(8, 8)

    def forward(self, values: Tensor) -> Tensor:
        return torch.vmap(lambda row: row * self.scale)(values) + self.layer(values)


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(8, 8, 8)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values, values.flip(1))


class Named(nn.Module):
    """A network that calls its layers by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, values: Tensor) -> Tensor:
        return self.norm(input=self.layer(input=values))


class TwoAnswers(nn.Module):
    """A module with two outputs, one of which is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TwoAnswersInside()

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values)["found"]


class TwoAnswersInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, values: Tensor) -> dict[str, object]:
        return {"nothing": None, "found": values * self.scale, "name": "scaled"}


FLAT = {
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(8, 8)),
    "weight norm without bias": lambda: parametrizations.weight_norm(nn.Linear(8, 8, bias=False)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(8, 8)),
    "group norm": lambda: nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.ReLU()),
    "batch norm replaced": lambda: replace_batch_norm(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())),
    "batch norm in eval mode": lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8).eval()),
    "adapters as modules": lambda: Adapted(True),
    "adapters as parameters": lambda: Adapted(False),
    "twice": lambda: Twice(False),
    "tied": lambda: Twice(True),
    "vmap inside": Mapped,
    "bilinear": Bilinear,
    "by keyword": Named,
    "answers that are no tensors": TwoAnswers,
    "a PReLU": lambda: nn.Sequential(nn.Linear(8, 8), nn.PReLU()),
    "no affine": lambda: nn.Sequential(
        nn.Linear(8, 8), nn.LayerNorm(8, elementwise_affine=False), nn.GroupNorm(2, 8, affine=False)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAT)
def test_modules_over_rows_match_the_definition(name):
    torch.manual_seed(0)
    check(nn.Sequential(FLAT[name](), head(8)), torch.randn(SAMPLES, 8))


def test_a_forward_set_by_the_user_is_used():
    """A copy of the network would still call the original's forward, so the result is compared with a layer that scales
    the weight itself."""
    torch.manual_seed(0)
    inputs, target = torch.randn(SAMPLES, 8), torch.randint(CLASSES, (SAMPLES,))
    net = nn.Linear(8, CLASSES)

    class Doubled(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            return functional.linear(values, self.weight * 2, self.bias)

    same = Doubled(8, CLASSES)
    same.load_state_dict(net.state_dict())
    net.forward = lambda values: functional.linear(values, net.weight * 2, net.bias)
    from rigdyno.engines.dp.gradients.clipping import Clipping, ClippingNorm
    from rigdyno.engines.dp.training import Wiring

    clipping = Clipping(list(net.named_parameters()), ClippingNorm(0.5))
    wiring = Wiring(net, clipping)
    functional.cross_entropy(net(inputs), target).backward()
    assert_close(clipping.take_sum().double(), naive_sum(naive_gradients(same, (inputs,), target), 0.5))
    own = net.forward
    wiring.undo()
    assert net.forward is not own
    assert torch.equal(net(inputs), same(inputs))


MAPS = {
    "transposed convolution": lambda: nn.ConvTranspose2d(3, 4, 3),
    "unfold": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Unfold(2)),
    "pixel shuffle": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2)),
    "instance norm": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("layout", ["plain", "channels last", "expanded", "strided"])
def test_modules_over_maps_match_the_definition(name, layout):
    torch.manual_seed(0)
    inputs = {
        "plain": torch.randn(SAMPLES, 3, 6, 6),
        "channels last": torch.randn(SAMPLES, 3, 6, 6).to(memory_format=torch.channels_last),
        "expanded": torch.randn(SAMPLES, 3, 6, 1).expand(-1, -1, -1, 6),
        "strided": torch.randn(SAMPLES, 3, 12, 12)[:, :, ::2, ::2],
    }[layout]
    with torch.no_grad():
        width = MAPS[name]()(inputs).flatten(1).shape[1]
    check(nn.Sequential(MAPS[name](), head(width)), inputs)


class Walking(nn.Module):
    """Calls the modules of its nn.Sequential itself, so that a norm and its activation aren't run together."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
        )
        self.how = how

    def forward(self, values: Tensor) -> Tensor:
        if self.how == "walks":
            for module in self.body:
                values = module(values)
            return values
        if self.how == "slices":
            return self.body[2:](self.body[:2](values))
        if self.how == "between":
            values = self.body[1](self.body[0](values)) - 0.3
            return self.body[2:](values)
        return self.body(values)


@pytest.mark.parametrize("kernels", ROUTES)
@pytest.mark.parametrize("how", ["walks", "slices", "between", "calls"])
def test_iterating_over_a_sequential_matches_the_definition(how, kernels):
    torch.manual_seed(0)
    check(Walking(how), torch.randn(SAMPLES, 3, 6, 6), kernels)


@pytest.mark.parametrize("kernels", ROUTES)
def test_hooks_on_a_norm_or_its_activation_get_their_outputs(kernels):
    torch.manual_seed(0)
    net, _ = wired(Walking("calls"), 1.0, kernels)
    heard = {}
    for number in (1, 2):
        net.body[number].register_forward_hook(lambda module, args, found, n=number: heard.update({n: found.detach()}))
    net(torch.randn(SAMPLES, 3, 6, 6))
    assert torch.equal(heard[2], heard[1].relu())
    assert float(heard[1].min()) < 0


@pytest.mark.parametrize("kernels", ROUTES)
def test_group_norm_over_rows_matches_the_definition(kernels):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    check(net, torch.randn(SAMPLES, 8), kernels)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(11, 8), nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.bag(tokens))


def test_embedding_bags_match_the_definition():
    torch.manual_seed(0)
    check(Bag(), torch.randint(11, (SAMPLES, 4)))


class Passed(nn.Module):
    """A network that passes a parameter as an argument, or uses it outside of its module."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.fc, self.inner, self.how = nn.Linear(8, CLASSES), TakesWeight(), how

    def forward(self, values: Tensor) -> Tensor:
        if self.how == "functional":
            return functional.linear(values, self.fc.weight, self.fc.bias)
        return self.inner(values, self.fc.weight)


class TakesWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, values: Tensor, weight: Tensor) -> Tensor:
        return (values * self.scale) @ weight.T


@pytest.mark.parametrize("how", ["functional", "argument"])
@pytest.mark.parametrize("samples", [CLASSES, 7])
def test_parameters_used_outside_their_module_are_refused(how, samples):
    net, clipping = wired(Passed(how), 1.0, False)
    loss = functional.cross_entropy(net(torch.randn(samples, 8)), torch.zeros(samples, dtype=torch.long))

    def train() -> None:
        loss.backward()
        clipping.check_before_step()

    with pytest.raises(Unprotected, match=r"fc\.(weight|bias)"):
        train()


def scripted() -> nn.Module:
    return torch.jit.script(nn.Linear(8, 8))


REFUSED = {
    "weight norm of the old style": (lambda: nn.utils.weight_norm(nn.Linear(8, 8)), "parametrizations.weight_norm"),
    "spectral norm of the old style": (lambda: nn.utils.spectral_norm(nn.Linear(8, 8)), "a hook computes its weight"),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(8, 8)), "remove_parametrizations"),
    "pruned": (lambda: prune.random_unstructured(nn.Linear(8, 8), "weight", 0.5), r"prune\.remove"),
    "scripted": (scripted, "scripted"),
    "lazy": (lambda: nn.LazyLinear(8), "once on a batch"),
    "batch norm": (lambda: nn.BatchNorm1d(8), "replace_batch_norm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_modules_are_refused(name):
    make, words = REFUSED[name]
    with pytest.raises(PrivacyError, match=words):
        check_network(nn.Sequential(make(), head(8)))


def test_compiled_modules_are_refused():
    with pytest.raises(BadSetting, match=r"torch\.compile"):
        check_network(nn.Sequential(torch.compile(nn.Linear(8, 8)), head(8)))


def test_permanent_pruning_is_accepted():
    torch.manual_seed(0)
    pruned = prune.random_unstructured(nn.Linear(8, 8), "weight", 0.5)
    prune.remove(pruned, "weight")
    check(nn.Sequential(pruned, head(8)), torch.randn(SAMPLES, 8))


def test_a_parametrization_stays_in_place():
    net, _ = wired(nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), head(8)), 1.0, False)
    net(torch.randn(SAMPLES, 8))
    assert parametrize.is_parametrized(net[0])


def test_a_weight_that_another_network_computes_is_refused():
    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker, self.made = nn.Linear(1, 64), nn.Linear(8, 8)
            del self.made.weight

        def forward(self, values: Tensor) -> Tensor:
            self.made.weight = self.maker(values[:1, :1]).view(8, 8)
            return self.made(values)

    net, _ = wired(nn.Sequential(Hyper(), head(8)), 1.0, False)
    with pytest.raises(PrivacyError):
        net(torch.randn(SAMPLES, 8))


def test_a_frozen_norm_in_train_mode_is_refused():
    net, _ = wired(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8).eval(), head(8)), 1.0, False)
    net(torch.randn(SAMPLES, 8))
    net.train()
    with pytest.raises(MixesSamples, match=r"1 \(BatchNorm1d\) was in eval mode"):
        net(torch.randn(SAMPLES, 8))


def test_autocast_is_refused_in_one_line():
    net, _ = wired(head(8), 1.0, False)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(BadSetting, match="autocast"):
        net(torch.randn(SAMPLES, 8))


# Copies


def copies(net: nn.Module) -> list[nn.Module]:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return [copy.deepcopy(net), torch.load(file, weights_only=False)]


def test_copies_compute_as_plain_networks_and_cannot_be_trained():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.ReLU(), Adapted(False), head(8))
    inputs = torch.randn(SAMPLES, 8)
    expected = plain(inputs).detach()
    _, net, _, _ = private(copy.deepcopy(plain), inputs)
    for other in copies(net):
        with torch.no_grad():
            assert torch.allclose(other(inputs), expected, atol=1e-5)
        found = other(inputs)
        assert torch.allclose(found, expected, atol=1e-5)
        with pytest.raises(Unprotected, match="copy of a private network"):
            found.sum().backward()
        other.requires_grad_(False)
        assert not other(inputs).requires_grad


def test_a_copy_can_be_made_private_itself():
    inputs = torch.randn(SAMPLES, 8)
    _, net, _, _ = private(nn.Sequential(nn.Linear(8, 8), head(8)), inputs)
    engine, other, optimizer, loader = private(copy.deepcopy(net), inputs)
    for values, labels in loader:
        functional.cross_entropy(other(values), labels).backward()
        optimizer.step()
    engine.release()
    assert "forward" not in vars(other[0])


def test_a_private_network_can_become_double_precision():
    inputs = torch.randn(40, 8)
    _, net, optimizer, loader = private(nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.ReLU(), head(8)), inputs)
    net.double()
    for values, labels in loader:
        functional.cross_entropy(net(values.double()), labels).backward()
        optimizer.step()
    assert net[0].weight.grad.dtype == torch.float64


def test_modules_called_one_by_one_match_the_definition():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 8), Adapted(False), head(8))
    inputs, target = torch.randn(SAMPLES, 8), torch.randint(CLASSES, (SAMPLES,))
    expected = naive_sum(naive_gradients(plain, (inputs,), target), 0.3)
    net, clipping = wired(plain, 0.3, False)
    functional.cross_entropy(net[2](net[1](net[0](inputs))), target).backward()
    assert_close(clipping.take_sum().double(), expected)


@pytest.mark.parametrize("channels", [8, 37, 64])
def test_group_norm_instead_of_batch_norm_keeps_information_of_rows(channels):
    """With one group per channel its output would be its shift alone."""
    norm = replace_batch_norm(nn.Sequential(nn.BatchNorm1d(channels)))
    with torch.no_grad():
        assert float(norm(torch.randn(SAMPLES, channels)).std(dim=0).min()) > 1e-3


class Stateless(nn.Module):
    """Runs a layer with values computed from its parameters."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, head(8)

    def forward(self, values: Tensor) -> Tensor:
        twice = {name: 2 * parameter for name, parameter in self.inner.named_parameters()}
        return self.head(torch.func.functional_call(self.inner, twice, (values,)))


@pytest.mark.parametrize("make", [lambda: nn.Linear(8, 8), lambda: Adapted(True), lambda: Adapted(False)])
def test_substituted_parameters_of_a_layer_are_refused(make):
    net, _ = wired(Stateless(make()), 1.0, False)
    with pytest.raises(Unprotected, match="functional_call"):
        net(torch.randn(SAMPLES, 8))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_without_outputs_match_the_definition():
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.none, self.layer = nn.Linear(8, 0), nn.Linear(8, CLASSES)

        def forward(self, values: Tensor) -> Tensor:
            return self.layer(values) + self.none(values).sum(dim=1, keepdim=True)

    torch.manual_seed(0)
    check(Empty(), torch.randn(SAMPLES, 8))


def test_the_lstm_of_opacus_matches_the_definition():
    layers = pytest.importorskip("opacus.layers")

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = layers.DPLSTM(8, 4, batch_first=True), nn.Linear(4, CLASSES)

        def forward(self, values: Tensor) -> Tensor:
            found, (last, _) = self.body(values)
            return self.head(last[-1] + found[:, 0])

    torch.manual_seed(0)
    check(Recurrent(), torch.randn(SAMPLES, 3, 8))
