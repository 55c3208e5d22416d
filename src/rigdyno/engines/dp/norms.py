"""Squared norms of every sample's gradient, never below the truth by more than the margin that clipping leaves.

Sums of squares run over short blocks in the tensor's own precision, then in float64: float32 alone loses 4e-5 on large
layers, and a norm that is too small lets a sample through that is too large.

Squares of tiny values underflow, and with flush-to-zero tiny values are read as zero. A gradient is a product, so what
is lost there may be multiplied by something huge. Every sum of squares is therefore raised by what its terms may have
lost, FLUSHED each: nothing, unless the other factor is beyond 1e15. Squares that overflow become infinite, and a
gradient whose norm is not finite is refused.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 1024
# The square of a float32 is off by less than this where it underflows; float64 loses far less.
FLUSHED = 2.0**-125


class Norms(Protocol):
    """All in float64, (samples,)."""

    def of(self, values: Tensor) -> Tensor:
        """Of (samples, ...)."""

    def of_products(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Of sum_t g_t x_t', which isn't built; (samples, ..., T, features) each."""


class TorchNorms:
    """On any device."""

    def of(self, values: Tensor) -> Tensor:
        flat = values.reshape(len(values), math.prod(values.shape[1:]))
        whole = flat.shape[1] // BLOCK * BLOCK
        total = _squared(flat[:, whole:])
        if whole:
            total += _squared(flat[:, :whole].unflatten(1, (-1, BLOCK))).sum(dim=1)
        return total.add_(FLUSHED * flat.shape[1])

    def of_products(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """|x g'| = |x| |g|; more rows than one by their Gram matrices, the sum over s, t of (x_s . x_t)(g_s . g_t).
        These cancel where the gradients do, so what rounding may have taken away is added."""
        if inputs.dim() == 3 and inputs.shape[1] == 1:
            return self.of(inputs) * self.of(gradients)
        gram = (inputs @ inputs.mT).mul_(gradients @ gradients.mT)
        found = gram.flatten(1).sum(dim=1, dtype=torch.float64)
        share = rounding(inputs, gradients)
        slack = (_energies(inputs, share) * _energies(gradients, share)).flatten(1).sum(dim=1) * share
        return found.clamp_(min=0.0).add_(slack).add_(FLUSHED * gram.shape[1:].numel())


class KernelNorms(TorchNorms):
    """By our own loops, for float32 on a CPU, where the work is small and calls would cost more than it."""

    def of(self, values: Tensor) -> Tensor:
        from rigdyno.engines.dp.kernels import norms

        if values.dtype != torch.float32 or not values.is_contiguous():
            return super().of(values)
        found = torch.empty(len(values), dtype=torch.float64)
        norms.squares(values.flatten(1).numpy(), found.numpy())
        return found

    def of_products(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        from rigdyno.engines.dp.kernels import gram

        if inputs.dim() == 4 and inputs.shape[1] == 1:  # the groups of a convolution that has but one
            inputs, gradients = inputs[:, 0], gradients[:, 0].contiguous()
        fits = inputs.dtype == torch.float32 and inputs.dim() == 3
        if not fits or not (inputs.is_contiguous() and gradients.is_contiguous()):
            return super().of_products(inputs, gradients)
        found = torch.empty(len(inputs), dtype=torch.float64)
        gram.gram(inputs.numpy(), gradients.numpy(), found.numpy(), rounding(inputs, gradients))
        return found


def rounding(inputs: Tensor, gradients: Tensor) -> float:
    """What sums of products of two rows may be off by, relative to the rows' size: errors add up like a random walk."""
    longest = max(inputs.shape[-1], gradients.shape[-1])
    return 8.0 * math.sqrt(longest) * torch.finfo(inputs.dtype).eps / 2


def _energies(values: Tensor, share: float) -> Tensor:
    """Of all rows together; the share of it that is added to a norm covers what products of two rows have lost."""
    lost = FLUSHED / share * values.shape[-2:].numel()
    return _squared(values).sum(dim=-1, keepdim=True).add_(lost)


def _squared(values: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(values, dim=-1)
    return norms.double().square()
