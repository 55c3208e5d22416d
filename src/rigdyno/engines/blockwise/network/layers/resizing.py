"""Upsampling by whole factors: nearest neighbour, or linear between the neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Box, Zyx, box_of, zyx
from rigdyno.engines.blockwise.network.layers.layer import AXES, Taken, any_planar, cropped
from rigdyno.engines.blockwise.network.spans import Span


@dataclass(frozen=True)
class Resizing:
    channels: int
    factor: Zyx
    linear: bool

    def needs(self, axis: int, wanted: Span) -> list[Span]:
        start, stop = wanted
        factor = self.factor[axis]
        if not self.linear or factor == 1:
            return [(start // factor, (stop - 1) // factor + 1)]
        # The answer's voxel o lies at (o + 1/2) / factor - 1/2 of the input, between two of its voxels.
        return [((2 * start + 1 - factor) // (2 * factor), (2 * stop - 1 - factor) // (2 * factor) + 2)]

    def gives(self, axis: int, given: Sequence[Span]) -> Span:
        ((start, stop),) = given
        return start * self.factor[axis], stop * self.factor[axis]

    def scale(self, axis: int) -> tuple[int, int]:
        return self.factor[axis], 1

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        place = self._needed(places[0], wanted)
        tensor = cropped(inputs[0], places[0], place)
        scale = [float(factor) for factor in self.factor]
        answer = functional.interpolate(tensor, scale_factor=scale, mode="trilinear" if self.linear else "nearest")
        start = zyx(place.start[axis] * self.factor[axis] for axis in AXES)
        stop = zyx(place.stop[axis] * self.factor[axis] for axis in AXES)
        return cropped(answer, Box(start, stop), wanted)

    def takes(self, places: Sequence[Box], wanted: Box, given: Sequence[Taken]) -> Taken:
        needed = self._needed(places[0], wanted)
        copied = 0 if needed == places[0] else self.channels * needed.voxels
        voxels = needed.voxels * prod(self.factor)
        return Taken(self.channels * voxels, copied, part=voxels != wanted.voxels, planar=any_planar(given))

    def multiply_adds(self, shape: Zyx) -> int:
        return self.channels * prod(shape) * 8 if self.linear else 0

    def _needed(self, place: Box, wanted: Box) -> Box:
        return box_of(self.needs(axis, span)[0] for axis, span in enumerate(wanted.spans())).within(place)
