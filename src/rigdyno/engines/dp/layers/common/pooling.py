"""nn.AdaptiveAvgPool2d(1), with a gradient in channels-last layout.

It has no parameters. But torch's own backward uses another layout than that of the maps, so that every gradient it is
added to would have to be converted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from rigdyno.engines.dp.layers import PrivateLayer


class Pool(PrivateLayer):
    @classmethod
    def supports(cls, module: nn.Module) -> bool:
        return type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1))

    def forward(self, inputs: Tensor) -> Any:
        if not torch.is_grad_enabled() or inputs.dim() != 4 or not self.kernels_fit(inputs):
            return self.run_plain(inputs)
        return _Mean.apply(inputs)


class _Mean(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.shape = inputs.shape
        return inputs.mean(dim=(2, 3), keepdim=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the same value for all positions, stored only once."""
        spread: Tensor = (gradient / ctx.shape[2:].numel()).expand(ctx.shape)
        return spread
