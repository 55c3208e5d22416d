"""Test the engine as users use it: three lines, an unchanged loop, and a one-line error if it can't be private."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from dp_naive import naive_gradients, naive_sum
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import (
    BadSetting,
    GivenBatches,
    MixesSamples,
    NotFinite,
    PrivacyEngine,
    Spent,
    Unprotected,
    micro_batches,
    replace_batch_norm,
)

SAMPLES, FEATURES, BATCH, CLASSES = 400, 6, 40, 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def data(samples: int = SAMPLES) -> TensorDataset:
    chance = torch.Generator().manual_seed(3)
    inputs = torch.randn(samples, FEATURES, generator=chance)
    return TensorDataset(inputs, (inputs[:, :CLASSES]).argmax(dim=1))


def private(
    net: nn.Module, seed: int = 1, noise_multiplier: float = 1.0, max_grad_norm: float = 1.0, lr=1.0, **options
):
    """Make a network private. A batch is a tenth of the data."""
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(seed))
    loader = DataLoader(options.pop("dataset", None) or data(), batch_size=BATCH)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    made = engine.make_private(
        module=net,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        **options,
    )
    return engine, *made


def figures() -> dict[str, object]:
    return {"data_loader": DataLoader(data(), batch_size=BATCH), "noise_multiplier": 1.0, "max_grad_norm": 1.0}


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, answers: Tensor) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(net(inputs), answers).backward()
    optimizer.step()


def weights(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def test_a_private_network_learns():
    engine, net, optimizer, loader = private(network(), lr=0.5)
    for _ in range(10):
        for inputs, answers in loader:
            train_step(net, optimizer, inputs, answers)
    inputs, answers = data().tensors
    assert float((net(inputs).argmax(dim=1) == answers).float().mean()) > 0.8
    assert [(run.noise_multiplier, run.sample_rate, run.steps) for run in engine.ledger.spent] == [(1.0, 0.1, 100)]


def test_objects_stay_the_same_and_are_released_unchanged():
    net = network()
    names = list(net.state_dict())
    engine, same, optimizer, _ = private(net)
    assert same is net
    assert list(net.state_dict()) == names
    assert isinstance(torch.optim.lr_scheduler.StepLR(optimizer, 1), torch.optim.lr_scheduler.LRScheduler)
    engine.release()
    assert "forward" not in vars(net[0])
    functional.cross_entropy(net(torch.randn(4, FEATURES)), torch.zeros(4, dtype=torch.long)).backward()
    assert net[0].weight.grad is not None


def test_a_step_is_the_noisy_mean_of_clipped_gradients():
    """With almost no noise, a step is minus the learning rate times the clipped sum over the expected batch."""
    net = network()
    before, start = copy.deepcopy(net), weights(net)
    _, net, optimizer, loader = private(net, noise_multiplier=1e-9, max_grad_norm=0.3)
    inputs, answers = next(iter(loader))
    train_step(net, optimizer, inputs, answers)
    expected = naive_sum(naive_gradients(before, (inputs,), answers), 0.3) / BATCH
    assert torch.allclose(start - weights(net), expected.float(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kernels", [False, None])
def test_noise_is_sigma_times_the_norm_over_the_expected_batch(kernels):
    """With an empty batch only noise changes the weights; an error of one per cent would be detected."""
    net = nn.Linear(700, 300)
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(5), kernels=kernels)
    loader = DataLoader(TensorDataset(torch.randn(100, 700)), batch_size=20)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    engine.make_private(module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=2.0, max_grad_norm=0.5)
    start = weights(net)
    optimizer.step()
    moved = (start - weights(net)).double() * 20
    scale = 4 / math.sqrt(2 * len(moved))  # four standard errors of a standard deviation: 0.6 %
    assert float(moved.std()) == pytest.approx(1.0, rel=scale)
    assert float(moved.mean()) == pytest.approx(0.0, abs=4 / math.sqrt(len(moved)))


def test_the_same_seed_repeats_and_another_does_not():
    def trained(seed: int) -> Tensor:
        _, net, optimizer, loader = private(network(), seed=seed)
        for inputs, answers in loader:
            train_step(net, optimizer, inputs, answers)
        return weights(net)

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_secure_noise_does_not_repeat():
    def moved() -> Tensor:
        torch.manual_seed(0)
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        engine, loader = PrivacyEngine(secure=True), DataLoader(data(), batch_size=BATCH)
        engine.make_private(
            module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
        )
        optimizer.step()
        return weights(net)

    assert not torch.equal(moved(), moved())


def test_micro_batches_share_one_noise():
    def stepped(pieces: int) -> Tensor:
        _, net, optimizer, loader = private(network(), noise_multiplier=1.0)
        batch = next(iter(loader))
        optimizer.zero_grad()
        for inputs, answers in micro_batches(batch, pieces):
            functional.cross_entropy(net(inputs), answers).backward()
        optimizer.step()
        return weights(net)

    assert torch.allclose(stepped(1000), stepped(7), atol=1e-5)


def test_an_empty_batch_is_a_step_like_any_other():
    engine, net, optimizer, _ = private(network())
    start = weights(net)
    train_step(net, optimizer, torch.zeros(0, FEATURES), torch.zeros(0, dtype=torch.long))
    assert bool(torch.isfinite(weights(net)).all())
    assert not torch.equal(start, weights(net))
    assert engine.ledger.spent[0].steps == 1


def test_convolutions_accept_an_empty_batch():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 4, 1),
        nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, CLASSES),
    )  # fmt: skip
    dataset = TensorDataset(torch.randn(SAMPLES, 3, 6, 6), torch.zeros(SAMPLES, dtype=torch.long))
    _, net, optimizer, _ = private(net, dataset=dataset)
    train_step(net, optimizer, torch.zeros(0, 3, 6, 6), torch.zeros(0, dtype=torch.long))
    assert bool(torch.isfinite(weights(net)).all())


def test_cleared_gradients_are_not_released():
    net = network()
    start = weights(net)
    _, net, optimizer, loader = private(net, noise_multiplier=1e-9)
    inputs, answers = next(iter(loader))
    functional.cross_entropy(net(inputs), answers).backward()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.allclose(start, weights(net), atol=1e-7)


def test_uncleared_gradients_do_not_count_again():
    _, net, optimizer, loader = private(network(), noise_multiplier=1e-9, max_grad_norm=0.1)
    for number, (inputs, answers) in enumerate(loader):
        start = weights(net)
        functional.cross_entropy(net(inputs), answers).backward()
        optimizer.step()
        assert float((start - weights(net)).norm()) <= 0.1 * len(inputs) / BATCH, number


def test_the_ledger_can_be_part_of_a_checkpoint():
    engine, net, optimizer, loader = private(network())
    for inputs, answers in loader:
        train_step(net, optimizer, inputs, answers)
    other = PrivacyEngine()
    other.ledger.load_state_dict(engine.ledger.state_dict())
    assert other.ledger.spent == engine.ledger.spent


def test_a_ledger_file_counts_across_engines(tmp_path):
    for _ in range(2):
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        engine = PrivacyEngine(ledger=tmp_path / "ledger.json")
        loader = DataLoader(data(), batch_size=BATCH)
        engine.make_private(
            module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
        )
        optimizer.step()
        engine.release()
    assert [run.steps for run in PrivacyEngine(ledger=tmp_path / "ledger.json").ledger.spent] == [2]


def test_adam_and_schedulers_work():
    net = network()
    engine, optimizer = PrivacyEngine(), torch.optim.AdamW(net.parameters(), lr=0.05)
    net, optimizer, loader = engine.make_private(
        module=net,
        optimizer=optimizer,
        data_loader=DataLoader(data(), batch_size=BATCH),
        noise_multiplier=0.8,
        max_grad_norm=1.0,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    for _ in range(4):
        for inputs, answers in loader:
            train_step(net, optimizer, inputs, answers)
            schedule.step()
    inputs, answers = data().tensors
    assert float((net(inputs).argmax(dim=1) == answers).float().mean()) > 0.7


# Refusals


def test_a_gradient_outside_the_layers_is_refused():
    _, net, _, loader = private(network())
    inputs, answers = next(iter(loader))
    with pytest.raises(Unprotected, match=r"0\.weight.*weight_decay"):
        (functional.cross_entropy(net(inputs), answers) + 1e-3 * net[0].weight.square().sum()).backward()


def test_a_gradient_only_outside_the_layers_is_refused_before_the_step():
    _, net, optimizer, _ = private(network())
    net[0].weight.square().sum().backward()
    with pytest.raises(Unprotected, match=r"0\.weight"):
        optimizer.step()


def test_a_sample_must_not_count_twice():
    _, net, optimizer, loader = private(network())
    inputs, answers = next(iter(loader))
    functional.cross_entropy(net(inputs), answers).backward()
    with pytest.raises(Unprotected, match="twice"):
        functional.cross_entropy(net(inputs), answers).backward()
    with pytest.raises(Unprotected, match="error"):
        optimizer.step()


def test_nan_stops_the_step_and_is_reported():
    _, net, optimizer, loader = private(network())
    start = weights(net)
    inputs, answers = next(iter(loader))
    inputs = inputs.clone()
    inputs[1, 0] = math.nan
    with pytest.raises(NotFinite, match=r"1 of \d+ samples"):
        train_step(net, optimizer, inputs, answers)
    assert torch.equal(start, weights(net))


@pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm"])
@pytest.mark.parametrize("figure", [0, -1.0, math.nan, math.inf, "much"])
def test_invalid_settings_are_refused(name, figure):
    with pytest.raises(BadSetting, match=f"{name} is .* positive number"):
        private(network(), **{name: figure})


def test_a_delta_of_one_over_the_samples_is_refused():
    engine, *_ = private(network())
    with pytest.raises(BadSetting, match="delta"):
        engine.get_epsilon(delta=1 / SAMPLES)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(BadSetting, match="'mean' or 'sum'"):
        private(network(), loss_reduction="none")


def test_a_dataset_smaller_than_a_batch_is_refused():
    with pytest.raises(BadSetting, match="batch"):
        private(network(), dataset=data(BATCH - 1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8)), r"1 \(BatchNorm1d\).*replace_batch_norm"),
        (lambda: nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True), nn.Linear(6, 2)), "track_running_stats"),
        (lambda: nn.Sequential(nn.Embedding(5, 2, max_norm=1.0), nn.Flatten()), r"0 \(Embedding\): max_norm"),
        (lambda: nn.Sequential(nn.Embedding(5, 2, scale_grad_by_freq=True), nn.Flatten()), "scale_grad_by_freq"),
    ],
)
def test_layers_that_mix_samples_are_refused(make, words):
    with pytest.raises(MixesSamples, match=words):
        private(make())


class Centred(nn.Module):
    """Subtracts the batch's mean: no rule knows that, but the check finds it."""

    def forward(self, values: Tensor) -> Tensor:
        return values - values.mean(dim=0, keepdim=True)


