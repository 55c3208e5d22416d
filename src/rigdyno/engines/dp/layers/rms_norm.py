"""Rule for nn.RMSNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from rigdyno.engines.dp.layers import LayerCall, PrivateLayer, report_scale_and_shift


class Rule(PrivateLayer):
    handles = (nn.RMSNorm,)
    any_axis = True

    def run(self, inputs: Tensor) -> Tensor:
        call = self.call(inputs)
        return _RMSNorm.apply(inputs, call.anchor, call)  # type: ignore[no-any-return]


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, call: LayerCall) -> Tensor:
        module = call.module
        assert isinstance(module, nn.RMSNorm)
        ctx.axes = tuple(range(-len(module.normalized_shape), 0))
        eps = torch.finfo(inputs.dtype).eps if module.eps is None else module.eps
        rstd = inputs.square().mean(dim=ctx.axes, keepdim=True).add_(eps).rsqrt_()
        normalised = inputs * rstd
        ctx.save_for_backward(normalised, rstd)
        ctx.call = call
        return normalised if module.weight is None else normalised * module.weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        normalised, rstd = ctx.saved_tensors
        weight = ctx.call.module.weight
        report_scale_and_shift(ctx.call, normalised, gradient, len(ctx.axes))
        scaled = gradient if weight is None else gradient * weight
        along = (scaled * normalised).mean(dim=ctx.axes, keepdim=True)
        return (scaled - normalised * along) * rstd, None, None
