"""Rule for nn.MultiheadAttention: its projections are linear layers, and the attention itself has no parameters."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional

from rigdyno.engines.dp.checks.axes import tensors_in
from rigdyno.engines.dp.errors import MixesSamples
from rigdyno.engines.dp.gradients.contributions import Outer, PartialGradient, PerSample, as_rows
from rigdyno.engines.dp.layers import LayerCall, PrivateLayer
from rigdyno.engines.dp.layers.linear import private_linear


class Rule(PrivateLayer):
    handles = (nn.MultiheadAttention,)

    parameters = frozenset({"in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"})

    @classmethod
    def supports(cls, module: nn.Module) -> bool:
        assert isinstance(module, nn.MultiheadAttention)
        return module.bias_k is None and not module.add_zero_attn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.run_plain(*args, **kwargs)
        expected = 0 if self.module.batch_first else 1
        axes = self.find_axes(args, kwargs).inputs
        known = dict(zip(map(id, tensors_in((args, kwargs))), axes, strict=False))
        given = [*args[:3], *(kwargs[name] for name in ("query", "key", "value") if name in kwargs)]
        if any(known.get(id(part), expected) != expected or part.dim() != 3 for part in given):
            raise MixesSamples(
                f"{self.name}: its inputs must have three axes, with the samples along axis {expected} (batch_first is "
                f"{self.module.batch_first}), or else it attends across samples"
            )
        return self.run(*args, **kwargs)

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        module = self.module
        assert isinstance(module, nn.MultiheadAttention)
        first = module.batch_first
        own = query is key and key is value
        query, key, value = (given if first else given.transpose(0, 1) for given in (query, key, value))
        heads = [self._split_heads(part) for part in self._project(query, key, value, own)]
        mask = _combine_masks(attn_mask, key_padding_mask, heads[0], heads[1])
        found, shares = self._attend(heads, mask, need_weights)
        found = private_linear(self, found.transpose(1, 2).flatten(2), (module.out_proj.weight, module.out_proj.bias))
        if shares is not None and average_attn_weights:
            shares = shares.mean(dim=1)
        return found if first else found.transpose(0, 1), shares

    def _project(self, query: Tensor, key: Tensor, value: Tensor, own: bool) -> list[Tensor]:
        module = self.module
        assert isinstance(module, nn.MultiheadAttention)
        if own and module.in_proj_weight is not None:
            return list(private_linear(self, query, (module.in_proj_weight, module.in_proj_bias)).chunk(3, dim=-1))
        return [self._project_part(number, given) for number, given in enumerate((query, key, value))]

    def _project_part(self, number: int, given: Tensor) -> Tensor:
        call = self.call(given)
        return _Projection.apply(given, call.anchor, call, number)  # type: ignore[no-any-return]

    def _split_heads(self, values: Tensor) -> Tensor:
        split: Tensor = values.unflatten(2, (self.module.num_heads, -1))
        return split.transpose(1, 2)

    def _attend(self, heads: list[Tensor], mask: Tensor | None, shares_too: bool) -> tuple[Tensor, Tensor | None]:
        module, (query, key, value) = self.module, heads
        assert isinstance(module, nn.MultiheadAttention)
        dropout = module.dropout if module.training else 0.0
        if not shares_too:
            return functional.scaled_dot_product_attention(query, key, value, mask, dropout), None
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        shares = (scores if mask is None else scores + mask).softmax(dim=-1)
        shares = functional.dropout(shares, dropout) if dropout else shares
        return shares @ value, shares


class _Projection(Function):
    """One of the three projections, if queries, keys and values differ. Its parameters are rows of packed ones."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, anchor: Tensor, call: LayerCall, number: int) -> Tensor:
        ctx.save_for_backward(given)
        ctx.call, ctx.number = call, number
        weight, first, last = _find_rows(call.module, number)
        bias = call.module.in_proj_bias
        assert bias is None or isinstance(bias, Tensor)
        size = call.module.embed_dim
        assert isinstance(size, int)
        return functional.linear(
            given, weight[first:last], None if bias is None else bias[number * size : (number + 1) * size]
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (given,), call = ctx.saved_tensors, ctx.call
        weight, first, last = _find_rows(call.module, ctx.number)
        bias, size = call.module.in_proj_bias, call.module.embed_dim
        rows = as_rows(gradient)
        if call.is_trained(weight):
            call.add(weight, PartialGradient(Outer(as_rows(given), rows), [slice(first, last)], weight.shape))
        if bias is not None and call.is_trained(bias):
            begin = ctx.number * size
            call.add(bias, PartialGradient(PerSample(rows.sum(dim=1)), [slice(begin, begin + size)], bias.shape))
        return gradient @ weight[first:last] if ctx.needs_input_grad[0] else None, None, None, None


def _find_rows(module: nn.Module, number: int) -> tuple[nn.Parameter, int, int]:
    """Return the parameter that contains a projection's weight, and the first and last row of that weight."""
    assert isinstance(module, nn.MultiheadAttention)
    size, packed = module.embed_dim, cast("nn.Parameter | None", module.in_proj_weight)
    if packed is not None:
        return packed, number * size, (number + 1) * size
    weight = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)[number]
    return weight, 0, size


def _combine_masks(attention: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Combine both masks into one that is added to the scores. It broadcasts to (samples, heads, queries, keys)."""
    found = None
    if attention is not None:
        found = _make_additive(attention, query.dtype)
        if found.dim() == 3:
            found = found.unflatten(0, (len(query), -1))
    if padding is not None:
        keys = _make_additive(padding, query.dtype)[:, None, None, :]
        found = keys if found is None else found + keys
    return found


def _make_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