def test_code_that_mixes_samples_is_refused_at_the_first_batch():
    _, net, optimizer, loader = private(nn.Sequential(nn.Linear(FEATURES, 8), Centred(), nn.Linear(8, CLASSES)))
    with pytest.raises(MixesSamples, match=r"^1: .*depends on the other samples"):
        train_step(net, optimizer, *next(iter(loader)))


def test_dropout_is_not_mistaken_for_mixing():
    _, net, optimizer, loader = private(nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)))
    train_step(net, optimizer, *next(iter(loader)))


class Folded(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.flatten(0, 1).unsqueeze(1)


def test_a_layer_whose_rows_are_not_samples_is_refused():
    net = nn.Sequential(nn.Linear(FEATURES, 8), Folded(), nn.Linear(1, CLASSES))
    _, net, _, loader = private(net)
    inputs, _ = next(iter(loader))
    with pytest.raises(MixesSamples, match=r"^2 got \d+ rows where the batch has \d+ samples"):
        net(inputs)


def test_a_network_without_trained_parameters_is_refused():
    net = network().requires_grad_(False)
    net_for_optimizer = network()
    with pytest.raises(BadSetting, match="no parameter that is trained"):
        PrivacyEngine().make_private(
            module=net, optimizer=torch.optim.SGD(net_for_optimizer.parameters(), lr=1.0), **figures()
        )


def test_an_optimizer_must_hold_exactly_the_trained_parameters():
    net, other = network(), network()
    with pytest.raises(BadSetting, match=r"doesn't hold 2\.weight"):
        PrivacyEngine().make_private(module=net, optimizer=torch.optim.SGD(net[0].parameters(), lr=1.0), **figures())
    both = [*net.parameters(), *other.parameters()]
    with pytest.raises(BadSetting, match="aren't the network's"):
        PrivacyEngine().make_private(module=net, optimizer=torch.optim.SGD(both, lr=1.0), **figures())


def given(net: nn.Module, batches: list[tuple[Tensor, Tensor]], **figures: float):
    engine = PrivacyEngine()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    made = engine.make_private_with_batches(
        module=net,
        optimizer=optimizer,
        batches=GivenBatches(batches, BATCH),
        **{"noise_multiplier": 1e-9, "max_grad_norm": 0.3, **figures},
    )
    return engine, *made


def test_given_batches_count_as_if_every_sample_were_in_them():
    net = network()
    before, start = copy.deepcopy(net), weights(net)
    inputs, answers = data().tensors
    engine, net, optimizer, batches = given(net, [(inputs[:30], answers[:30])], noise_multiplier=0.01)
    for batch in batches:
        train_step(net, optimizer, *batch)
    expected = naive_sum(naive_gradients(before, (inputs[:30],), answers[:30]), 0.3) / BATCH
    assert torch.allclose(start - weights(net), expected.float(), atol=6 * 0.01 * 0.3 / BATCH)
    assert engine.ledger.spent == [Spent(0.01, 1.0, 1)]


def test_given_batches_are_guarded_too():
    inputs, answers = data().tensors
    _, net, optimizer, batches = given(network(), [(inputs[:30], answers[:30])])
    next(iter(batches))
    with pytest.raises(Unprotected, match=r"over 60 samples, but no drawn batch is waiting for it .waiting: 30"):
        train_step(net, optimizer, inputs[:60], answers[:60])
    with pytest.raises(BadSetting, match="noise_multiplier is 0"):
        given(network(), [], noise_multiplier=0)
    with pytest.raises(MixesSamples):
        given(nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES)), [])


