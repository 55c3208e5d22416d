"""Contributions: what one use of a parameter adds to every sample's gradient, in the cheapest form to compute with.

PerSample stores the per-sample gradients themselves, if they are small. Outer stores the layer's inputs and output
gradients and never builds their products: the norms come from Gram matrices, and the weighted sum is one ordinary
matrix product.

Squared norms are never below the truth by more than the margin that clipping leaves. Sums of squares run over short
blocks in the tensor's own precision, then in float64: float32 alone loses 4e-5 on large layers, and a norm that is too
small lets a gradient pass that is too large.

Squares of tiny values underflow, and with flush-to-zero tiny values are read as zero. A gradient is a product, so a
lost value may be multiplied by a huge one. Every sum of squares is therefore raised by what its terms may have lost,
FLUSHED each, which matters only if the other factor is above 1e15. Squares that overflow become infinite, and a
gradient whose norm isn't finite is refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 1024

# Largest error of the square of a float32 that underflows; float64 loses far less.
FLUSHED = 2.0**-125

# Writing a gradient and reading it twice takes as much time as this many multiply-adds for each of its values.
TRAFFIC = 100.0


class Norms(Protocol):
    """Computes squared norms per sample: (samples,) in float64."""

    def compute(self, values: Tensor) -> Tensor:
        """Return the squared norms of (samples, ...)."""

    def compute_products(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Return the squared norms of sum_t g_t x_t', which isn't built; both are (samples, ..., T, features)."""


