"""Squared norms of every sample's gradient, never below the truth by more than the margin that clipping leaves.

Sums of squares run over short blocks in the tensor's own precision, then in float64: float32 alone loses 4e-5 on large
layers, and a norm that is too small lets a sample through that is too large.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 1024


def squared_norms(values: Tensor) -> Tensor:
    """Of every sample, in float64."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    whole = flat.shape[1] // BLOCK * BLOCK
    total = _squared(flat[:, whole:])
    if whole:
        total += _squared(flat[:, :whole].unflatten(1, (-1, BLOCK))).sum(dim=1)
    return total


def product_norms(inputs: Tensor, gradients: Tensor) -> Tensor:
    """Of outer products, one a sample: |x g'| = |x| |g|."""
    return squared_norms(inputs) * squared_norms(gradients)


def gram_norms(inputs: Tensor, gradients: Tensor) -> Tensor:
    """Of sum_t g_t x_t' without building it: the sum over s, t of (x_s . x_t)(g_s . g_t); (..., T, D) a sample.

    The two Gram matrices cancel where the gradients do, so what rounding may have taken away is added."""
    gram = (inputs @ inputs.mT).mul_(gradients @ gradients.mT)
    found = gram.flatten(1).sum(dim=1, dtype=torch.float64)
    energy = _energies(inputs) * _energies(gradients)
    longest = max(inputs.shape[-1], gradients.shape[-1])
    return found.clamp_(min=0.0).add_((energy * _rounding(longest, inputs.dtype)).flatten(1).sum(dim=1))


def _energies(values: Tensor) -> Tensor:
    return _squared(values).sum(dim=-1, keepdim=True)


def _rounding(terms: int, dtype: torch.dtype) -> float:
    """What sums of so many products may be off by, relative to the products' size: errors add up like a random walk."""
    return 8.0 * math.sqrt(terms) * torch.finfo(dtype).eps / 2


def _squared(values: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(values, dim=-1)
    return norms.double().square()
