"""`validate` lists everything that make_private would refuse; `fix` replaces what can be replaced, and nothing else."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext

import pytest
import torch
from dp_guarded import Guarded, batch
from torch import nn
from torch.nn.utils import prune

from rigdyno.engines.dp import PrivacyEngine, PrivacyError, fix, validate


def old_weight_norm(module: nn.Module, dim: int | None = 0) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = nn.utils.weight_norm(module, dim=dim)
    with torch.no_grad():
        module.weight_g.mul_(1.7)
        module.weight_v.mul_(0.4)
    return module


def test_validate_returns_nothing_for_an_accepted_network():
    assert validate(nn.Sequential(nn.Linear(3, 4), nn.LSTM(4, 2))) == []


def test_validate_returns_all_reasons_one_line_each():
    pruned = nn.Linear(8, 8)
    prune.random_unstructured(pruned, "weight", 0.5)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.InstanceNorm2d(8, track_running_stats=True), pruned)
    net.append(nn.Linear(8, 2).double())
    found = validate(net)
    assert [line.split(" ")[0] for line in found] == ["all", "1", "2", "3"]
    assert not any("\n" in line for line in found)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm2d(4),
        lambda: nn.Linear(3, 3).requires_grad_(False),
        lambda: nn.Linear(3, 3).half(),
        lambda: nn.LazyLinear(3),
        lambda: nn.DataParallel(nn.Linear(3, 3)),
        lambda: old_weight_norm(nn.Linear(3, 3)),
        lambda: nn.Linear(3, 3),
    ],
)
def test_validate_and_make_private_agree(make):
    net = make()
    reasons = validate(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3)), batch_size=2)
    with pytest.raises(PrivacyError) if reasons else nullcontext() as refused:
        PrivacyEngine(kernels=False).make_private(
            module=net, optimizer=optimizer, data_loader=data, noise_multiplier=1.0, max_grad_norm=1.0
        )
    assert not reasons or str(refused.value) == reasons[0]


def test_a_private_network_is_refused_by_another_engine():
    guarded = Guarded([batch()])
    assert validate(guarded.net) == validate(guarded.net[2])
    assert "already" in validate(guarded.net[2])[0]
    with pytest.raises(PrivacyError, match="already"):
        Guarded([batch()], net=guarded.net)
    assert validate(copy.deepcopy(guarded.net)) == []
    guarded.engine.release()
    assert validate(guarded.net) == []


def test_norms_are_replaced_in_a_copy():
    shared = nn.BatchNorm2d(8)
    instance = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), shared, nn.ReLU(), shared, instance)
    nn.init.uniform_(instance.weight)
    shared.weight.requires_grad_(False)
    fixed = fix(net)
    assert validate(fixed) == []
    assert type(fixed[1]) is nn.GroupNorm
    assert fixed[1] is fixed[3]
    assert not fixed[1].weight.requires_grad
    images = torch.randn(4, 8, 5, 5)
    torch.testing.assert_close(fixed[4](images), copy.deepcopy(instance)(images))
    assert net[1] is shared
    assert net[4] is instance


def test_a_frozen_norm_stays():
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8).eval())
    assert type(fix(net)[1]) is nn.BatchNorm2d
    assert type(fix(net.eval())[1]) is nn.GroupNorm


def test_a_network_that_is_itself_a_norm_is_replaced():
    assert type(fix(nn.BatchNorm2d(6))) is nn.GroupNorm


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_has_the_same_weights_and_gradients(dim):
    net = nn.Sequential(old_weight_norm(nn.Linear(5, 4), dim), nn.Tanh(), old_weight_norm(nn.Linear(4, 3)))
    inputs = torch.randn(6, 5)
    net(inputs)  # stores computed weights, which can't be copied
    fixed = fix(net)
    assert validate(fixed) == []
    torch.testing.assert_close(fixed(inputs), net(inputs))
    net(inputs).square().sum().backward()
    fixed(inputs).square().sum().backward()
    parts = fixed[0].parametrizations.weight
    torch.testing.assert_close(parts.original0.grad, net[0].weight_g.grad)
    torch.testing.assert_close(parts.original1.grad, net[0].weight_v.grad)


@pytest.mark.parametrize(("layer", "shape"), [(nn.Linear(5, 4), (6, 5)), (nn.ConvTranspose2d(3, 4, 3), (2, 3, 6, 6))])
def test_spectral_norm_has_the_same_weights_if_it_is_accepted(layer, shape):
    net = nn.Sequential(nn.utils.spectral_norm(layer))
    inputs = torch.randn(shape)
    net(inputs)
    fixed = fix(net)
    assert "eval mode" in validate(fixed)[0]
    assert len(validate(fixed)) == 1
    net.eval()
    torch.testing.assert_close(fixed.eval()(inputs), net(inputs))
    assert validate(fixed) == []


def test_unfixable_modules_stay_and_are_reported():
    pruned = nn.Linear(4, 4)
    prune.random_unstructured(pruned, "weight", 0.5)
    net = nn.Sequential(pruned, nn.LazyLinear(3))
    before = validate(net)
    assert len(before) == 2
    assert validate(fix(net)) == before
    with pytest.raises(PrivacyError, match="call the network once"):
        fix(nn.Sequential(nn.LazyBatchNorm1d()))
