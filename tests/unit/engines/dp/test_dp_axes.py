"""The sample axis is given, or found by running with another number of samples; it never follows from a length."""

from __future__ import annotations

import copy

import pytest
import torch
from dp_naive import assert_close, naive_sum, trained, wired
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import BadSetting, MixesSamples, PrivacyEngine, PrivacyError

pytestmark = pytest.mark.filterwarnings("ignore:.*no rule", "ignore:.*nested tensor", "ignore:.*batch_first")

CLASSES, FEATURES = 3, 5
SIZES = [(4, 7), (7, 4), (6, 6), (2, 2)]  # samples and length; in two cases they are equal


def one_by_one(net: nn.Module, inputs: Tensor, axis: int, target: Tensor, shared: dict[str, Tensor]) -> list[Tensor]:
    """Return the gradient of each sample alone, in float64."""
    net = copy.deepcopy(net).double()
    parameters = [parameter for _, parameter in trained(net)]
    shared = {name: value.double() if value.is_floating_point() else value for name, value in shared.items()}
    found = []
    for row in range(len(target)):
        alone = inputs.narrow(axis, row, 1)
        alone = alone.double() if alone.is_floating_point() else alone
        loss = functional.cross_entropy(net(alone, **shared), target[row : row + 1])
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return found


def check(net: nn.Module, inputs: Tensor, axis: int = 0, kernels: bool = False, **shared: Tensor) -> None:
    samples = inputs.shape[axis]
    target = torch.randint(CLASSES, (samples,))
    gradients = one_by_one(net, inputs, axis, target, shared)
    bound = sorted(float(gradient.norm()) for gradient in gradients)[samples // 2] * 1.01
    net, clipping = wired(net, bound, kernels, batch_first=axis == 0)
    functional.cross_entropy(net(inputs, **shared), target).backward()
    assert_close(clipping.take_sum().double(), _flat(net, clipping, gradients, bound))


def _flat(net: nn.Module, clipping, gradients: list[Tensor], bound: float) -> Tensor:
    """Return the sum by the definition, in the memory order of the engine's buffer."""
    clipping.gradients.publish()
    expected, at = naive_sum(gradients, bound), 0
    order = torch.empty_like(clipping.gradients.flat).double()
    for _, parameter in trained(net):
        view = order.as_strided(parameter.shape, parameter.grad.stride(), parameter.grad.storage_offset())
        view.copy_(expected[at : at + parameter.numel()].view(parameter.shape))
        at += parameter.numel()
    return order


class SequenceFirst(nn.Module):
    """A network over (time, samples, features), the default of torch's recurrent layers."""

    def __init__(self, kind: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.before, self.body = nn.Linear(FEATURES, 4), kind(4, 4)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.norm(self.body(self.before(values))[0])[-1])


class Encoder(nn.Module):
    """Attention with its own axes. `turned`: the samples come first, and go second inside."""

    def __init__(self, turned: bool, batch_first: bool = False) -> None:
        super().__init__()
        self.turned = turned
        self.before = nn.Linear(FEATURES, 4)
        self.body = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=batch_first)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        values = self.before(values)
        found = self.body(values.transpose(0, 1) if self.turned else values, src_mask=mask)
        return self.head(found.mean(dim=1 if self.body.self_attn.batch_first else 0))


@pytest.mark.parametrize(("samples", "length"), SIZES)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_sequences_first_are_clipped_if_batch_first_is_false(samples, length, kind):
    torch.manual_seed(0)
    check(SequenceFirst(kind), torch.randn(length, samples, FEATURES), axis=1)


@pytest.mark.parametrize(("samples", "length"), SIZES)
def test_attention_with_sequences_first_is_clipped(samples, length):
    torch.manual_seed(0)
    check(Encoder(turned=False), torch.randn(length, samples, FEATURES), axis=1)
    check(Encoder(turned=True), torch.randn(samples, length, FEATURES), axis=0)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_sequences_first_are_refused_if_batch_first_is_true(kind):
    net, _ = wired(SequenceFirst(kind), 1.0, False)
    with pytest.raises(MixesSamples):
        net(torch.randn(6, 6, FEATURES))


