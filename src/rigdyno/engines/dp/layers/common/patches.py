"""The geometry of a convolution, and its weight gradients as products of patches and output gradients.

Patches take as much memory as the input times the kernel's size, but only for a moment. Their products with the output
gradients run at the speed of ordinary matrix products, which torch's own weight gradients seldom reach. If the matrices
are too small for that, a Numba kernel computes the products without storing patches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.dp.gradients.contributions import Norms, PerSample, add_or_copy, gram_is_cheaper, invert_order
from rigdyno.engines.dp.gradients.memory import to_maps

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

# Bytes of patches at a time: more doesn't fit into the caches, and needs new memory from the system each time.
PATCH_BYTES = 8e6

# Bytes of patches per sample, above which torch's own convolution is used.
MOST_PATCH_BYTES = 256e6

# Like contributions.TRAFFIC, for the kernel: it is faster for small products, and computes the norms as it writes.
TRAFFIC_OF_KERNEL = 40.0

# The kernel sums over all positions in single precision, without blocks.
MOST_PLACES_OF_KERNEL = 1024


@dataclass(frozen=True)
class Geometry:
    """Kernel, stride, padding and dilation along each axis, and the number of groups."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def from_module(cls, module: Convolution) -> Geometry:
        """Return the geometry of a module. Padding other than equal zeros on both sides is left to `pad_inputs`."""
        padding = module.padding if _has_plain_padding(module) else (0,) * len(module.kernel_size)
        assert isinstance(padding, tuple)
        return _make_geometry(module.kernel_size, module.stride, padding, module.dilation, module.groups)

    @property
    def pointwise(self) -> bool:
        return math.prod(self.kernel) == 1 and self.groups == 1 and not any(self.padding)

    def depthwise(self, weight: Tensor) -> bool:
        return self.groups == len(weight) > 1 and weight.shape[1] == 1

    def output_size(self, sizes: torch.Size) -> tuple[int, ...]:
        """Return the size of the output for a map of these sizes."""
        wide = [size + 2 * padding for size, padding in zip(sizes, self.padding, strict=True)]
        return tuple(_output_length(*axis) for axis in zip(wide, self.kernel, self.stride, self.dilation, strict=True))

    def living_taps(self, sizes: torch.Size) -> list[slice]:
        """Return the taps that ever see the map, along each axis; the others see only padding."""
        axes = zip(sizes, self.output_size(sizes), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [_find_living_taps(*axis) for axis in axes]

    def repeat_groups(self, samples: int) -> Geometry:
        """Return the geometry of `samples` such convolutions side by side."""
        return replace(self, groups=self.groups * samples)

    def subsample(self, inputs: Tensor) -> Tensor:
        """Return the values that a kernel of one sees."""
        steps = [slice(None, None, stride) for stride in (1, 1, *self.stride)]
        return inputs[tuple(steps)]

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        function = (functional.conv1d, functional.conv2d, functional.conv3d)[len(self.kernel) - 1]
        return function(inputs, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def input_gradient(self, gradient: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        return self._backward(gradient, inputs, weight, (True, False, False))[0]

    def weight_gradient(self, gradient: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        return self._backward(gradient, inputs, weight, (False, True, False))[1]

    def patches(self, inputs: Tensor) -> Tensor:
        """Return the patches: (samples, groups, T, kernel * channels of a group), with the channels innermost."""
        rows = pad_with_zeros(inputs, self.padding).movedim(1, -1).contiguous()
        steps, out = rows.stride(), self.output_size(inputs.shape[2:])
        shape = (len(rows), *out, *self.kernel, rows.shape[-1])
        strides = (steps[0], *_multiply(steps[1:-1], self.stride), *_multiply(steps[1:-1], self.dilation), 1)
        seen = rows.as_strided(shape, strides)
        seen = seen.reshape(len(rows), math.prod(out), math.prod(self.kernel), self.groups, -1)
        return seen.permute(0, 3, 1, 2, 4).flatten(3)

    def group_gradients(self, gradient: Tensor) -> Tensor:
        """Reshape output gradients to (samples, groups, T, outputs of a group)."""
        split: Tensor = gradient.flatten(2).unflatten(1, (self.groups, -1))
        return split.mT

    def _backward(
        self, gradient: Tensor, inputs: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        still = [0] * len(self.kernel)
        return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
            gradient, inputs, weight, None, self.stride, self.padding, self.dilation, False, still, self.groups, wanted
        )


@cache  # called in every step
def _make_geometry(*figures: Any) -> Geometry:
    return Geometry(*figures)


def pad_inputs(module: Convolution, inputs: Tensor) -> Tensor:
    """Pad the inputs by the module's own mode, visibly to autograd, if Geometry doesn't include the padding."""
    if _has_plain_padding(module):
        return inputs
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)


def _output_length(size: int, kernel: int, stride: int, dilation: int) -> int:
    return (size - dilation * (kernel - 1) - 1) // stride + 1


@cache  # called in every step
def _find_living_taps(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> slice:
    starts = [place * stride - padding for place in range(out)]
    alive = [tap for tap in range(kernel) if any(0 <= start + tap * dilation < size for start in starts)]
    return slice(alive[0], alive[-1] + 1) if alive else slice(0, 0)


def _has_plain_padding(module: Convolution) -> bool:
    return module.padding_mode == "zeros" and not isinstance(module.padding, str)


def pad_with_zeros(inputs: Tensor, padding: tuple[int, ...]) -> Tensor:
    if not any(padding):
        return inputs
    return functional.pad(inputs, [side for amount in reversed(padding) for side in (amount, amount)])


def _multiply(steps: tuple[int, ...], factors: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(step * factor for step, factor in zip(steps, factors, strict=True))


def kernel_is_cheaper(geometry: Geometry, gradient: Tensor, weight: Tensor) -> bool:
    """Return True if the kernel supports this convolution and takes less time than patches."""
    places, outputs, taps = gradient.shape[2:].numel(), len(weight), weight[0].numel()
    possible = len(geometry.kernel) == 2 and geometry.groups == 1 and set(geometry.dilation) == {1}
    large = places * places * (taps + outputs) >= TRAFFIC_OF_KERNEL * taps * outputs
    return possible and large and places <= MOST_PLACES_OF_KERNEL


def build_by_kernel(geometry: Geometry, inputs: Tensor, gradient: Tensor, weight: Tensor) -> PerSample:
    """Compute per-sample weight gradients and their norms by the kernel."""
    from rigdyno.engines.dp.kernels import convolution

    (down, across), (outputs, channels) = geometry.kernel, weight.shape[:2]
    taps = across * channels
    found = inputs.new_empty(len(inputs), down, *convolution.padded(taps, outputs))
    squared = torch.empty(len(inputs), dtype=torch.float64)
    steps = np.array([*geometry.stride, *geometry.padding, taps], dtype=np.int64)
    convolution.weight_gradients(to_maps(inputs), to_maps(gradient), found.numpy(), squared.numpy(), steps)
    return PerSample(found[:, :, :taps, :outputs].unflatten(2, (across, channels)), squared, order=(3, 2, 0, 1))


class PatchGradients:
    """The weight gradients of a convolution, computed from patches."""

    def __init__(self, geometry: Geometry, inputs: Tensor, gradient: Tensor, weight: Tensor) -> None:
        self._geometry, self._inputs, self._gradient, self._weight = geometry, inputs, gradient, weight
        self._built: PerSample | None = None

    def squared_norms(self, norms: Norms) -> Tensor:
        outputs, terms = self._weight.shape[0] // self._geometry.groups, self._gradient.shape[2:].numel()
        if self._patches_fit() and gram_is_cheaper(terms, self._weight[0].numel(), outputs):
            pieces = self._pieces(self._gradient)
            return torch.cat([norms.compute_products(patches, gradients) for _, patches, gradients in pieces])
        self._built = self._build()
        del self._inputs, self._gradient
        return self._built.squared_norms(norms)

    def per_sample(self) -> Tensor:
        return (self._built or self._build()).per_sample()

    def add_weighted(self, weights: Tensor | None, into: Tensor, beta: float) -> None:
        if self._built:
            self._built.add_weighted(weights, into, beta)
            return
        gradient = self._gradient
        if weights is not None:
            gradient = gradient * weights.view(-1, *(1,) * (gradient.dim() - 1))
        if self._patches_fit():
            self._add_product(gradient, into, beta)
        else:
            add_or_copy(self._geometry.weight_gradient(gradient, self._inputs, self._weight), into, beta)

    def _add_product(self, gradient: Tensor, into: Tensor, beta: float) -> None:
        target = into.permute(*invert_order(self._order()))
        for _, patches, gradients in self._pieces(gradient):
            found = gradients.transpose(0, 1).flatten(1, 2).mT @ patches.transpose(0, 1).flatten(1, 2)
            add_or_copy(found.view(target.shape), target, beta)
            beta = 1.0

    def _build(self) -> PerSample:
        if not self._patches_fit():
            pairs = zip(self._gradient.split(1), self._inputs.split(1), strict=True)
            return PerSample(torch.stack([self._geometry.weight_gradient(g, x, self._weight) for g, x in pairs]))
        groups, outputs, channels = self._geometry.groups, len(self._weight), self._weight.shape[1]
        shape = (len(self._gradient), groups, outputs // groups, math.prod(self._geometry.kernel) * channels)
        found = self._gradient.new_empty(shape)
        for rows, patches, gradients in self._pieces(self._gradient):
            torch.matmul(gradients.mT, patches, out=found[rows])
        return PerSample(found.view(len(found), outputs, *self._geometry.kernel, channels), order=self._order())

    def _pieces(self, gradient: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield a few samples at a time: their rows, patches and gradients."""
        at_once = max(1, int(PATCH_BYTES / self._bytes_per_sample()))
        for first in range(0, len(gradient), at_once):
            rows = slice(first, first + at_once)
            yield rows, self._geometry.patches(self._inputs[rows]), self._geometry.group_gradients(gradient[rows])

    def _order(self) -> tuple[int, ...]:
        """Return the order of axes: patches have the channels innermost, parameters the kernel."""
        last = 1 + len(self._geometry.kernel)
        return (0, last, *range(1, last))

    def _patches_fit(self) -> bool:
        return self._bytes_per_sample() <= MOST_PATCH_BYTES

    def _bytes_per_sample(self) -> int:
        places, taps = self._gradient.shape[2:].numel(), math.prod(self._geometry.kernel)
        return places * taps * self._inputs.shape[1] * self._inputs.element_size()
