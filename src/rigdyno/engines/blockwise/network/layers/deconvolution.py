"""Transposed convolution, which gives just the wanted part."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor

from rigdyno.engines.blockwise.boxes import Box, Zyx, box_of, zyx
from rigdyno.engines.blockwise.network.layers import kernels
from rigdyno.engines.blockwise.network.layers.activation import Activation
from rigdyno.engines.blockwise.network.layers.layer import AXES, Taken, cropped
from rigdyno.engines.blockwise.network.spans import Span


@dataclass(eq=False)
class Deconvolution:
    """One linear map of a `Weighted` layer.

    input[i] adds weight[j] * input[i] to answer[i * stride - padding + j * dilation]
    """

    weight: Tensor  # inputs first
    bias: Tensor | None
    stride: Zyx
    padding: Zyx
    output_padding: Zyx
    dilation: Zyx
    groups: int = 1

    def __post_init__(self) -> None:
        self.packed = kernels.Packed(self.weight)

    @property
    def channels(self) -> int:
        return int(self.weight.shape[1]) * self.groups

    def needs(self, axis: int, wanted: Span) -> Span:
        start, stop = wanted
        stride, padding = self.stride[axis], self.padding[axis]
        first = -((self.reach(axis) - 1 - start - padding) // stride)
        return first, (stop - 1 + padding) // stride + 1

    def gives(self, axis: int, given: Span) -> Span:
        start, stop = given
        first = start * self.stride[axis]
        return first, first + self._full(axis, stop - start) - 2 * self.padding[axis] + self.output_padding[axis]

    def scale(self, axis: int) -> tuple[int, int]:
        return self.stride[axis], 1

    def add_to(
        self, sum_so_far: Tensor | None, tensor: Tensor, place: Box, wanted: Box, then: Activation | None
    ) -> Tensor:
        needed = self._needed(place, wanted)
        settings, extra, given = self._cut(needed, wanted)
        answer = kernels.deconvolve(cropped(tensor, place, needed), self.packed, self.bias, settings, extra)
        answer = cropped(answer, given, wanted)
        if sum_so_far is not None:
            answer = sum_so_far.add_(answer)
        return then.apply_(answer) if then else answer

    def takes(self, place: Box, wanted: Box, given: Taken) -> Taken:
        needed = self._needed(place, wanted)
        copied = needed != place or given.part or given.planar
        full = self._cut(needed, wanted)[2]
        beside = int(copied) * int(self.weight.shape[0]) * needed.voxels
        return Taken(self.channels * full.voxels, beside, part=full != wanted)

    def multiply_adds(self, shape: Zyx) -> int:
        return int(self.weight.numel()) * prod(shape) // prod(self.stride)

    def _needed(self, place: Box, wanted: Box) -> Box:
        return box_of(self.needs(axis, span) for axis, span in enumerate(wanted.spans())).within(place)

    def _cut(self, place: Box, wanted: Box) -> tuple[kernels.Settings, Zyx, Box]:
        """The kernel's own padding cuts alike on both sides: with it, what is asked of it, and what it then gives."""
        low, high = self._surplus(place, wanted)
        padding = zyx(min(low[axis], high[axis] + self._slack(axis)) for axis in AXES)
        extra = zyx(max(0, padding[axis] - high[axis]) for axis in AXES)
        start = zyx(wanted.start[axis] - low[axis] + padding[axis] for axis in AXES)
        stop = zyx(wanted.stop[axis] + high[axis] - padding[axis] + extra[axis] for axis in AXES)
        return kernels.Settings(padding, self.stride, self.dilation, self.groups), extra, Box(start, stop)

    def _surplus(self, place: Box, wanted: Box) -> tuple[Zyx, Zyx]:
        """How far the answer without any padding reaches over what is wanted, below and above."""
        first = [place.start[axis] * self.stride[axis] - self.padding[axis] for axis in AXES]
        last = [first[axis] + self._full(axis, place.shape[axis]) for axis in AXES]
        low = zyx(wanted.start[axis] - first[axis] for axis in AXES)
        return low, zyx(last[axis] - wanted.stop[axis] for axis in AXES)

    def _full(self, axis: int, size: int) -> int:
        return (size - 1) * self.stride[axis] + self.reach(axis)

    def _slack(self, axis: int) -> int:
        """torch allows an output padding below the larger of these."""
        return max(self.stride[axis], self.dilation[axis]) - 1

    def reach(self, axis: int) -> int:
        return (int(self.weight.shape[axis + 2]) - 1) * self.dilation[axis] + 1
