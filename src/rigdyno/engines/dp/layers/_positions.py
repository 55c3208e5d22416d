"""Norms over the last axes: what their scale and shift add, a sample."""

from __future__ import annotations

from torch import Tensor

from rigdyno.engines.dp.contributions import PerSample
from rigdyno.engines.dp.layers import LayerCall


def tell_scale_and_shift(call: LayerCall, normalised: Tensor, gradient: Tensor, axes: int) -> None:
    """Both are (samples, positions ..., normalised axes ...)."""
    weight, bias = call.module.weight, getattr(call.module, "bias", None)
    if call.trained(weight):
        call.add(weight, PerSample(_over_positions(normalised * gradient, axes)))
    if call.trained(bias):
        call.add(bias, PerSample(_over_positions(gradient, axes)))


def _over_positions(values: Tensor, axes: int) -> Tensor:
    between = values.dim() - 1 - axes
    return values.flatten(1, between).sum(dim=1) if between else values
