"""Compare per-layer and adaptive clipping with the definition, through the engine."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from dp_naive import naive_gradients, trained
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import BadSetting, GivenBatches, PrivacyEngine, Unprotected
from rigdyno.engines.dp.gradients.norm_bounds import Adaptive

SAMPLES, FEATURES, CLASSES = 30, 6, 3
LITTLE_NOISE = 1e-9


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def batch() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, FEATURES, generator=chance) * torch.logspace(-1, 2, SAMPLES).unsqueeze(1)
    return inputs, torch.randint(CLASSES, (SAMPLES,), generator=chance)


def private(net: nn.Module, batches: int = 100, noise_multiplier: float = LITTLE_NOISE, **options):
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    given = GivenBatches([batch()] * batches, SAMPLES)
    options = {"max_grad_norm": 1.0, **options}
    engine.make_private_with_batches(
        module=net, optimizer=optimizer, batches=given, noise_multiplier=noise_multiplier, **options
    )
    return engine, optimizer, iter(given)


def released(net: nn.Module, optimizer: torch.optim.Optimizer, batches) -> Tensor:
    inputs, answers = next(batches)
    optimizer.zero_grad()
    functional.cross_entropy(net(inputs), answers).backward()
    optimizer.step()
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()]).double() * SAMPLES


def clipped_per_layer(net: nn.Module, norms: dict[str, float]) -> Tensor:
    """Return the sum by the definition: each per-sample gradient clipped parameter by parameter."""
    inputs, answers = batch()
    sizes = [parameter.numel() for _, parameter in trained(net)]
    total = torch.zeros(sum(sizes), dtype=torch.float64)
    for gradient in naive_gradients(net, (inputs,), answers):
        parts = [
            part * min(1.0, norm / float(part.norm()))
            for part, norm in zip(gradient.split(sizes), norms.values(), strict=True)
        ]
        total += torch.cat(parts)
    return total


def test_per_layer_clipping_takes_norms_by_name():
    net = network()
    norms = {"0.weight": 0.5, "0.bias": 0.1, "2.weight": 0.3, "2.bias": 0.02}
    expected = clipped_per_layer(copy.deepcopy(net), norms)
    _, optimizer, batches = private(net, clipping="per_layer", max_grad_norm=norms)
    assert torch.allclose(released(net, optimizer, batches), expected, rtol=1e-4, atol=1e-5)


def test_per_layer_clipping_shares_one_norm_equally():
    net = network()
    expected = clipped_per_layer(copy.deepcopy(net), dict.fromkeys(["a", "b", "c", "d"], 0.5))
    _, optimizer, batches = private(net, clipping="per_layer", max_grad_norm=1.0)
    assert torch.allclose(released(net, optimizer, batches), expected, rtol=1e-4, atol=1e-5)


def test_noise_of_per_layer_clipping_covers_all_layers_together():
    norms = {"weight": 3.0, "bias": 4.0}
    net = nn.Linear(300, 100)
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    given = GivenBatches([torch.zeros(0, 300)], 1.0)
    engine.make_private_with_batches(
        module=net, optimizer=optimizer, batches=given, noise_multiplier=2.0, max_grad_norm=norms, clipping="per_layer"
    )
    optimizer.step()
    values = torch.cat([parameter.grad.flatten() for parameter in net.parameters()]).double()
    assert float(values.std()) == pytest.approx(2.0 * 5.0, rel=5 / math.sqrt(2 * len(values)))
    assert engine.max_grad_norm == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clipping": "per_layer", "max_grad_norm": {"0.weight": 1.0}}, "no norm for 0.bias"),
        ({"max_grad_norm": {"0.weight": 1.0}}, "clipping='per_layer'"),
        ({"clipping": "per_layer", "max_grad_norm": {"0.weight": -1.0}}, "positive"),
        ({"clipping": "by_eye"}, "'flat', 'per_layer', 'adaptive'"),
        ({"clipping": "flat", "clipping_options": {"share": 0.5}}, "for clipping='adaptive' only"),
        ({"clipping": "adaptive", "clipping_options": {"quantile": 0.5}}, "share, rate and count_std"),
        ({"clipping": "adaptive", "clipping_options": {"share": 1.5}}, "between 0 and 1"),
        ({"clipping": "adaptive", "noise_multiplier": 30.0}, "it must be above 15"),
    ],
)
def test_invalid_clipping_is_refused(options, words):
    with pytest.raises(BadSetting, match=words):
        private(network(), **options)


def test_a_norm_for_an_unknown_parameter_is_refused():
    names = [*dict(network().named_parameters()), "head.weight"]
    with pytest.raises(BadSetting, match=r"no trained parameter head\.weight"):
        private(network(), clipping="per_layer", max_grad_norm=dict.fromkeys(names, 1.0))


def test_the_adaptive_norm_converges_to_the_quantile():
    """Data and parameters stay the same, so the quantile does too."""
    net = network()
    inputs, answers = batch()
    norms = sorted(float(gradient.norm()) for gradient in naive_gradients(net, (inputs,), answers))
    engine, optimizer, batches = private(
        net, clipping="adaptive", max_grad_norm=1e-3, clipping_options={"share": 0.4, "count_std": 0.5}
    )
    for _ in range(100):
        released(net, optimizer, batches)
    below = sum(norm <= engine.max_grad_norm for norm in norms) / SAMPLES
    assert 0.25 <= below <= 0.55


def test_the_sum_gets_more_noise_if_a_count_is_released_too():
    """1/z^2 = 1/z_sum^2 + 1/(2 count_std)^2: both together cost as much as one Gaussian of multiplier z."""
    bound = Adaptive(2.0, "mean", count_std=1.0)
    by_sum = bound.noise_std(1.5) / 2.0
    assert by_sum**-2 + (2 * 1.0) ** -2 == pytest.approx(1.5**-2)


def test_one_sample_changes_the_count_by_a_half():
    bound = Adaptive(1.0, "sum", count_std=1.0)
    parameter = torch.zeros(1)
    for squared, moved in ((0.5, 0.5), (4.0, -0.5)):
        bound.weights([parameter], [torch.tensor([squared], dtype=torch.float64)], 1)
        assert float(bound.take_counts(parameter)) == moved


def test_counts_of_a_skipped_batch_are_discarded():
    net = network()
    engine, optimizer, batches = private(net, clipping="adaptive", clipping_options={"count_std": 1e-6})
    inputs, answers = next(batches)
    functional.cross_entropy(net(inputs), answers).backward()
    optimizer.zero_grad()
    before = engine.max_grad_norm
    optimizer.step()  # an empty batch: nothing was counted, so half of the samples are assumed to be below
    assert engine.max_grad_norm == pytest.approx(before, rel=1e-6)


def test_scheduled_noise_is_counted_per_step():
    net = network()
    engine, optimizer, batches = private(net, noise_multiplier=1.0)
    for sigma in (1.0, 2.0, 2.0):
        engine.noise_multiplier = sigma
        released(net, optimizer, batches)
    assert [(run.noise_multiplier, run.steps) for run in engine.ledger.spent] == [(1.0, 1), (2.0, 2)]


def test_the_norm_can_change_only_between_steps():
    net = network()
    engine, optimizer, batches = private(net)
    engine.max_grad_norm = 0.25
    assert float(released(net, optimizer, batches).norm()) <= 0.25 * SAMPLES
    inputs, answers = next(batches)
    functional.cross_entropy(net(inputs), answers).backward()
    with pytest.raises(Unprotected, match="between a step and the next backward"):
        engine.max_grad_norm = 100.0
    with pytest.raises(BadSetting, match="positive"):
        engine.noise_multiplier = 0.0


def test_an_engine_without_a_network_has_no_noise_multiplier():
    with pytest.raises(BadSetting, match="make_private first"):
        _ = PrivacyEngine().noise_multiplier


def test_noise_can_have_a_separate_generator():
    """The noise is the same, and the batches differ."""
    found = []
    for seed in (1, 2):
        net = nn.Linear(4, 4)
        engine = PrivacyEngine(generator=torch.Generator().manual_seed(seed))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        loader = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=5)
        engine.make_private(
            module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
            noise_generator=torch.Generator().manual_seed(9),
        )  # fmt: skip
        optimizer.step()
        found.append(net.weight.grad.clone())
    assert torch.equal(*found)
