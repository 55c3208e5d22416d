"""nn.AdaptiveAvgPool2d(1), which has no parameters: torch's own way back writes its gradient down in another layout
than the maps', and whatever it is added to is turned around."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from rigdyno.engines.dp.layers import Layer


class Pool(Layer):
    @classmethod
    def can(cls, module: nn.Module) -> bool:
        return type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1))

    def forward(self, inputs: Tensor) -> Any:
        if not torch.is_grad_enabled() or inputs.dim() != 4 or not self.kernels_fit(inputs):
            return self.plain(inputs)
        return _Mean.apply(inputs)


class _Mean(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.shape = inputs.shape
        return inputs.mean(dim=(2, 3), keepdim=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """One value for all places, which is written down once."""
        spread: Tensor = (gradient / ctx.shape[2:].numel()).expand(ctx.shape)
        return spread
