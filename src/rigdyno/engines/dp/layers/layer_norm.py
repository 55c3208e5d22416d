"""Rule for nn.LayerNorm: the scale's gradient is the sum over positions of normalised input times output gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from rigdyno.engines.dp.gradients.contributions import as_rows
from rigdyno.engines.dp.layers import LayerCall, PrivateLayer, report_scale_and_shift


class Rule(PrivateLayer):
    handles = (nn.LayerNorm,)
    any_axis = True

    def kernels(self) -> tuple[str, ...]:
        return ("layer_norm",)

    def run(self, inputs: Tensor) -> Tensor:
        call = self.call(inputs)
        return _LayerNorm.apply(inputs, call.anchor, call)  # type: ignore[no-any-return]


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, call: LayerCall) -> Tensor:
        module = call.module
        assert isinstance(module, nn.LayerNorm)
        shape = list(module.normalized_shape)
        found, mean, rstd = torch.native_layer_norm(inputs, shape, module.weight, module.bias, module.eps)
        ctx.save_for_backward(inputs, mean, rstd)
        ctx.call, ctx.shape = call, shape
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, mean, rstd = ctx.saved_tensors
        module = ctx.call.module
        if len(ctx.shape) == 1 and module.bias is not None and ctx.call.layer.kernels_fit(inputs):
            return _backward_by_kernel(ctx.call, inputs, gradient, mean, rstd), None, None
        report_scale_and_shift(ctx.call, (inputs - mean) * rstd, gradient, len(ctx.shape))
        if not ctx.needs_input_grad[0]:
            return None, None, None
        wanted = [True, False, False]
        found = torch.ops.aten.native_layer_norm_backward(
            gradient, inputs, ctx.shape, mean, rstd, module.weight, module.bias, wanted
        )
        return found[0], None, None


def _backward_by_kernel(call: LayerCall, inputs: Tensor, gradient: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    from rigdyno.engines.dp.kernels import layer_norm

    weight, bias = call.module.weight, call.module.bias
    assert isinstance(weight, Tensor)
    back, rows = torch.empty_like(inputs, memory_format=torch.contiguous_format), as_rows(inputs).contiguous()
    samples, positions, features = rows.shape
    scales, shifts = (rows.new_empty(samples, features) for _ in range(2))
    squared = torch.empty(2, samples, dtype=torch.float64)
    places = [figure.reshape(samples, positions) for figure in (mean, rstd)]
    known = (rows, as_rows(gradient).contiguous(), weight.detach(), *places)
    arguments: Any = [figure.numpy() for figure in (*known, as_rows(back), scales, shifts, squared)]
    layer_norm.backward(*arguments)
    call.add_sums((weight, scales, squared[0]), (bias, shifts, squared[1]))
    return back
