"""The shape of a convolution, and the patches that its kernel sees."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class Geometry:
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, module: Convolution) -> Geometry:
        """Padding that isn't zeros on both sides alike is put on beforehand, by `padded`."""
        padding = module.padding if _plain_padding(module) else (0,) * len(module.kernel_size)
        assert isinstance(padding, tuple)
        return _geometry(module.kernel_size, module.stride, padding, module.dilation, module.groups)

    @property
    def pointwise(self) -> bool:
        return math.prod(self.kernel) == 1 and self.groups == 1 and not any(self.padding)

    def depthwise(self, weight: Tensor) -> bool:
        return self.groups == len(weight) > 1 and weight.shape[1] == 1

    def out(self, sizes: torch.Size) -> tuple[int, ...]:
        """The answer's places for a map of these sizes."""
        wide = [size + 2 * padding for size, padding in zip(sizes, self.padding, strict=True)]
        return tuple(_reach(*axis) for axis in zip(wide, self.kernel, self.stride, self.dilation, strict=True))

    def living_taps(self, sizes: torch.Size) -> list[slice]:
        """Along each axis, the taps that ever see the map; the others see nothing but padding."""
        axes = zip(sizes, self.out(sizes), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [_living(*axis) for axis in axes]

    def times(self, samples: int) -> Geometry:
        """Of as many such convolutions side by side."""
        return replace(self, groups=self.groups * samples)

    def strided(self, inputs: Tensor) -> Tensor:
        """What a kernel of one sees."""
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
        """(samples, groups, T, kernel * channels of a group), the channels innermost."""
        rows = zero_padded(inputs, self.padding).movedim(1, -1).contiguous()
        steps, out = rows.stride(), self.out(inputs.shape[2:])
        shape = (len(rows), *out, *self.kernel, rows.shape[-1])
        strides = (steps[0], *_times(steps[1:-1], self.stride), *_times(steps[1:-1], self.dilation), 1)
        seen = rows.as_strided(shape, strides)
        seen = seen.reshape(len(rows), math.prod(out), math.prod(self.kernel), self.groups, -1)
        return seen.permute(0, 3, 1, 2, 4).flatten(3)

    def grouped(self, gradient: Tensor) -> Tensor:
        """(samples, groups, T, outputs of a group)."""
        split: Tensor = gradient.flatten(2).unflatten(1, (self.groups, -1))
        return split.mT

    def _backward(
        self, gradient: Tensor, inputs: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        still = [0] * len(self.kernel)
        return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
            gradient, inputs, weight, None, self.stride, self.padding, self.dilation, False, still, self.groups, wanted
        )


@cache  # asked for in every step
def _geometry(*figures: Any) -> Geometry:
    return Geometry(*figures)


def padded(module: Convolution, inputs: Tensor) -> Tensor:
    """By the module's own mode; what autograd knows how to undo."""
    if _plain_padding(module):
        return inputs
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)


def _reach(size: int, kernel: int, stride: int, dilation: int) -> int:
    return (size - dilation * (kernel - 1) - 1) // stride + 1


@cache  # asked for in every step
def _living(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> slice:
    starts = [place * stride - padding for place in range(out)]
    alive = [tap for tap in range(kernel) if any(0 <= start + tap * dilation < size for start in starts)]
    return slice(alive[0], alive[-1] + 1) if alive else slice(0, 0)


def _plain_padding(module: Convolution) -> bool:
    return module.padding_mode == "zeros" and not isinstance(module.padding, str)


def zero_padded(inputs: Tensor, padding: tuple[int, ...]) -> Tensor:
    if not any(padding):
        return inputs
    return functional.pad(inputs, [side for amount in reversed(padding) for side in (amount, amount)])


def _times(steps: tuple[int, ...], factors: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(step * factor for step, factor in zip(steps, factors, strict=True))
