"""Test what Opacus' own tests expect of a private engine. docs/dp.md lists its test files, where each is covered, and
what differs on purpose."""

from __future__ import annotations

import copy
from functools import partial
from itertools import islice, pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import (
    BadSetting,
    MixesSamples,
    PrivacyEngine,
    Spent,
    Unprotected,
    epsilon,
    micro_batches,
    noise_multiplier_for,
    private_loader,
    replace_batch_norm,
)
from rigdyno.engines.dp.layers.common import generic

SAMPLES, BATCH = 128, 16
NEXT_TO_NOTHING, NO_CLIPPING = 1e-9, 1e9


def network() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.MaxPool2d(2, 1)]
    second = [nn.Conv2d(8, 16, 3, 2), nn.GroupNorm(4, 16), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(16 * 3 * 3, 10))


def data() -> TensorDataset:
    chance = torch.Generator().manual_seed(1)
    images = torch.randn(SAMPLES, 1, 22, 22, generator=chance)
    return TensorDataset(images, torch.randint(10, (SAMPLES,), generator=chance))


def private(net: nn.Module | None = None, seed: int | None = 1, lr: float = 0.1, optimizer=torch.optim.SGD, **options):
    net = network() if net is None else net
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    engine = PrivacyEngine(generator=generator, **options.pop("engine", {}))
    made = engine.make_private(
        module=net,
        optimizer=optimizer(net.parameters(), lr=lr),
        data_loader=DataLoader(data(), batch_size=BATCH),
        **{"noise_multiplier": 1.0, "max_grad_norm": 1.0, **options},
    )
    return engine, *made


def train(net: nn.Module, optimizer: torch.optim.Optimizer, batches) -> None:
    for images, answers in batches:
        optimizer.zero_grad()
        if len(answers):
            functional.cross_entropy(net(images), answers).backward()
        optimizer.step()


