"""A convolution's gradient as a product of the patches under its kernel and the output's gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from rigdyno.engines.dp.contributions import PerSample, gram_is_cheaper, put
from rigdyno.engines.dp.layers._geometry import Geometry
from rigdyno.engines.dp.norms import gram_norms

# From here on one sample keeps the processor busy by itself, and its patches no longer fit into a cache.
ALONE_FROM_TERMS = 400


class Patches:
    def __init__(self, geometry: Geometry, inputs: Tensor, gradient: Tensor, weight: Tensor) -> None:
        self._geometry, self._inputs, self._gradient, self._weight = geometry, inputs, gradient, weight
        self._built: PerSample | None = None

    def squared_norms(self) -> Tensor:
        outputs = self._weight.shape[0] // self._geometry.groups
        if gram_is_cheaper(self._terms, self._weight[0].numel(), outputs):
            return gram_norms(self._geometry.patches(self._inputs), self._geometry.grouped(self._gradient))
        self._built = self._build()
        del self._inputs, self._gradient
        return self._built.squared_norms()

    def per_sample(self) -> Tensor:
        return (self._built or self._build()).per_sample()

    def _build(self) -> PerSample:
        return self._one_by_one() if self._terms >= ALONE_FROM_TERMS else self._from_patches()

    @property
    def _terms(self) -> int:
        return self._gradient[0, 0].numel()

    def add_weighed(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        if self._built:
            self._built.add_weighed(weights, into, beta)
            return
        gradient = self._gradient
        if weights is not None:
            gradient = gradient * weights.view(-1, *(1,) * (gradient.dim() - 1))
        put(self._geometry.weight_gradient(gradient, self._inputs, self._weight), into, beta)

    def _one_by_one(self) -> PerSample:
        pairs = zip(self._gradient.split(1), self._inputs.split(1), strict=True)
        return PerSample(torch.stack([self._geometry.weight_gradient(g, x, self._weight) for g, x in pairs]))

    def _from_patches(self) -> PerSample:
        found = self._geometry.grouped(self._gradient).mT @ self._geometry.patches(self._inputs)
        kernel = self._geometry.kernel
        found = found.flatten(1, 2).unflatten(2, (*kernel, self._weight.shape[1]))
        return PerSample(found, order=(0, 1 + len(kernel), *range(1, 1 + len(kernel))))
