"""Max and mean pooling, and upsampling by whole factors: nearest neighbour or trilinear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Box, Span, Zyx, box_from_spans, zyx
from rigdyno.engines.blockwise.network.layers.layer import AXES, MemoryUse, any_planar, crop


@dataclass(frozen=True)
class Pooling:
    channels: int
    window: Zyx
    stride: Zyx
    maximum: bool

    def find_needed(self, axis: int, wanted: Span) -> list[Span]:
        start, stop = wanted
        return [(start * self.stride[axis], (stop - 1) * self.stride[axis] + self.window[axis])]

    def find_output(self, axis: int, given: Sequence[Span]) -> Span:
        ((start, stop),) = given
        first = start // self.stride[axis]
        return first, first + (stop - start - self.window[axis]) // self.stride[axis] + 1

    def scale(self, axis: int) -> tuple[int, int]:
        return 1, self.stride[axis]

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        needed = box_from_spans(self.find_needed(axis, span)[0] for axis, span in enumerate(wanted.spans()))
        tensor = crop(inputs[0], places[0], needed)
        pool = functional.max_pool3d if self.maximum else functional.avg_pool3d
        answer: Tensor = pool(tensor, self.window, self.stride)
        return answer

    def estimate_memory(self, places: Sequence[Box], wanted: Box, given: Sequence[MemoryUse]) -> MemoryUse:
        """Estimate the memory; torch also computes the index of each maximum, in numbers twice as long as a float."""
        answer = self.channels * wanted.voxels
        return MemoryUse(answer, 2 * answer if self.maximum else 0, planar=any_planar(given) or not self.maximum)

    def count_multiply_adds(self, shape: Zyx) -> int:
        return 0 if self.maximum else self.channels * prod(shape) * prod(self.window)


@dataclass(frozen=True)
class Resizing:
    channels: int
    factor: Zyx
    linear: bool

    def find_needed(self, axis: int, wanted: Span) -> list[Span]:
        start, stop = wanted
        factor = self.factor[axis]
        if not self.linear or factor == 1:
            return [(start // factor, (stop - 1) // factor + 1)]
        # Voxel o of the output is at (o + 1/2) / factor - 1/2 in the input, between two of its voxels.
        return [((2 * start + 1 - factor) // (2 * factor), (2 * stop - 1 - factor) // (2 * factor) + 2)]

    def find_output(self, axis: int, given: Sequence[Span]) -> Span:
        ((start, stop),) = given
        return start * self.factor[axis], stop * self.factor[axis]

    def scale(self, axis: int) -> tuple[int, int]:
        return self.factor[axis], 1

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        place = self._needed_box(places[0], wanted)
        tensor = crop(inputs[0], places[0], place)
        scale = [float(factor) for factor in self.factor]
        answer = functional.interpolate(tensor, scale_factor=scale, mode="trilinear" if self.linear else "nearest")
        start = zyx(place.start[axis] * self.factor[axis] for axis in AXES)
        stop = zyx(place.stop[axis] * self.factor[axis] for axis in AXES)
        return crop(answer, Box(start, stop), wanted)

    def estimate_memory(self, places: Sequence[Box], wanted: Box, given: Sequence[MemoryUse]) -> MemoryUse:
        needed = self._needed_box(places[0], wanted)
        copied = 0 if needed == places[0] else self.channels * needed.voxels
        voxels = needed.voxels * prod(self.factor)
        return MemoryUse(self.channels * voxels, copied, is_view=voxels != wanted.voxels, planar=any_planar(given))

    def count_multiply_adds(self, shape: Zyx) -> int:
        return self.channels * prod(shape) * 8 if self.linear else 0

    def _needed_box(self, place: Box, wanted: Box) -> Box:
        return box_from_spans(self.find_needed(axis, span)[0] for axis, span in enumerate(wanted.spans())).within(place)
