"""Depthwise convolutions: one small gradient a channel, summed tap by tap; no channels x channels matrix is built."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from rigdyno.engines.dp.contributions import Contribution, Part, PerSample
from rigdyno.engines.dp.layers import Affine, LayerCall
from rigdyno.engines.dp.layers._again import Recipe, recipe_of
from rigdyno.engines.dp.layers._geometry import Geometry, zero_padded
from rigdyno.engines.dp.layout import channels_inside, maps_of, over_places


def tap_sums(geometry: Geometry, inputs: Tensor, gradient: Tensor, shape: torch.Size) -> Contribution:
    """Of each tap, the sum over places of input times gradient; by torch alone."""
    maps = zero_padded(inputs, geometry.padding).movedim(1, -1)
    gradient = gradient.movedim(1, -1)
    out, living = gradient.shape[1:-1], geometry.living_taps(inputs.shape[2:])
    taps = itertools.product(*(range(taps.start, taps.stop) for taps in living))
    sums = [(maps[_under(geometry, tap, out)] * gradient).flatten(1, -2).sum(dim=1) for tap in taps]
    found: Tensor = torch.stack(sums, dim=1).unflatten(1, [taps.stop - taps.start for taps in living])
    return _of_living_taps(found.unsqueeze(-1), None, living, shape)


def _of_living_taps(sums: Tensor, squared: Tensor | None, living: Sequence[slice], shape: torch.Size) -> Contribution:
    """`sums` is (samples, taps ..., channels, 1), the weight (channels, 1, kernel ...)."""
    axes = len(living)
    own = PerSample(sums, squared, order=(axes, axes + 1, *range(axes)))
    return Part(own, [slice(0, size) for size in shape[:2]] + list(living), shape)


def _under(geometry: Geometry, tap: tuple[int, ...], out: torch.Size) -> tuple[slice, ...]:
    """What a tap sees while the kernel moves."""
    slices = [slice(None)]
    for offset, size, stride, dilation in zip(tap, out, geometry.stride, geometry.dilation, strict=True):
        begin = offset * dilation
        slices.append(slice(begin, begin + (size - 1) * stride + 1, stride))
    return tuple(slices)


def depthwise_by_kernel(call: LayerCall, inputs: Tensor, geometry: Geometry, parameters: Affine) -> Tensor:
    recipe = recipe_of(inputs)
    return _Depthwise.apply(inputs, call.anchor, call, geometry, parameters, recipe)  # type: ignore[no-any-return]


class _Depthwise(Function):
    """Both gradients, per-sample ones of the weight and their norms, in one pass over the maps."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        anchor: Tensor,
        call: LayerCall,
        geometry: Geometry,
        parameters: Affine,
        recipe: Recipe | None,
    ) -> Tensor:
        from rigdyno.engines.dp.kernels import depthwise

        weight, bias = parameters
        out, living, steps = _plan(geometry, inputs.shape[2:])
        ctx.save_for_backward(*([inputs] if recipe is None else recipe.tensors))
        ctx.sizes, ctx.recipe = inputs.shape, recipe and recipe.without_tensors()
        ctx.call, ctx.parameters, ctx.taps, ctx.living, ctx.steps = call, parameters, _taps(weight), living, steps
        found = channels_inside(inputs.shape[0], weight.shape[0], out, inputs)
        depthwise.forward(maps_of(inputs), ctx.taps, maps_of(found), steps)
        return found if bias is None else found.add_(bias.view(-1, 1, 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from rigdyno.engines.dp.kernels import depthwise

        (inputs, *figures), (weight, bias), call = ctx.saved_tensors, ctx.parameters, ctx.call
        samples, channels, *places = ctx.sizes
        back = channels_inside(samples, channels, tuple(places), inputs)
        sums = inputs.new_empty(samples, *(taps.stop - taps.start for taps in ctx.living), channels, 1)
        squared = torch.empty(samples, dtype=torch.float64)
        known = (maps_of(gradient), ctx.taps, maps_of(back), sums.numpy()[..., 0], squared.numpy(), ctx.steps)
        if ctx.recipe is None:
            depthwise.backward(maps_of(inputs), *known)
        else:
            depthwise.backward_again(inputs.numpy(), *known, *ctx.recipe.arguments(*figures))
        if call.trained(weight):
            call.add(weight, _of_living_taps(sums, squared, ctx.living, weight.shape))
        if bias is not None and call.trained(bias):
            call.add(bias, PerSample(over_places(gradient)))
        return back, None, None, None, None, None


def _taps(weight: Tensor) -> np.ndarray[Any, Any]:
    return weight.detach()[:, 0].permute(1, 2, 0).contiguous().numpy()


@lru_cache(maxsize=1024)
def _plan(geometry: Geometry, sizes: torch.Size) -> tuple[tuple[int, ...], list[slice], np.ndarray[Any, Any]]:
    """The answer's places, the taps that ever see the map, and the steps as the kernels want them."""
    living = geometry.living_taps(sizes)
    ends = [*(taps.start for taps in living), *(taps.stop for taps in living)]
    steps = np.array([*geometry.stride, *geometry.padding, *geometry.dilation, *ends], dtype=np.int64)
    return geometry.out(sizes), living, steps