class Pointwise(nn.Module):
    """A network that mixes along no axis: only the drawn batch shows which axis is that of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values)


def test_a_transposed_batch_is_refused():
    data = TensorDataset(torch.randn(40, 40, FEATURES))
    net = Pointwise()
    engine, optimizer = PrivacyEngine(), torch.optim.SGD(net.parameters(), lr=1.0)
    _, _, loader = engine.make_private(
        module=net, optimizer=optimizer, data_loader=DataLoader(data, batch_size=40), noise_multiplier=1.0,
        max_grad_norm=1.0,
    )  # fmt: skip
    (drawn,) = next(iter(loader))
    with pytest.raises(BadSetting, match="batch_first=False"):
        net(drawn.transpose(0, 1).contiguous())
    net(drawn)


class Positions(nn.Module):
    """A module with its own parameters, so it is run by the generic layer: it gets a (length, length) mask and a table
    with the samples."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(FEATURES))
        self.head = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("table", torch.randn(length, FEATURES))

    def forward(
        self, values: Tensor, mask: Tensor, weights: Tensor | None = None, factor: Tensor | None = None
    ) -> Tensor:
        values = mask @ (values * self.scale + self.table)
        found = self.head(values.mean(dim=1))
        found = found if weights is None else found * weights
        return found if factor is None else found * factor


@pytest.mark.parametrize(("samples", "length"), [(4, 7), (6, 6), (3, 3), (2, 2)])
def test_a_mask_as_long_as_the_batch_carries_no_samples(samples, length):
    torch.manual_seed(0)
    mask = torch.tril(torch.ones(length, length)) / length
    check(Positions(length), torch.randn(samples, length, FEATURES), mask=mask)


@pytest.mark.parametrize("samples", [2, 3, 5])
def test_class_weights_and_single_numbers_carry_no_samples(samples):
    torch.manual_seed(0)
    mask = torch.eye(4)
    check(
        Positions(4),
        torch.randn(samples, 4, FEATURES),
        mask=mask,
        weights=torch.rand(CLASSES),
        factor=torch.tensor(0.3),
    )


