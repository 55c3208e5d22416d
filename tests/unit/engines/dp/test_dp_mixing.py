"""Samples that depend on each other in any way are refused; what only resembles mixing is accepted."""

from __future__ import annotations

import gc

import pytest
import torch
from dp_naive import engine_sum, naive_gradients, naive_sum, wired
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import MixesSamples, PrivacyEngine
from rigdyno.engines.dp.checks import mixing
from rigdyno.engines.dp.layers import group_norm

CLASSES, FEATURES, BATCH = 4, 6, 8


class Shifted(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values + values.roll(1, dims=0)


class Cumulative(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.cumsum(dim=0)


class EveryOther(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([values[:1], values[1:] + 0.1 * values[:-1] * (torch.arange(1, len(values)) % 2)[:, None]])


class LastLooksBack(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([values[:-1], values[-1:] + values[:1]])


class MixedUp(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return 0.7 * values + 0.3 * values[torch.randperm(len(values))]


class MeanInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(dim=0, keepdim=True)


class OnlyInBackward(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return MeanInBackward.apply(values)


class OnlyWhenTraining(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values - values.mean(dim=0) if self.training else values


class OnlyWhenLarge(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values - values.mean(dim=0) if len(values) > BATCH else values


class After(nn.Module):
    """A module that begins to mix after some calls, which it counts itself."""

    def __init__(self, quiet: int) -> None:
        super().__init__()
        self.quiet, self.calls = quiet, 0

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        return values - values.mean(dim=0) if self.calls > self.quiet else values


def network(middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), middle, nn.Linear(8, CLASSES))


def batch(samples: int = BATCH) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, FEATURES), torch.randint(CLASSES, (samples,))


def step(net: nn.Module, samples: int = BATCH) -> None:
    inputs, target = batch(samples)
    functional.cross_entropy(net(inputs), target).backward()


@pytest.mark.parametrize("middle", [Shifted, Cumulative, EveryOther, LastLooksBack, OnlyWhenTraining])
@pytest.mark.parametrize("samples", [2, 3, BATCH])
def test_samples_that_depend_on_each_other_are_refused(middle, samples):
    net, _ = wired(network(middle()), 1.0, False)
    with pytest.raises(MixesSamples, match="depends on the other samples of the batch, so clipping"):
        step(net, samples)


@pytest.mark.parametrize("samples", [2, 3, 4, 7, 8, 20, 21, 100, 253])
def test_each_sample_is_kept_while_any_other_is_replaced(samples):
    rows = list(range(samples))
    kept = [set(division) for division in mixing.choose_divisions(rows)]
    assert all(
        any(one in each and other not in each for each in kept) for one in rows for other in rows if one != other
    )
    assert len(kept) <= {2: 2, 3: 3, 4: 4, 7: 5, 8: 5, 20: 6, 21: 7, 100: 9, 253: 11}[samples]


class OneLooksAtAnother(nn.Module):
    """A module in which a single sample depends on a single other one, weakly."""

    def __init__(self, looks: int, at: int) -> None:
        super().__init__()
        self.looks, self.at = looks, at

    def forward(self, values: Tensor) -> Tensor:
        mixed = values.clone()
        mixed[self.looks] += 0.1 * values[self.at].detach()
        return mixed


@pytest.mark.parametrize(("looks", "at"), [(0, 150), (150, 0), (17, 18), (130, 64)])
def test_a_single_dependent_pair_of_a_large_batch_is_refused(looks, at):
    net, _ = wired(network(OneLooksAtAnother(looks, at)), 1.0, False)
    with pytest.raises(MixesSamples, match=r"^1: "):
        step(net, 200)


def test_a_check_keeps_no_memory():
    """A sigmoid saves its own output for backward."""
    net, _ = wired(nn.Sequential(nn.Linear(FEATURES, 37), nn.Sigmoid(), nn.Linear(37, CLASSES)), 1.0, False)
    step(net)
    gc.collect()
    left = [found for found in gc.get_objects() if type(found) is Tensor and found.shape == (BATCH, 37)]
    assert not left


def test_randomly_mixed_samples_are_refused():
    net, _ = wired(network(MixedUp()), 1.0, False)
    with pytest.raises(MixesSamples, match="depends on the other samples of the batch, so clipping"):
        step(net)


@pytest.mark.parametrize("samples", [2, BATCH])
def test_a_backward_pass_that_mixes_is_refused(samples):
    net, _ = wired(network(OnlyInBackward()), 1.0, False)
    with pytest.raises(MixesSamples, match=r"a sample's gradient for 0\.(weight|bias) depends on the other samples"):
        step(net, samples)


def test_another_mode_is_checked_again():
    net, _ = wired(network(OnlyWhenTraining()).eval(), 1.0, False)
    step(net)
    net.train()
    with pytest.raises(MixesSamples, match=r"^1: "):
        step(net)


def test_a_much_larger_batch_is_checked_again():
    net, _ = wired(network(OnlyWhenLarge()), 1.0, False)
    step(net)
    with pytest.raises(MixesSamples, match=r"^1: "):
        step(net, 3 * BATCH)


def test_mixing_that_begins_later_is_refused_at_a_random_step(monkeypatch):
    monkeypatch.setattr(mixing, "CHANCE", 0.2)
    net, _ = wired(network(After(quiet=3)), 1.0, False)

    def train() -> None:
        for _ in range(300):
            step(net)

    with pytest.raises(MixesSamples, match=r"^1: "):
        train()


def test_random_checks_come_at_the_stated_rate():
    schedule = mixing.CheckSchedule()
    seen = sum(schedule.is_due() for _ in range(200_000))
    expected = 200_000 * mixing.CHANCE
    assert abs(seen - expected) < 5 * expected**0.5


def test_a_check_has_no_side_effects():
    net = network(After(quiet=10**9))
    heard: list[str] = []
    net[0].register_forward_hook(lambda *_: heard.append("forward"))
    net[2].register_forward_pre_hook(lambda *_: heard.append("before"))
    net[2].register_full_backward_hook(lambda *_: heard.append("backward"))
    net[1].register_buffer("count", torch.zeros(()))
    net, _ = wired(net, 1.0, False)
    state = torch.get_rng_state()
    inputs, _ = torch.randn(BATCH, FEATURES), torch.manual_seed(3)
    expected = torch.get_rng_state()
    net(inputs)
    assert heard == ["forward", "before"]
    assert net[1].calls == 1
    assert torch.equal(torch.get_rng_state(), expected)
    torch.set_rng_state(state)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def forward(self, values: Tensor) -> Tensor:
        self.passes += 1
        return values


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, values: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * values.detach().mean(dim=0))
        return values


def test_a_buffer_that_depends_on_the_data_is_refused():
    net, _ = wired(network(Averaging()), 1.0, False)
    with pytest.raises(MixesSamples, match=r"buffer 1\.mean depends on the data"):
        step(net)
    assert not net[1].mean.any(), "and it is as it was"


def test_a_counter_buffer_is_accepted():
    net, _ = wired(network(Counting()), 1.0, False)
    step(net)
    assert int(net[1].passes) == 1


@pytest.mark.parametrize("middle", [nn.Dropout(0.5), nn.AlphaDropout(0.3), nn.Dropout1d(0.5)])
def test_random_layers_are_not_mistaken_for_mixing(middle):
    net, _ = wired(network(middle), 1.0, False)
    step(net)


class OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.chance = torch.Generator()

    def forward(self, values: Tensor) -> Tensor:
        return values + torch.randn(values.shape, generator=self.chance)


class Elsewhere(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        import os

        return values + int.from_bytes(os.urandom(2), "big") / 65536


def test_a_module_s_own_generator_is_repeated():
    net, _ = wired(network(OwnGenerator()), 1.0, False)
    step(net)


def test_randomness_that_cannot_be_repeated_is_reported():
    net, _ = wired(network(Elsewhere()), 1.0, False)
    with pytest.raises(MixesSamples, match="torch's own generator"):
        step(net)


class DrawsByData(nn.Module):
    """A module that draws a mask for positive values only: their number shifts the next sample's random numbers."""

    def forward(self, values: Tensor) -> Tensor:
        noise = torch.zeros_like(values)
        noise[values > 0] = torch.rand(int((values > 0).sum()))
        return values + noise


@pytest.mark.parametrize("middle", [DrawsByData, nn.RReLU])
def test_a_data_dependent_number_of_random_draws_is_refused(middle):
    net, _ = wired(network(middle()), 1.0, False)
    # If by chance the numbers of draws are equal, it is reported like any other dependence.
    with pytest.raises(MixesSamples, match=r"How many random numbers|depends on the other samples"):
        step(net)


def test_checks_do_not_change_the_sum():
    net = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    inputs, target = batch()
    expected = naive_sum(naive_gradients(net, (inputs,), target), 0.2)
    found = engine_sum(net, (inputs,), target, 0.2)
    assert float((found - expected).norm()) <= 3e-5 * float(expected.norm())


def centred(module: nn.Module, args: object, found: Tensor) -> Tensor:
    return found - found.mean(dim=0)


def centred_in_place(module: nn.Module, args: object, found: Tensor) -> None:
    found -= found.detach().mean(dim=0)


@pytest.mark.parametrize("hook", [centred, centred_in_place])
def test_a_hook_that_mixes_is_refused(hook):
    net, _ = wired(network(nn.Tanh()), 1.0, False)
    net[1].register_forward_hook(hook)
    with pytest.raises(MixesSamples, match="depends on the other samples"):
        step(net)


def test_a_hook_that_changes_outputs_without_mixing_is_accepted():
    net, _ = wired(network(nn.Tanh()), 1.0, False)
    net[1].register_forward_hook(lambda module, args, found: found * 2)
    step(net)


class Divided(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values / len(values)


@pytest.mark.parametrize("samples", [2, 3, BATCH])
def test_a_division_by_the_batch_size_is_refused(samples):
    net, _ = wired(network(Divided()), 1.0, False)
    with pytest.raises(MixesSamples, match="number of samples"):
        step(net, samples)


class WithLoss(nn.Module):
    """A network that also returns a mean over the batch, like networks that compute their loss."""

    def __init__(self, across: bool) -> None:
        super().__init__()
        self.layer, self.across = nn.Linear(FEATURES, CLASSES), across

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        found = self.layer(values)
        scores = functional.normalize(found) @ functional.normalize(found).T if self.across else found
        target = torch.arange(len(values)) if self.across else torch.zeros(len(values), dtype=torch.long)
        return functional.cross_entropy(scores, target), found


def test_a_loss_inside_the_network_may_not_mix_samples():
    net, _ = wired(WithLoss(across=False), 1.0, False)
    net(torch.randn(BATCH, FEATURES))[0].backward()
    net, _ = wired(WithLoss(across=True), 1.0, False)
    with pytest.raises(MixesSamples, match="depends on the other samples"):
        net(torch.randn(BATCH, FEATURES))


def test_a_check_runs_fused_modules_together(monkeypatch):
    """Modules that are fused in training stay fused during the check of the first batch: run separately, they would
    keep more memory."""
    pytest.importorskip("numba")
    run: list[type[nn.Module] | None] = []
    own = group_norm.run_fused
    monkeypatch.setattr(
        group_norm, "run_fused", lambda inputs, call, after: run.append(after) or own(inputs, call, after)
    )
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
    data = TensorDataset(torch.randn(16, 3, 8, 8), torch.zeros(16, dtype=torch.long))
    network, _, loader = PrivacyEngine().make_private(
        module=network, optimizer=torch.optim.SGD(network.parameters(), lr=0.1), data_loader=DataLoader(data, 16),
        noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    inputs, targets = next(iter(loader))
    nn.functional.cross_entropy(network(inputs), targets).backward()
    assert len(run) > 8
    assert set(run) == {nn.SiLU}
