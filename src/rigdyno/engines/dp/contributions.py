"""What one use of one parameter adds to every sample's gradient, held in the cheapest form that can still be weighed.

Per sample: the gradients themselves, where they are small. Outer: the layer's inputs and output gradients, whose
products are never built; their norm comes from Gram matrices, and the weighed sum is one ordinary product of matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rigdyno.engines.dp.norms import Norms

# Writing a gradient and reading it twice costs as much time as this many multiply-adds for each of its values.
TRAFFIC = 100.0


class Contribution(Protocol):
    def squared_norms(self, norms: Norms) -> Tensor:
        """(samples,) in float64."""

    def per_sample(self) -> Tensor:
        """(samples, *shape of the parameter)."""

    def add_weighed(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        """into = beta * into + sum over samples of weight * gradient; no weights: all one."""


class PerSample:
    """Gradients that are there anyway, with their norms where the kernel that made them gave those too.

    `order` says which axis of a gradient is which of the parameter's: kernels keep the channels innermost."""

    def __init__(self, gradients: Tensor, squared: Tensor | None = None, order: Sequence[int] | None = None) -> None:
        self._gradients, self._squared, self._order = gradients, squared, order

    def squared_norms(self, norms: Norms) -> Tensor:
        return norms.of(self._gradients) if self._squared is None else self._squared

    def per_sample(self) -> Tensor:
        if self._order is None:
            return self._gradients
        return self._gradients.permute(0, *(axis + 1 for axis in self._order))

    def add_weighed(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        rows = self._gradients if self._gradients.dim() == 2 else self._gradients.flatten(1)
        if weights is None:
            weights = rows.new_ones(len(rows))
        if into.dim() == 1 and self._order is None:
            into.addmv_(rows.T, weights, beta=beta)
            return
        target = into if self._order is None else into.permute(*inverse(self._order))
        if target.is_contiguous():
            target.view(-1).addmv_(rows.T, weights, beta=beta)
        else:
            put((weights @ rows).view(target.shape), target, beta)


class Outer:
    """sum over t of g_t x_t' for a weight of (outputs, inputs); x (samples, T, inputs), g (samples, T, outputs)."""

    def __init__(self, inputs: Tensor, gradients: Tensor) -> None:
        self._inputs, self._gradients = inputs, gradients
        self._built: PerSample | None = None

    def squared_norms(self, norms: Norms) -> Tensor:
        terms, width, height = self._inputs.shape[1], self._inputs.shape[2], self._gradients.shape[2]
        if terms == 1 or gram_is_cheaper(terms, width, height):
            return norms.of_products(self._inputs, self._gradients)
        self._built = PerSample(self.per_sample())
        del self._inputs, self._gradients
        return self._built.squared_norms(norms)

    def per_sample(self) -> Tensor:
        return self._built.per_sample() if self._built else self._gradients.mT @ self._inputs

    def add_weighed(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        if self._built:
            self._built.add_weighed(weights, into, beta)
            return
        inputs, gradients = self._inputs, self._gradients
        if weights is not None:
            if inputs.shape[2] < gradients.shape[2]:  # either may be weighed: the smaller one is less work
                inputs = inputs * weights.view(-1, 1, 1)
            else:
                gradients = gradients * weights.view(-1, 1, 1)
        matrix = into.view(gradients.shape[2], inputs.shape[2])
        matrix.addmm_(gradients.flatten(0, 1).T, inputs.flatten(0, 1), beta=beta)


def as_rows(values: Tensor) -> Tensor:
    """(samples, ..., features) as (samples, T, features)."""
    return values.unsqueeze(1) if values.dim() == 2 else values.flatten(1, -2)


def put(found: Tensor, into: Tensor, beta: float) -> None:
    into.add_(found) if beta else into.copy_(found)


def inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda axis: order[axis])


def gram_is_cheaper(terms: int, width: int, height: int) -> bool:
    """Than building the gradient of width x height, which then saves the product of matrices at the end."""
    return terms * terms * (width + height) < TRAFFIC * width * height


class Part:
    """Where only a part of a parameter has a gradient: one of three packed projections, the taps that see the map."""

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

    def add_weighed(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        if beta == 0.0:
            into.zero_()
        self._contribution.add_weighed(weights, into[self.where], 1.0)


class Disjoint:
    """Parts that don't touch: their squared norms add up."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def squared_norms(self, norms: Norms) -> Tensor:
        return torch.stack([piece.squared_norms(norms) for piece in self._parts]).sum(dim=0)

    def per_sample(self) -> Tensor:
        return torch.stack([piece.per_sample() for piece in self._parts]).sum(dim=0)

    def add_weighed(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        for piece in self._parts:
            piece.add_weighed(weights, into, beta)
            beta = 1.0


def summed(uses: list[Contribution]) -> Contribution:
    """A parameter that is used several times has one gradient a sample, and its norm isn't the sum of theirs."""
    parts = [use for use in uses if isinstance(use, Part)]
    if len(parts) == len(uses) and all(_apart(one, other) for one, other in itertools.combinations(parts, 2)):
        return Disjoint(parts)
    return PerSample(torch.stack([use.per_sample() for use in uses]).sum(dim=0))


def _apart(one: Part, other: Part) -> bool:
    """In some axis one ends before the other begins."""
    pairs = zip(one.where, other.where, strict=True)
    return any(a.stop <= b.start or b.stop <= a.start for a, b in pairs)
