"""Expanded weights: every sample gets its own view of the weights, and autograd computes the gradient of each view.

This is the plain way to compute per-sample gradients with torch's own operations: a convolution of a batch becomes one
convolution with (batch size) times as many groups. It keeps the gradients of all samples until the batch is clipped.
Its purpose is comparison: `PrivacyEngine(expanded=True)` clips, adds noise and counts as usual.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional

from rigdyno.engines.dp.gradients.contributions import PerSample, as_rows
from rigdyno.engines.dp.layers import LayerCall, PrivateLayer, conv, group_norm, layer_norm, linear
from rigdyno.engines.dp.layers.common.patches import Geometry, pad_inputs


class _SampleViews(Function):
    """Views of a parameter, one for each sample."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, call: LayerCall, held: tuple[Tensor], samples: int) -> Tensor:
        ctx.call, ctx.held = call, held
        return held[0].detach().expand(samples, *held[0].shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        ctx.call.add(ctx.held[0], PerSample(gradient.contiguous()))
        return None, None, None, None


def _make_views(call: LayerCall, parameter: Any, samples: int) -> Any:
    if parameter is None or not call.is_trained(parameter):
        return parameter if parameter is None else parameter.detach().expand(samples, *parameter.shape)
    return _SampleViews.apply(call.anchor, call, (parameter,), samples)


class ExpandedConvolution(conv.Rule):
    def run(self, inputs: Tensor) -> Tensor:
        if not len(inputs):
            return super().run(inputs)  # an empty batch has no views
        module, samples = self.module, len(inputs)
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        call, geometry = self.call(inputs), Geometry.from_module(module)
        maps = pad_inputs(module, inputs).flatten(0, 1).unsqueeze(0)
        weights = _make_views(call, module.weight, samples).flatten(0, 1)
        found = geometry.repeat_groups(samples).convolve(maps, weights, None).squeeze(0).unflatten(0, (samples, -1))
        return _add_shift(found, _make_views(call, module.bias, samples))


class ExpandedLinear(linear.Rule):
    def run(self, inputs: Tensor) -> Tensor:
        if not len(inputs):
            return super().run(inputs)
        module, samples = self.module, len(inputs)
        assert isinstance(module, nn.Linear)
        call = self.call(inputs)
        found = as_rows(inputs) @ _make_views(call, module.weight, samples).mT
        bias = _make_views(call, module.bias, samples)
        whole: Tensor = found if bias is None else found + bias.unsqueeze(1)
        return whole.view(*inputs.shape[:-1], -1)


class ExpandedGroupNorm(group_norm.Rule):
    def run(self, inputs: Tensor) -> Tensor:
        module, samples = self.module, len(inputs)
        assert isinstance(module, nn.GroupNorm)
        if not samples or not module.affine:
            return super().run(inputs)
        call = self.call(inputs)
        scale, shift = _make_views(call, module.weight, samples), _make_views(call, module.bias, samples)
        normed = functional.group_norm(inputs, module.num_groups, None, None, module.eps)
        return _add_shift(normed * _expand_to_maps(scale, normed), shift)


class ExpandedLayerNorm(layer_norm.Rule):
    def run(self, inputs: Tensor) -> Tensor:
        module, samples = self.module, len(inputs)
        assert isinstance(module, nn.LayerNorm)
        if not samples or not module.elementwise_affine:
            return super().run(inputs)
        call, shape = self.call(inputs), list(module.normalized_shape)
        between = [1] * (inputs.dim() - 1 - len(shape))
        normed = functional.layer_norm(inputs, shape, None, None, module.eps)
        found: Tensor = normed * _make_views(call, module.weight, samples).reshape(samples, *between, *shape)
        shift = _make_views(call, module.bias, samples)
        if shift is not None:
            found = found + shift.reshape(samples, *between, *shape)
        return found


def _expand_to_maps(values: Tensor, maps: Tensor) -> Tensor:
    """Reshape (samples, channels) so that it broadcasts to (samples, channels, positions ...)."""
    return values.reshape(*values.shape, *[1] * (maps.dim() - values.dim()))


def _add_shift(maps: Tensor, shift: Tensor | None) -> Tensor:
    return maps if shift is None else maps + _expand_to_maps(shift, maps)


EXPANDED: dict[type[PrivateLayer], type[PrivateLayer]] = {
    conv.Rule: ExpandedConvolution,
    linear.Rule: ExpandedLinear,
    group_norm.Rule: ExpandedGroupNorm,
    layer_norm.Rule: ExpandedLayerNorm,
}
