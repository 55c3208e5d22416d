"""A convolution's gradient as a product of the patches under its kernel and the output's gradients.

Patches take the kernel's size times the memory of the input, but only for the moment; and their products with the
gradients run at the speed of plain matrix products, which the weight gradients of convolutions seldom reach. Where
matrices are too small for that speed, a kernel of our own forms the products without writing patches down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rigdyno.engines.dp.contributions import PerSample, gram_is_cheaper, inverse, put
from rigdyno.engines.dp.layers._geometry import Geometry
from rigdyno.engines.dp.layout import maps_of
from rigdyno.engines.dp.norms import Norms

# At once: more than this leaves the caches, and is memory that the system hands out anew each time.
PATCH_BYTES = 8e6
# Of one sample, from which on the convolution's own operation is used.
MOST_PATCH_BYTES = 256e6
# As TRAFFIC of contributions.py, for the kernel: it is quicker with small products, and sees the norms while it writes.
TRAFFIC_OF_KERNEL = 40.0
# The kernel sums in one chain of single precision.
MOST_PLACES_OF_KERNEL = 1024


def kernel_is_cheaper(geometry: Geometry, gradient: Tensor, weight: Tensor) -> bool:
    """For the convolutions that it can do, than patches are."""
    places, outputs, taps = gradient.shape[2:].numel(), len(weight), weight[0].numel()
    possible = len(geometry.kernel) == 2 and geometry.groups == 1 and set(geometry.dilation) == {1}
    large = places * places * (taps + outputs) >= TRAFFIC_OF_KERNEL * taps * outputs
    return possible and large and places <= MOST_PLACES_OF_KERNEL


def built_by_kernel(geometry: Geometry, inputs: Tensor, gradient: Tensor, weight: Tensor) -> PerSample:
    from rigdyno.engines.dp.kernels import convolution

    (down, across), (outputs, channels) = geometry.kernel, weight.shape[:2]
    taps = across * channels
    found = inputs.new_empty(len(inputs), down, *convolution.padded(taps, outputs))
    squared = torch.empty(len(inputs), dtype=torch.float64)
    steps = np.array([*geometry.stride, *geometry.padding, taps], dtype=np.int64)
    convolution.weight_gradients(maps_of(inputs), maps_of(gradient), found.numpy(), squared.numpy(), steps)
    return PerSample(found[:, :, :taps, :outputs].unflatten(2, (across, channels)), squared, order=(3, 2, 0, 1))


class Patches:
    def __init__(self, geometry: Geometry, inputs: Tensor, gradient: Tensor, weight: Tensor) -> None:
        self._geometry, self._inputs, self._gradient, self._weight = geometry, inputs, gradient, weight
        self._built: PerSample | None = None

    def squared_norms(self, norms: Norms) -> Tensor:
        outputs, terms = self._weight.shape[0] // self._geometry.groups, self._gradient.shape[2:].numel()
        if self._fit() and gram_is_cheaper(terms, self._weight[0].numel(), outputs):
            pieces = self._pieces(self._gradient)
            return torch.cat([norms.of_products(patches, gradients) for _, patches, gradients in pieces])
        self._built = self._build()
        del self._inputs, self._gradient
        return self._built.squared_norms(norms)

    def per_sample(self) -> Tensor:
        return (self._built or self._build()).per_sample()

    def add_weighed(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        if self._built:
            self._built.add_weighed(weights, into, beta)
            return
        gradient = self._gradient
        if weights is not None:
            gradient = gradient * weights.view(-1, *(1,) * (gradient.dim() - 1))
        if self._fit():
            self._add_product(gradient, into, beta)
        else:
            put(self._geometry.weight_gradient(gradient, self._inputs, self._weight), into, beta)

    def _add_product(self, gradient: Tensor, into: Tensor, beta: float) -> None:
        target = into.permute(*inverse(self._order()))
        for _, patches, gradients in self._pieces(gradient):
            found = gradients.transpose(0, 1).flatten(1, 2).mT @ patches.transpose(0, 1).flatten(1, 2)
            put(found.view(target.shape), target, beta)
            beta = 1.0

    def _build(self) -> PerSample:
        if not self._fit():
            pairs = zip(self._gradient.split(1), self._inputs.split(1), strict=True)
            return PerSample(torch.stack([self._geometry.weight_gradient(g, x, self._weight) for g, x in pairs]))
        groups, outputs, channels = self._geometry.groups, len(self._weight), self._weight.shape[1]
        shape = (len(self._gradient), groups, outputs // groups, math.prod(self._geometry.kernel) * channels)
        found = self._gradient.new_empty(shape)
        for rows, patches, gradients in self._pieces(self._gradient):
            torch.matmul(gradients.mT, patches, out=found[rows])
        return PerSample(found.view(len(found), outputs, *self._geometry.kernel, channels), order=self._order())

    def _pieces(self, gradient: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """A few samples at a time: which, their patches, their gradients."""
        at_once = max(1, int(PATCH_BYTES / self._bytes_a_sample()))
        for first in range(0, len(gradient), at_once):
            rows = slice(first, first + at_once)
            yield rows, self._geometry.patches(self._inputs[rows]), self._geometry.grouped(gradient[rows])

    def _order(self) -> tuple[int, ...]:
        """Patches have the channels innermost, parameters the kernel."""
        last = 1 + len(self._geometry.kernel)
        return (0, last, *range(1, last))

    def _fit(self) -> bool:
        return self._bytes_a_sample() <= MOST_PATCH_BYTES

    def _bytes_a_sample(self) -> int:
        places, taps = self._gradient.shape[2:].numel(), math.prod(self._geometry.kernel)
        return places * taps * self._inputs.shape[1] * self._inputs.element_size()