def values(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


class TestAccountants:
    """Values from Opacus' tests: RDP 7.32911, PRV 6.77740 at a rate of 0.04, 90 epochs, delta 1e-5."""

    def test_epsilon_matches_opacus(self):
        spent = [Spent(1.5, 0.04, 2250)]
        found = epsilon(spent, 1e-5)
        assert found.by_rdp == pytest.approx(7.32911, abs=0.01)
        assert found.epsilon == pytest.approx(6.777, abs=0.06)

    def test_the_noise_for_a_target_matches_opacus(self):
        found = noise_multiplier_for(8.0, 1e-5, 0.04, 2000, accountant="rdp")
        assert found == pytest.approx(1.3562, rel=0.01)
        assert epsilon([Spent(found, 0.04, 2000)], 1e-5, "rdp").epsilon <= 8.0

    def test_a_loaded_state_has_the_same_count(self):
        engine, net, optimizer, loader = private()
        train(net, optimizer, loader)
        other = PrivacyEngine()
        other.ledger.load_state_dict(engine.ledger.state_dict())
        assert other.ledger.spent == engine.ledger.spent


class TestEngine:
    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, partial(torch.optim.SGD, momentum=0.9, nesterov=True)])
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_training_without_noise_and_clipping_equals_plain_pytorch(self, reduction, optimizer):
        plain, batches = network(), []
        _, net, private_optimizer, loader = private(
            optimizer=optimizer,
            noise_multiplier=NEXT_TO_NOTHING / NO_CLIPPING,
            max_grad_norm=NO_CLIPPING,
            loss_reduction=reduction,
            lr=1e-3,
        )
        for images, answers in loader:
            batches.append((images, answers))
            private_optimizer.zero_grad()
            functional.cross_entropy(net(images), answers, reduction=reduction).backward()
            private_optimizer.step()
        plain_optimizer = optimizer(plain.parameters(), lr=1e-3)
        for images, answers in batches:
            plain_optimizer.zero_grad()
            (functional.cross_entropy(plain(images), answers, reduction="sum") / BATCH).backward()
            plain_optimizer.step()
        assert torch.allclose(values(net), values(plain), atol=2e-5)

    def test_clipping_bounds_the_change_by_a_batch(self):
        _, net, optimizer, loader = private(noise_multiplier=NEXT_TO_NOTHING, max_grad_norm=0.01, lr=1.0)
        before = values(net)
        images, answers = next(iter(loader))
        train(net, optimizer, [(images, answers)])
        assert 0 < float((values(net) - before).norm()) <= 0.01 * len(answers) / BATCH

    def test_noise_changes_every_time(self):
        _, net, optimizer, _ = private(lr=0.0)
        found = []
        for _ in range(3):
            optimizer.step()
            found.append(torch.cat([parameter.grad.flatten() for parameter in net.parameters()]))
        assert all(
            float((one - other).abs().min()) >= 0 and not torch.equal(one, other) for one, other in pairwise(found)
        )

    def test_equal_seeds_repeat_a_run_and_different_seeds_do_not(self):
        found = []
        for seed in (7, 7, 8):
            _, net, optimizer, loader = private(seed=seed)
            train(net, optimizer, loader)
            found.append(values(net))
        assert torch.equal(found[0], found[1])
        assert not torch.allclose(found[0], found[2])

    def test_a_global_seed_repeats_a_run_too(self):
        found = []
        for _ in range(2):
            net = network()
            torch.manual_seed(5)
            _, net, optimizer, loader = private(net, seed=None)
            train(net, optimizer, loader)
            found.append(values(net))
        assert torch.equal(*found)

    def test_secure_runs_never_repeat_and_take_no_seed(self):
        found = []
        for _ in range(2):
            net = network()
            torch.manual_seed(5)
            _, net, optimizer, loader = private(net, seed=None, engine={"secure": True})
            train(net, optimizer, loader)
            found.append(values(net))
        assert not torch.allclose(*found)
        with pytest.raises(BadSetting, match="secure"):
            private(seed=1, engine={"secure": True})

    def test_parameters_of_another_network_are_refused(self):
        with pytest.raises(BadSetting, match="optimizer"):
            private(optimizer=lambda parameters, lr: torch.optim.SGD(network().parameters(), lr=lr))

    def test_frozen_parameters_do_not_change(self):
        net = network()
        net[0].requires_grad_(False)
        frozen = net[0].weight.clone()
        _, net, optimizer, loader = private(
            net, optimizer=lambda p, lr: torch.optim.SGD([q for q in p if q.requires_grad], lr=lr)
        )
        train(net, optimizer, loader)
        assert torch.equal(net[0].weight, frozen)


class TestNetwork:
    """Tests of a module that computes per-sample gradients."""

    def test_outputs_are_unaltered(self):
        plain, images = network(), data().tensors[0]
        _, net, _, _ = private()
        assert torch.allclose(net(images), plain(images), atol=1e-5)

    def test_states_have_the_names_of_the_plain_network(self):
        _, net, _, _ = private()
        assert list(net.state_dict()) == list(network().state_dict())
        other = {name: torch.full_like(value, 0.5) for name, value in network().state_dict().items()}
        net.load_state_dict(other)
        assert float(values(net).min()) == float(values(net).max()) == 0.5

    def test_modules_of_the_network_are_accessible(self):
        _, net, _, _ = private()
        assert isinstance(net[0], nn.Conv2d)
        assert net[0].out_channels == 8

    def test_a_released_network_is_a_plain_one(self):
        engine, net, _, _ = private()
        engine.release()
        images, answers = data().tensors
        plain = network()
        for each in (net, plain):
            functional.cross_entropy(each(images), answers).backward()
        for one, other in zip(net.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad, atol=1e-6)

    def test_evaluation_needs_no_drawn_batch(self):
        _, net, _, _ = private()
        with torch.no_grad():
            assert net(data().tensors[0][:5]).shape == (5, 10)