class TorchNorms:
    """Norms by torch alone, on any device."""

    def compute(self, values: Tensor) -> Tensor:
        flat = values.reshape(len(values), math.prod(values.shape[1:]))
        whole = flat.shape[1] // BLOCK * BLOCK
        total = _square_norms(flat[:, whole:])
        if whole:
            total += _square_norms(flat[:, :whole].unflatten(1, (-1, BLOCK))).sum(dim=1)
        return total.add_(FLUSHED * flat.shape[1])

    def compute_products(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Return |x|^2 |g|^2 for a single row, else the sum over s, t of (x_s . x_t)(g_s . g_t), by Gram matrices.

        These terms cancel where the gradients do, so the possible rounding error is added.
        """
        if inputs.dim() == 3 and inputs.shape[1] == 1:
            return self.compute(inputs) * self.compute(gradients)
        gram = (inputs @ inputs.mT).mul_(gradients @ gradients.mT)
        found = gram.flatten(1).sum(dim=1, dtype=torch.float64)
        share = rounding_share(inputs, gradients)
        slack = (_sum_squares(inputs, share) * _sum_squares(gradients, share)).flatten(1).sum(dim=1) * share
        return found.clamp_(min=0.0).add_(slack).add_(FLUSHED * gram.shape[1:].numel())


class KernelNorms(TorchNorms):
    """Norms by kernels, for float32 on a CPU: the work is small, and several calls of torch would cost more."""

    def compute(self, values: Tensor) -> Tensor:
        from rigdyno.engines.dp.kernels import sums

        if values.dtype != torch.float32 or not values.is_contiguous():
            return super().compute(values)
        found = torch.empty(len(values), dtype=torch.float64)
        sums.squares(values.flatten(1).numpy(), found.numpy())
        return found

    def compute_products(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        from rigdyno.engines.dp.kernels import gram

        if inputs.dim() == 4 and inputs.shape[1] == 1:  # a convolution with one group
            inputs, gradients = inputs[:, 0], gradients[:, 0].contiguous()
        fits = inputs.dtype == torch.float32 and inputs.dim() == 3
        if not fits or not (inputs.is_contiguous() and gradients.is_contiguous()):
            return super().compute_products(inputs, gradients)
        found = torch.empty(len(inputs), dtype=torch.float64)
        gram.gram(inputs.numpy(), gradients.numpy(), found.numpy(), rounding_share(inputs, gradients))
        return found


def rounding_share(inputs: Tensor, gradients: Tensor) -> float:
    """Return the possible rounding error of a dot product of two rows, relative to their norms.

    Rounding errors add up like a random walk.
    """
    longest = max(inputs.shape[-1], gradients.shape[-1])
    return 8.0 * math.sqrt(longest) * torch.finfo(inputs.dtype).eps / 2


def _sum_squares(values: Tensor, share: float) -> Tensor:
    """Return the sum of squares of all rows together, raised by what products of two rows may have lost."""
    lost = FLUSHED / share * values.shape[-2:].numel()
    return _square_norms(values).sum(dim=-1, keepdim=True).add_(lost)


def _square_norms(values: Tensor) -> Tensor:
    sums: Tensor = torch.linalg.vector_norm(values, dim=-1)
    return sums.double().square()


class Contribution(Protocol):
    """The per-sample gradients of one use of a parameter."""

    def squared_norms(self, norms: Norms) -> Tensor:
        """Return the squared norm of each sample's gradient: (samples,) in float64."""

    def per_sample(self) -> Tensor:
        """Return the per-sample gradients: (samples, *shape of the parameter)."""

    def add_weighted(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        """Compute into = beta * into + sum over samples of weight * gradient. None: all weights are 1."""


class PerSample:
    """Per-sample gradients that are stored, with their squared norms if the kernel has computed them.

    `order` maps the parameter's axes to the gradients' axes: kernels keep the channels innermost.
    """

    def __init__(self, gradients: Tensor, squared: Tensor | None = None, order: Sequence[int] | None = None) -> None:
        self._gradients, self._square_norms, self._order = gradients, squared, order

    def squared_norms(self, norms: Norms) -> Tensor:
        return norms.compute(self._gradients) if self._square_norms is None else self._square_norms

    def per_sample(self) -> Tensor:
        if self._order is None:
            return self._gradients
        return self._gradients.permute(0, *(axis + 1 for axis in self._order))

    def add_weighted(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        rows = self._gradients if self._gradients.dim() == 2 else self._gradients.flatten(1)
        if weights is None:
            weights = rows.new_ones(len(rows))
        if into.dim() == 1 and self._order is None:
            into.addmv_(rows.T, weights, beta=beta)
            return
        target = into if self._order is None else into.permute(*invert_order(self._order))
        if target.is_contiguous():
            target.view(-1).addmv_(rows.T, weights, beta=beta)
        else:
            add_or_copy((weights @ rows).view(target.shape), target, beta)


class Outer:
    """Gradients sum_t g_t x_t' of a weight (outputs, inputs); x is (samples, T, inputs), g (samples, T, outputs)."""

    def __init__(self, inputs: Tensor, gradients: Tensor) -> None:
        self._inputs, self._gradients = inputs, gradients
        self._built: PerSample | None = None

    def squared_norms(self, norms: Norms) -> Tensor:
        terms, width, height = self._inputs.shape[1], self._inputs.shape[2], self._gradients.shape[2]
        if terms == 1 or gram_is_cheaper(terms, width, height):
            return norms.compute_products(self._inputs, self._gradients)
        self._built = PerSample(self.per_sample())
        del self._inputs, self._gradients
        return self._built.squared_norms(norms)

    def per_sample(self) -> Tensor:
        return self._built.per_sample() if self._built else self._gradients.mT @ self._inputs

    def add_weighted(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        if self._built:
            self._built.add_weighted(weights, into, beta)
            return
        inputs, gradients = self._inputs, self._gradients
        if weights is not None:
            if inputs.shape[2] < gradients.shape[2]:  # either may be scaled: the smaller one is less work
                inputs = inputs * weights.view(-1, 1, 1)
            else:
                gradients = gradients * weights.view(-1, 1, 1)
        matrix = into.view(gradients.shape[2], inputs.shape[2])
        matrix.addmm_(gradients.flatten(0, 1).T, inputs.flatten(0, 1), beta=beta)


def as_rows(values: Tensor) -> Tensor:
    """Reshape (samples, ..., features) to (samples, T, features)."""
    return values.unsqueeze(1) if values.dim() == 2 else values.flatten(1, -2)


def add_or_copy(found: Tensor, into: Tensor, beta: float) -> None:
    into.add_(found) if beta else into.copy_(found)


def invert_order(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda axis: order[axis])


def gram_is_cheaper(terms: int, width: int, height: int) -> bool:
    """Return True if Gram matrices take less time than building the gradient of width x height.

    A gradient that is built saves the matrix product at the end.
    """
    return terms * terms * (width + height) < TRAFFIC * width * height


class PartialGradient:
    """A gradient of a part of a parameter, such as one of three packed projections, or the taps that see the map."""

    def __init__(self, contribution: Contribution, where: Sequence[slice], shape: torch.Size) -> None:
        self.where = tuple(where)
        self._contribution, self._shape = contribution, shape

    def squared_norms(self, norms: Norms) -> Tensor:
        return self._contribution.squared_norms(norms)

    def per_sample(self) -> Tensor:
        own = self._contribution.per_sample()
        whole = own.new_zeros(len(own), *self._shape)
        at = (slice(None), *self.where)
        whole[at] = own
        return whole

    def add_weighted(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        if beta == 0.0:
            into.zero_()
        self._contribution.add_weighted(weights, into[self.where], 1.0)


class Disjoint:
    """Gradients of parts of a parameter that don't overlap: their squared norms add up."""

    def __init__(self, parts: Sequence[PartialGradient]) -> None:
        self._parts = parts

    def squared_norms(self, norms: Norms) -> Tensor:
        return torch.stack([piece.squared_norms(norms) for piece in self._parts]).sum(dim=0)

    def per_sample(self) -> Tensor:
        return torch.stack([piece.per_sample() for piece in self._parts]).sum(dim=0)

    def add_weighted(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        for piece in self._parts:
            piece.add_weighted(weights, into, beta)
            beta = 1.0


def sum_contributions(uses: list[Contribution]) -> Contribution:
    """Add up the contributions of several uses of a parameter. The norm of a sum isn't the sum of the norms."""
    parts = [use for use in uses if isinstance(use, PartialGradient)]
    if len(parts) == len(uses) and all(_are_disjoint(one, other) for one, other in itertools.combinations(parts, 2)):
        return Disjoint(parts)
    return PerSample(torch.stack([use.per_sample() for use in uses]).sum(dim=0))


def _are_disjoint(one: PartialGradient, other: PartialGradient) -> bool:
    """Return True if along some axis one ends before the other begins."""
    pairs = zip(one.where, other.where, strict=True)
    return any(a.stop <= b.start or b.stop <= a.start for a, b in pairs)
