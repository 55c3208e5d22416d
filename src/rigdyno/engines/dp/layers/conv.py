"""Rule for nn.Conv1d, nn.Conv2d and nn.Conv3d.

Pointwise convolutions (a kernel of one) are matrix products in channels-last layout. Depthwise convolutions have one
small gradient per channel, which is summed tap by tap. All others use patches, see common/patches.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from rigdyno.engines.dp.gradients.contributions import Contribution, PartialGradient, PerSample
from rigdyno.engines.dp.gradients.memory import (
    empty_channels_last,
    sum_over_positions,
    to_channels_last,
    to_maps,
    to_matrix,
    to_rows,
)
from rigdyno.engines.dp.layers import Affine, LayerCall, PrivateLayer
from rigdyno.engines.dp.layers.common.patches import (
    Geometry,
    PatchGradients,
    build_by_kernel,
    kernel_is_cheaper,
    pad_inputs,
    pad_with_zeros,
)
from rigdyno.engines.dp.layers.common.recompute import Recipe, find_recipe
from rigdyno.engines.dp.layers.linear import multiply, report_linear


def sum_taps(geometry: Geometry, inputs: Tensor, gradient: Tensor, shape: torch.Size) -> Contribution:
    """Compute the sum over positions of input times gradient for each tap, by torch alone."""
    maps = pad_with_zeros(inputs, geometry.padding).movedim(1, -1)
    gradient = gradient.movedim(1, -1)
    out, living = gradient.shape[1:-1], geometry.living_taps(inputs.shape[2:])
    taps = itertools.product(*(range(taps.start, taps.stop) for taps in living))
    sums = [(maps[_tap_slices(geometry, tap, out)] * gradient).flatten(1, -2).sum(dim=1) for tap in taps]
    found: Tensor = torch.stack(sums, dim=1).unflatten(1, [taps.stop - taps.start for taps in living])
    return _wrap_tap_sums(found.unsqueeze(-1), None, living, shape)


def _wrap_tap_sums(sums: Tensor, squared: Tensor | None, living: Sequence[slice], shape: torch.Size) -> Contribution:
    """Make a contribution of the sums of living taps.

    `sums` is (samples, taps ..., channels, 1), the weight (channels, 1, kernel ...).
    """
    axes = len(living)
    own = PerSample(sums, squared, order=(axes, axes + 1, *range(axes)))
    return PartialGradient(own, [slice(0, size) for size in shape[:2]] + list(living), shape)


def _tap_slices(geometry: Geometry, tap: tuple[int, ...], out: torch.Size) -> tuple[slice, ...]:
    """Return the slices of the map that a tap sees while the kernel moves."""
    slices = [slice(None)]
    for offset, size, stride, dilation in zip(tap, out, geometry.stride, geometry.dilation, strict=True):
        begin = offset * dilation
        slices.append(slice(begin, begin + (size - 1) * stride + 1, stride))
    return tuple(slices)


def depthwise_by_kernel(call: LayerCall, inputs: Tensor, geometry: Geometry, parameters: Affine) -> Tensor:
    recipe = find_recipe(inputs)
    return _Depthwise.apply(inputs, call.anchor, call, geometry, parameters, recipe)  # type: ignore[no-any-return]


class _Depthwise(Function):
    """Depthwise convolution by kernels. Backward computes the gradients of the maps and of the weight per sample, with
    their norms, in one pass over the maps."""

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
        out, living, steps = _plan_steps(geometry, inputs.shape[2:])
        ctx.save_for_backward(*([inputs] if recipe is None else recipe.tensors))
        ctx.sizes, ctx.recipe = inputs.shape, recipe and recipe.without_tensors()
        ctx.call, ctx.parameters, ctx.taps, ctx.living, ctx.steps = (
            call,
            parameters,
            _to_kernel_taps(weight),
            living,
            steps,
        )
        found = empty_channels_last(inputs.shape[0], weight.shape[0], out, inputs)
        depthwise.forward(to_maps(inputs), ctx.taps, to_maps(found), steps)
        return found if bias is None else found.add_(bias.view(-1, 1, 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from rigdyno.engines.dp.kernels import depthwise

        (inputs, *figures), (weight, bias), call = ctx.saved_tensors, ctx.parameters, ctx.call
        samples, channels, *places = ctx.sizes
        back = empty_channels_last(samples, channels, tuple(places), inputs)
        sums = inputs.new_empty(samples, *(taps.stop - taps.start for taps in ctx.living), channels, 1)
        squared = torch.empty(samples, dtype=torch.float64)
        known = (to_maps(gradient), ctx.taps, to_maps(back), sums.numpy()[..., 0], squared.numpy(), ctx.steps)
        if ctx.recipe is None:
            depthwise.backward(to_maps(inputs), *known)
        else:
            depthwise.backward_again(inputs.numpy(), *known, *ctx.recipe.arguments(*figures))
        if call.is_trained(weight):
            call.add(weight, _wrap_tap_sums(sums, squared, ctx.living, weight.shape))
        if bias is not None and call.is_trained(bias):
            call.add(bias, PerSample(sum_over_positions(gradient)))
        return back, None, None, None, None, None


def _to_kernel_taps(weight: Tensor) -> np.ndarray[Any, Any]:
    return weight.detach()[:, 0].permute(1, 2, 0).contiguous().numpy()


@lru_cache(maxsize=1024)
def _plan_steps(geometry: Geometry, sizes: torch.Size) -> tuple[tuple[int, ...], list[slice], np.ndarray[Any, Any]]:
    """Return the size of the output, the living taps, and the steps in the kernels' format."""
    living = geometry.living_taps(sizes)
    ends = [*(taps.start for taps in living), *(taps.stop for taps in living)]
    steps = np.array([*geometry.stride, *geometry.padding, *geometry.dilation, *ends], dtype=np.int64)
    return geometry.output_size(sizes), living, steps


