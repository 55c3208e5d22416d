"""Rule for nn.Embedding: the gradient of a sample is that of the rows it looked up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional

from rigdyno.engines.dp.gradients.contributions import Norms
from rigdyno.engines.dp.layers import LayerCall, PrivateLayer


class Rule(PrivateLayer):
    handles = (nn.Embedding,)
    any_axis = True

    @classmethod
    def explain_refusal(cls, module: nn.Module) -> str | None:
        for option in ("scale_grad_by_freq", "max_norm"):
            if getattr(module, option):
                return f"{option} lets samples change each other's rows: make the embedding without it"
        return None

    def run(self, looked_up: Tensor) -> Tensor:
        call = self.call(looked_up)
        return _Embedding.apply(looked_up, call.anchor, call)  # type: ignore[no-any-return]


class Rows:
    """Gradients of the rows looked up. `looked_up` is (samples, T), `gradient` is (samples, T, features)."""

    def __init__(self, looked_up: Tensor, gradient: Tensor, shape: torch.Size) -> None:
        self._looked_up, self._gradient, self._shape = looked_up, gradient, shape

    def squared_norms(self, norms: Norms) -> Tensor:
        """Return the squared norms. If a sample looks up a row twice, its gradients are summed before squaring."""
        samples = torch.arange(len(self._looked_up), device=self._looked_up.device)[:, None]
        keys, where = (self._looked_up + samples * self._shape[0]).flatten().unique(return_inverse=True)
        rows = self._gradient.new_zeros(len(keys), self._shape[1])
        rows.index_add_(0, where, self._gradient.flatten(0, 1))
        total = torch.zeros(len(self._looked_up), dtype=torch.float64, device=rows.device)
        return total.index_add_(0, keys // self._shape[0], norms.compute(rows))

    def per_sample(self) -> Tensor:
        found = self._gradient.new_zeros(len(self._looked_up), *self._shape)
        return found.scatter_add_(1, self._looked_up.unsqueeze(2).expand_as(self._gradient), self._gradient)

    def add_weighted(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        gradient = self._gradient if weights is None else self._gradient * weights[:, None, None]
        if beta == 0.0:
            into.zero_()
        into.index_add_(0, self._looked_up.flatten(), gradient.flatten(0, 1))


class _Embedding(Function):
    @staticmethod
    def forward(ctx: Any, looked_up: Tensor, anchor: Tensor, call: LayerCall) -> Tensor:
        module = call.module
        assert isinstance(module, nn.Embedding)
        ctx.save_for_backward(looked_up)
        ctx.call = call
        return functional.embedding(looked_up, module.weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        (looked_up,), module = ctx.saved_tensors, ctx.call.module
        rows = looked_up.flatten(1) if looked_up.dim() > 1 else looked_up.unsqueeze(1)
        gradient = gradient.reshape(*rows.shape, gradient.shape[-1])
        if module.padding_idx is not None:
            gradient = gradient.masked_fill((rows == module.padding_idx).unsqueeze(2), 0.0)
        if ctx.call.is_trained(module.weight):
            ctx.call.add(module.weight, Rows(rows, gradient, module.weight.shape))
        return None, None, None
