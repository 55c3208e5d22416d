"""Rule for nn.Linear: the weight's gradients are outer products of inputs and output gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from rigdyno.engines.dp.gradients.contributions import Outer, PerSample, as_rows
from rigdyno.engines.dp.layers import Affine, LayerCall, PrivateLayer


class Rule(PrivateLayer):
    handles = (nn.Linear, NonDynamicallyQuantizableLinear)
    any_axis = True

    def run(self, inputs: Tensor) -> Tensor:
        module = self.module
        assert isinstance(module, nn.Linear)
        return private_linear(self, inputs, (module.weight, module.bias))


def private_linear(layer: PrivateLayer, inputs: Tensor, parameters: Affine) -> Tensor:
    call = layer.call(inputs)
    return _Linear.apply(inputs, call.anchor, call, parameters)  # type: ignore[no-any-return]


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Compute rows times the weight's transpose into `out`: an output that is a view couldn't be changed in place."""
    if bias is None:
        torch.mm(rows, weight.T, out=out)
    else:
        torch.addmm(bias, rows, weight.T, out=out)


def report_linear(call: LayerCall, inputs: Tensor, gradient: Tensor, parameters: Affine) -> None:
    """Report the gradients of weight and bias. `inputs` and `gradient` are (samples, T, features)."""
    weight, bias = parameters
    if call.is_trained(weight):
        call.add(weight, Outer(inputs, gradient))
    if bias is not None and call.is_trained(bias):
        call.add(bias, PerSample(gradient.squeeze(1) if gradient.shape[1] == 1 else gradient.sum(dim=1)))


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, call: LayerCall, parameters: Affine) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.call, ctx.parameters = call, parameters
        weight, bias = parameters
        found = inputs.new_empty(*inputs.shape[:-1], len(weight))
        multiply(inputs.flatten(0, -2), weight, bias, found.flatten(0, -2))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inputs,) = ctx.saved_tensors
        report_linear(ctx.call, as_rows(inputs), as_rows(gradient), ctx.parameters)
        weight, _ = ctx.parameters
        return gradient @ weight if ctx.needs_input_grad[0] else None, None, None, None