class Inside(nn.Module):
    """A network that makes the mask itself and passes it to the generic module."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), Positions(length)

    def forward(self, values: Tensor) -> Tensor:
        return self.second(self.first(values), torch.tril(values.new_ones(values.shape[1], values.shape[1])))


@pytest.mark.parametrize(("samples", "length"), [(4, 7), (6, 6)])
def test_a_mask_made_inside_the_network_carries_no_samples(samples, length):
    torch.manual_seed(0)
    check(Inside(length), torch.randn(samples, length, FEATURES))


def test_another_batch_may_have_the_length_of_a_mask():
    """Axes that were found with one batch size hold for the next."""
    torch.manual_seed(0)
    plain = Inside(6)
    net, clipping = wired(plain, 1e9, False, reduction="sum")
    for samples in (3, 6, 9):
        inputs, target = torch.randn(samples, 6, FEATURES), torch.randint(CLASSES, (samples,))
        expected = sum(one_by_one(plain, inputs, 0, target, {}))
        functional.cross_entropy(net(inputs), target, reduction="sum").backward()
        assert_close(clipping.take_sum().double(), expected)


class Numbered(nn.Module):
    """A network that looks up its positions once for the whole batch."""

    def __init__(self, expand: bool) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(9, 4), nn.Embedding(20, 4), nn.Linear(4, CLASSES)
        self.expand = expand

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        places = places.expand(len(tokens), -1) if self.expand else places
        return self.head((self.words(tokens) + self.places(places)).mean(dim=1))


@pytest.mark.parametrize(("samples", "length"), SIZES)
def test_positions_shared_by_all_samples_are_refused_unless_expanded(samples, length):
    torch.manual_seed(0)
    check(Numbered(expand=True), torch.randint(9, (samples, length)))
    net, _ = wired(Numbered(expand=False), 1.0, False)
    with pytest.raises(MixesSamples, match=r"places gets an input that is the same for all samples.*expand"):
        net(torch.randint(9, (samples, length)))


class LastState(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.body, self.head = (
            kind(FEATURES, 4, num_layers=2, batch_first=True, bidirectional=True),
            nn.Linear(4, CLASSES),
        )

    def forward(self, values: Tensor) -> Tensor:
        state = self.body(values)[1]
        return self.head((state[0] if isinstance(state, tuple) else state)[-1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("samples", "length"), [(5, 3), (4, 4)])
def test_the_last_state_of_a_recurrent_layer_is_clipped(kind, samples, length):
    torch.manual_seed(0)
    check(LastState(kind), torch.randn(samples, length, FEATURES))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(FEATURES, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(values, [values.shape[1]] * len(values), batch_first=True)
        return self.head(self.body(packed)[1][0][-1])


def test_packed_sequences_are_refused():
    net, _ = wired(Packed(), 1.0, False)
    with pytest.raises(PrivacyError, match="padded"):
        net(torch.randn(4, 3, FEATURES))


def test_a_network_with_a_fixed_batch_size_is_refused():
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(FEATURES, CLASSES)

        def forward(self, values: Tensor) -> Tensor:
            return self.layer(values.view(4, FEATURES))

    net, _ = wired(Fixed(), 1.0, False)
    with pytest.raises(BadSetting, match="another number of samples"):
        net(torch.randn(4, FEATURES))


class Attending(nn.Module):
    """A network whose attention looks across samples if the batch axis is missing or wrong."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.before, self.head = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)
        self.body, self.how = nn.MultiheadAttention(4, 2, batch_first=how != "second axis"), how

    def forward(self, values: Tensor) -> Tensor:
        values = self.before(values)
        values = values[:, 0] if self.how == "no axis" else values
        found = self.body(query=values, key=values, value=values)[0]
        return self.head(found if self.how == "no axis" else found.mean(dim=1))


@pytest.mark.parametrize("length", [6, 4])
@pytest.mark.parametrize("how", ["no axis", "second axis"])
def test_attention_across_samples_is_refused(how, length):
    net, _ = wired(Attending(how), 1.0, False)
    with pytest.raises(MixesSamples):
        net(torch.randn(6, length, FEATURES))


@pytest.mark.parametrize("length", [6, 4])
def test_attention_can_be_called_by_keyword(length):
    torch.manual_seed(0)
    check(Attending("first axis"), torch.randn(6, length, FEATURES))


class WithLengths(nn.Module):
    """A network over (time, samples, features), with a mask (samples, time) and a factor for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.head = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)
        self.body = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)

    def forward(self, values: Tensor, padding: Tensor, factor: Tensor) -> Tensor:
        found = self.body(self.before(values), src_key_padding_mask=padding)
        return self.head(found.mean(dim=0)) * factor[:, None]


@pytest.mark.parametrize(("samples", "length"), [(4, 7), (5, 5)])
def test_masks_along_the_first_axis_work_with_sequences_first(samples, length):
    torch.manual_seed(0)
    net, target = WithLengths(), torch.randint(CLASSES, (samples,))
    values, factor = torch.randn(length, samples, FEATURES), torch.rand(samples)
    padding = torch.arange(length)[None, :] > torch.arange(samples)[:, None]
    plain, found = copy.deepcopy(net).double(), []
    for row in range(samples):
        alone = plain(values[:, row : row + 1].double(), padding[row : row + 1], factor[row : row + 1].double())
        loss = functional.cross_entropy(alone, target[row : row + 1])
        gradients = torch.autograd.grad(loss, list(plain.parameters()))
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    bound = sorted(float(gradient.norm()) for gradient in found)[samples // 2] * 1.01
    net, clipping = wired(net, bound, False, batch_first=False)
    functional.cross_entropy(net(values, padding, factor), target).backward()
    assert_close(clipping.take_sum().double(), naive_sum(found, bound))
