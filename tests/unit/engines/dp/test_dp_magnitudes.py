"""Tiny inputs, huge gradients and the reverse: a sample's contribution to the sum stays below C, or the step is
refused."""

from __future__ import annotations

import pytest
import torch
from dp_naive import engine_sum
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rigdyno.engines.dp import NotFinite
from rigdyno.engines.dp.gradients import contributions
from rigdyno.engines.dp.kernels import explain_unavailable

BOUND = 1.0
ROUTES = [False, *([True] if explain_unavailable() is None else [])]
EXPONENTS = st.floats(-45, 38)


class Last(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.flatten(1)


NETWORKS = {
    "linear": (lambda: nn.Linear(30, 20), (30,)),
    "linear with few rows": (lambda: nn.Linear(30, 20), (3, 30)),
    "linear with many rows": (lambda: nn.Linear(6, 5, bias=False), (50, 6)),
    "convolution": (lambda: nn.Conv2d(3, 8, 3), (3, 7, 7)),
    "grouped": (lambda: nn.Conv2d(4, 8, 3, groups=2), (4, 7, 7)),
    "pointwise": (lambda: nn.Conv2d(3, 8, 1), (3, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (4, 7, 7)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 5, 5)),
    "layer norm": (lambda: nn.LayerNorm(12), (3, 12)),
    "root mean square norm": (lambda: nn.RMSNorm(12), (3, 12)),
}
WITH_GRAM = ["linear with few rows", "linear with many rows", "convolution", "grouped", "pointwise"]

FLUSHING = pytest.mark.parametrize("flushed", [False, True], ids=["denormals kept", "denormals flushed"])


def released(network: nn.Module, inputs: Tensor, slopes: Tensor, kernels: bool, flushed: bool = False) -> Tensor:
    """Return the gradient of a linear loss. `slopes` are the gradients that backward begins with."""

    def loss(found: Tensor, target: Tensor, reduction: str) -> Tensor:
        return (found * target).sum()

    torch.set_flush_denormal(flushed)
    try:
        return engine_sum(network, (inputs,), slopes, BOUND, kernels, reduction="sum", loss=loss)
    finally:
        torch.set_flush_denormal(False)


def check(make, shape: tuple[int, ...], large: float, steep: float, kernels: bool, spread: int, flushed: bool) -> None:
    torch.manual_seed(spread)
    network = nn.Sequential(make(), Last())
    uneven = 10.0 ** torch.randint(-spread, 1, (1, *shape)).double()
    inputs = (torch.randn(1, *shape).double() * uneven * 10.0**large).float()
    with torch.no_grad():
        slopes = (torch.randn_like(network(inputs)).double() * 10.0**steep).float()
    try:
        found = released(network, inputs, slopes, kernels, flushed)
    except NotFinite:
        return
    assert float(found.norm()) <= BOUND


HARD = [(-30.0, 38.0, 0), (-38.5, 38.0, 0), (38.0, -40.0, 0), (-22.0, 25.0, 30)]  # large, steep, spread


@pytest.mark.parametrize("kernels", ROUTES)
@pytest.mark.parametrize(("name", "traffic"), [(name, 0.0) for name in NETWORKS] + [(name, 1e18) for name in WITH_GRAM])
def test_a_sample_stays_below_the_bound_at_every_magnitude(name, traffic, kernels, monkeypatch):
    """Norms come from built gradients (no traffic allowed) or from Gram matrices (any traffic allowed)."""
    monkeypatch.setattr(contributions, "TRAFFIC", traffic)
    make, shape = NETWORKS[name]
    for flushed in (False, True):
        for large, steep, spread in HARD:
            check(make, shape, large, steep, kernels, spread, flushed)

    @settings(max_examples=10)
    @given(large=EXPONENTS, steep=EXPONENTS, spread=st.integers(0, 40), flushed=st.booleans())
    def sweep(large: float, steep: float, spread: int, flushed: bool) -> None:
        check(make, shape, large, steep, kernels, spread, flushed)

    sweep()


@FLUSHING
@pytest.mark.parametrize("kernels", ROUTES)
@pytest.mark.parametrize("steep", [-45, -20, 0, 10, 25, 38])
def test_embedding_rows_stay_below_the_bound(kernels, steep, flushed):
    network, tokens = nn.Sequential(nn.Embedding(7, 5), Last()), torch.randint(7, (1, 9))
    try:
        found = released(network, tokens, torch.randn(1, 45) * 10.0**steep, kernels, flushed)
    except NotFinite:
        return
    assert float(found.norm()) <= BOUND


@pytest.mark.parametrize("kernels", ROUTES)
def test_a_gradient_that_overflows_is_refused(kernels):
    with pytest.raises(NotFinite):
        released(
            nn.Sequential(nn.Linear(30, 20), Last()), torch.full((1, 30), 1e30), torch.full((1, 20), 1e30), kernels
        )


@pytest.mark.parametrize("kernels", ROUTES)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_by_every_route(name, kernels, bad):
    make, shape = NETWORKS[name]
    network, inputs = nn.Sequential(make(), Last()), torch.randn(2, *shape)
    slopes = torch.randn_like(network(inputs))
    slopes[1, 0] = bad
    with pytest.raises(NotFinite, match="1 of 2 samples"):
        released(network, inputs, slopes, kernels)


@pytest.mark.parametrize("kernels", ROUTES)
def test_ordinary_magnitudes_are_not_reduced_by_the_margin(kernels):
    """A sample whose gradient is well below the clipping norm is released unchanged, to the last digits."""
    network = nn.Sequential(nn.Linear(30, 20), Last())
    inputs, slopes = torch.randn(1, 30) * 1e-6, torch.randn(1, 20) * 1e-6
    found = released(network, inputs, slopes, kernels)
    expected = torch.cat([(slopes.T.double() @ inputs.double()).flatten(), slopes.double().flatten()])
    assert float((found - expected).norm()) <= 1e-6 * float(expected.norm())