def private_pointwise(call: LayerCall, inputs: Tensor, parameters: Affine) -> Tensor:
    return _Pointwise.apply(inputs, call.anchor, call, parameters)  # type: ignore[no-any-return]


class _Pointwise(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, call: LayerCall, parameters: Affine) -> Tensor:
        rows = to_rows(inputs)
        ctx.save_for_backward(rows)
        ctx.call, ctx.parameters = call, parameters
        weight, bias = parameters
        found = empty_channels_last(rows.shape[0], weight.shape[0], inputs.shape[2:], inputs)
        multiply(to_matrix(rows), weight.flatten(1), bias, to_matrix(to_rows(found)))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (rows,), (weight, _) = ctx.saved_tensors, ctx.parameters
        given = to_rows(gradient)
        report_linear(ctx.call, rows, given, ctx.parameters)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        found = empty_channels_last(rows.shape[0], rows.shape[2], gradient.shape[2:], rows)
        torch.mm(to_matrix(given), weight.flatten(1), out=to_matrix(to_rows(found)))
        return found, None, None, None


class Rule(PrivateLayer):
    handles = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

    def kernels(self) -> tuple[str, ...]:
        module = self.module
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        geometry = Geometry.from_module(module)
        if geometry.pointwise or len(geometry.kernel) != 2:
            return ()
        return ("depthwise",) if geometry.depthwise(module.weight) else ("convolution",)

    def run(self, inputs: Tensor) -> Tensor:
        module = self.module
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        call = self.call(inputs)
        geometry = Geometry.from_module(module)
        inputs = to_channels_last(pad_inputs(module, inputs))
        parameters = (module.weight, module.bias)
        if geometry.pointwise:
            return private_pointwise(call, geometry.subsample(inputs), parameters)
        if len(geometry.kernel) == 2 and geometry.depthwise(module.weight) and self.kernels_fit(inputs):
            return depthwise_by_kernel(call, inputs, geometry, parameters)
        return _Convolution.apply(inputs, call.anchor, call, geometry, parameters)  # type: ignore[no-any-return]


class _Convolution(Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, anchor: Tensor, call: LayerCall, geometry: Geometry, parameters: Affine
    ) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.call, ctx.geometry, ctx.parameters = call, geometry, parameters
        return geometry.convolve(inputs, *parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inputs,), call = ctx.saved_tensors, ctx.call
        weight, bias = ctx.parameters
        if call.is_trained(weight):
            call.add(weight, _weight_contribution(call, ctx.geometry, inputs, gradient, weight))
        if bias is not None and call.is_trained(bias):
            call.add(bias, PerSample(sum_over_positions(gradient)))
        wanted = ctx.needs_input_grad[0]
        return ctx.geometry.input_gradient(gradient, inputs, weight) if wanted else None, None, None, None, None


def _weight_contribution(
    call: LayerCall, geometry: Geometry, inputs: Tensor, gradient: Tensor, weight: Tensor
) -> Contribution:
    if geometry.depthwise(weight):
        return sum_taps(geometry, inputs, gradient, weight.shape)
    if call.layer.kernels_fit(inputs) and kernel_is_cheaper(geometry, gradient, weight):
        return build_by_kernel(geometry, inputs, gradient, weight)
    return PatchGradients(geometry, inputs, gradient, weight)
