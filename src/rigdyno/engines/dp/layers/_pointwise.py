"""Convolutions with a kernel of one: products of matrices, with the channels innermost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from rigdyno.engines.dp.layers import Affine, LayerCall
from rigdyno.engines.dp.layers.linear import multiply, tell_linear
from rigdyno.engines.dp.layout import channels_inside, matrix_of, rows_of


def private_pointwise(call: LayerCall, inputs: Tensor, parameters: Affine) -> Tensor:
    return _Pointwise.apply(inputs, call.anchor, call, parameters)  # type: ignore[no-any-return]


class _Pointwise(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, call: LayerCall, parameters: Affine) -> Tensor:
        rows = rows_of(inputs)
        ctx.save_for_backward(rows)
        ctx.call, ctx.parameters = call, parameters
        weight, bias = parameters
        found = channels_inside(rows.shape[0], weight.shape[0], inputs.shape[2:], inputs)
        multiply(matrix_of(rows), weight.flatten(1), bias, matrix_of(rows_of(found)))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (rows,), (weight, _) = ctx.saved_tensors, ctx.parameters
        given = rows_of(gradient)
        tell_linear(ctx.call, rows, given, ctx.parameters)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        found = channels_inside(rows.shape[0], rows.shape[2], gradient.shape[2:], rows)
        torch.mm(matrix_of(given), weight.flatten(1), out=matrix_of(rows_of(found)))
        return found, None, None, None
