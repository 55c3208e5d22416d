"""nn.Conv1d, nn.Conv2d, nn.Conv3d: pointwise ones are products of matrices, depthwise ones sums over taps."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from rigdyno.engines.dp.contributions import Contribution, PerSample
from rigdyno.engines.dp.layers import Affine, Layer, LayerCall
from rigdyno.engines.dp.layers._depthwise import depthwise_by_kernel, tap_sums
from rigdyno.engines.dp.layers._geometry import Geometry, padded
from rigdyno.engines.dp.layers._patches import Patches, built_by_kernel, kernel_is_cheaper
from rigdyno.engines.dp.layers._pointwise import private_pointwise
from rigdyno.engines.dp.layout import channels_last, over_places


class Rule(Layer):
    handles = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

    def kernels(self) -> tuple[str, ...]:
        module = self.module
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        geometry = Geometry.of(module)
        if geometry.pointwise or len(geometry.kernel) != 2:
            return ()
        return ("depthwise",) if geometry.depthwise(module.weight) else ("convolution",)

    def run(self, inputs: Tensor) -> Tensor:
        module = self.module
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        call = self.call(inputs)
        geometry = Geometry.of(module)
        inputs = channels_last(padded(module, inputs))
        parameters = (module.weight, module.bias)
        if geometry.pointwise:
            return private_pointwise(call, geometry.strided(inputs), parameters)
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
        if call.trained(weight):
            call.add(weight, _contribution(call, ctx.geometry, inputs, gradient, weight))
        if bias is not None and call.trained(bias):
            call.add(bias, PerSample(over_places(gradient)))
        wanted = ctx.needs_input_grad[0]
        return ctx.geometry.input_gradient(gradient, inputs, weight) if wanted else None, None, None, None, None


def _contribution(
    call: LayerCall, geometry: Geometry, inputs: Tensor, gradient: Tensor, weight: Tensor
) -> Contribution:
    if geometry.depthwise(weight):
        return tap_sums(geometry, inputs, gradient, weight.shape)
    if call.layer.kernels_fit(inputs) and kernel_is_cheaper(geometry, gradient, weight):
        return built_by_kernel(geometry, inputs, gradient, weight)
    return Patches(geometry, inputs, gradient, weight)
