"""Expanded weights: every sample gets a view of the weights of its own, and autograd the gradient of each view.

The plain way to gradients of each sample, with torch's own operations: a convolution of a batch becomes one convolution
with as many times the groups. It keeps the network's gradient for every sample until the batch is clipped. It is there
to compare with: `PrivacyEngine(expanded=True)` clips, adds noise and counts as ever.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional

from rigdyno.engines.dp.contributions import PerSample, as_rows
from rigdyno.engines.dp.layers import Layer, LayerCall, conv, group_norm, layer_norm, linear
from rigdyno.engines.dp.layers._geometry import Geometry, padded


class _Views(Function):
    """Of a parameter, one for each sample."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, call: LayerCall, held: tuple[Tensor], samples: int) -> Tensor:
        ctx.call, ctx.held = call, held
        return held[0].detach().expand(samples, *held[0].shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        ctx.call.add(ctx.held[0], PerSample(gradient.contiguous()))
        return None, None, None, None


def _views(call: LayerCall, parameter: Any, samples: int) -> Any:
    if parameter is None or not call.trained(parameter):
        return parameter if parameter is None else parameter.detach().expand(samples, *parameter.shape)
    return _Views.apply(call.anchor, call, (parameter,), samples)


class Convolution(conv.Rule):
    def run(self, inputs: Tensor) -> Tensor:
        if not len(inputs):
            return super().run(inputs)  # of no sample there are no views
        module, samples = self.module, len(inputs)
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        call, geometry = self.call(inputs), Geometry.of(module)
        maps = padded(module, inputs).flatten(0, 1).unsqueeze(0)
        weights = _views(call, module.weight, samples).flatten(0, 1)
        found = geometry.times(samples).convolve(maps, weights, None).squeeze(0).unflatten(0, (samples, -1))
        return _shifted(found, _views(call, module.bias, samples))


class Linear(linear.Rule):
    def run(self, inputs: Tensor) -> Tensor:
        if not len(inputs):
            return super().run(inputs)
        module, samples = self.module, len(inputs)
        assert isinstance(module, nn.Linear)
        call = self.call(inputs)
        found = as_rows(inputs) @ _views(call, module.weight, samples).mT
        bias = _views(call, module.bias, samples)
        whole: Tensor = found if bias is None else found + bias.unsqueeze(1)
        return whole.view(*inputs.shape[:-1], -1)


class GroupNorm(group_norm.Rule):
    def run(self, inputs: Tensor) -> Tensor:
        module, samples = self.module, len(inputs)
        assert isinstance(module, nn.GroupNorm)
        if not samples or not module.affine:
            return super().run(inputs)
        call = self.call(inputs)
        scale, shift = _views(call, module.weight, samples), _views(call, module.bias, samples)
        normed = functional.group_norm(inputs, module.num_groups, None, None, module.eps)
        return _shifted(normed * _along_places(scale, normed), shift)


class LayerNorm(layer_norm.Rule):
    def run(self, inputs: Tensor) -> Tensor:
        module, samples = self.module, len(inputs)
        assert isinstance(module, nn.LayerNorm)
        if not samples or not module.elementwise_affine:
            return super().run(inputs)
        call, shape = self.call(inputs), list(module.normalized_shape)
        between = [1] * (inputs.dim() - 1 - len(shape))
        normed = functional.layer_norm(inputs, shape, None, None, module.eps)
        found: Tensor = normed * _views(call, module.weight, samples).reshape(samples, *between, *shape)
        shift = _views(call, module.bias, samples)
        if shift is not None:
            found = found + shift.reshape(samples, *between, *shape)
        return found


def _along_places(values: Tensor, maps: Tensor) -> Tensor:
    """(samples, channels) beside (samples, channels, places)."""
    return values.reshape(*values.shape, *[1] * (maps.dim() - values.dim()))


def _shifted(maps: Tensor, shift: Tensor | None) -> Tensor:
    return maps if shift is None else maps + _along_places(shift, maps)


EXPANDED: dict[type[Layer], type[Layer]] = {
    conv.Rule: Convolution,
    linear.Rule: Linear,
    group_norm.Rule: GroupNorm,
    layer_norm.Rule: LayerNorm,
}