def test_an_engine_trains_only_one_network():
    engine, *_ = private(network())
    net = network()
    with pytest.raises(BadSetting, match="another engine"):
        engine.make_private(module=net, optimizer=torch.optim.SGD(net.parameters(), lr=1.0), **figures())


def test_half_precision_is_refused():
    net = network().bfloat16()
    with pytest.raises(BadSetting, match="float32"):
        private(net)


# Helpers


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (48, 24), (17, 17), (37, 1), (1, 1)])
def test_batch_norm_becomes_group_norm(channels, groups):
    net = nn.Sequential(nn.Conv2d(3, channels, 1), nn.Sequential(nn.BatchNorm2d(channels)))
    nn.init.normal_(net[1][0].weight)
    replaced = replace_batch_norm(net)
    assert isinstance(net[1][0], nn.BatchNorm2d), "the one given stays as it is"
    norm = replaced[1][0]
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == groups
    assert torch.equal(norm.weight, net[1][0].weight)


def test_a_copy_of_a_private_network_is_independent():
    _, net, optimizer, loader = private(network())
    other = copy.deepcopy(net)
    train_step(net, optimizer, *next(iter(loader)))
    assert all(parameter.grad is None for parameter in other.parameters())
    with torch.no_grad():
        assert other(torch.randn(3, FEATURES)).shape == (3, CLASSES)