class TestBatches:
    def test_pieces_give_the_same_result_as_the_whole_batch(self):
        found = []
        for size in (BATCH * 10, 3):
            _, net, optimizer, loader = private(seed=3)
            for batch in loader:
                optimizer.zero_grad()
                for images, answers in micro_batches(batch, size):
                    if len(answers):
                        functional.cross_entropy(net(images), answers).backward()
                optimizer.step()
            found.append(values(net))
        assert torch.allclose(*found, atol=1e-5)

    @pytest.mark.parametrize("poisson", [True, False])
    def test_gradients_of_two_batches_are_not_added_up(self, poisson):
        """Opacus refuses this for Poisson batches too; it adds up shuffled ones, which are refused here."""
        _, net, _, loader = private(poisson_sampling=poisson)
        (images, answers), (others, their_answers) = islice(loader, 2)
        functional.cross_entropy(net(images), answers).backward()
        loss = functional.cross_entropy(net(others), their_answers)
        with pytest.raises(Unprotected, match="two drawn batches"):
            loss.backward()

    def test_empty_batches_have_any_structure(self):
        """Test images, single numbers, and both in a dict."""
        rows = [{"image": torch.ones(2, 3), "label": 1, "weight": 0.5} for _ in range(4)]
        loader = private_loader(DataLoader(rows, batch_size=1), sample_rate=1e-9)
        batch = next(iter(loader))
        assert batch["image"].shape == (0, 2, 3)
        assert batch["label"].shape == batch["weight"].shape == (0,)
        assert batch["label"].dtype == torch.int64

    def test_ranks_share_a_batch_without_overlap(self):
        shares = []
        for rank in range(3):
            made = private_loader(
                DataLoader(list(range(60)), batch_size=30),
                generator=torch.Generator().manual_seed(4),
                rank=rank,
                ranks=3,
            )
            shares.append([batch.tolist() for batch in made])
        for together in zip(*shares, strict=True):
            drawn = [sample for share in together for sample in share]
            assert len(drawn) == len(set(drawn))


class TestValidation:
    def test_batch_norm_is_refused_and_can_be_replaced(self):
        net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 400, 10))
        with pytest.raises(MixesSamples, match="replace_batch_norm"):
            private(net)
        fixed = replace_batch_norm(net)
        assert isinstance(net[1], nn.BatchNorm2d)
        _, fixed, optimizer, loader = private(fixed)
        train(fixed, optimizer, loader)

    def test_a_valid_network_is_not_changed(self):
        net = network()
        same = replace_batch_norm(net)
        assert [type(module) for module in same.modules()] == [type(module) for module in net.modules()]
        assert torch.equal(values(same), values(net))

    def test_a_layer_without_a_rule_and_a_bare_parameter_are_trained_too(self, monkeypatch):
        class Own(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight, self.shift = nn.Parameter(torch.randn(10, 22 * 22) / 22), nn.Parameter(torch.zeros(10))

            def forward(self, images: Tensor) -> Tensor:
                return functional.linear(images.flatten(1), self.weight) + self.shift

        monkeypatch.setattr(generic, "_warned", set())
        with pytest.warns(UserWarning, match="Own.* has parameters of its own and no rule"):
            _, net, optimizer, loader = private(Own())
        before = copy.deepcopy(net.state_dict())
        train(net, optimizer, loader)
        assert all(not torch.equal(value, before[name]) for name, value in net.state_dict().items())


class TestSchedules:
    """Opacus has classes for schedules; here a value is set between steps."""

    def test_decreasing_noise_is_counted_step_by_step(self):
        engine, net, optimizer, loader = private()
        for number, batch in enumerate(loader):
            engine.noise_multiplier = 2.0 * 0.9**number
            train(net, optimizer, [batch])
        assert [run.noise_multiplier for run in engine.ledger.spent] == [2.0 * 0.9**n for n in range(len(loader))]

    def test_the_clipping_norm_can_decrease(self):
        engine, net, optimizer, loader = private()
        for number, batch in enumerate(loader):
            engine.max_grad_norm = 1.0 / (number + 1)
            train(net, optimizer, [batch])
        assert engine.max_grad_norm == 1.0 / len(loader)
