"""Maximum and mean over windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Box, Zyx, box_of
from rigdyno.engines.blockwise.network.layers.layer import Taken, any_planar, cropped
from rigdyno.engines.blockwise.network.spans import Span


@dataclass(frozen=True)
class Pooling:
    channels: int
    window: Zyx
    stride: Zyx
    maximum: bool

    def needs(self, axis: int, wanted: Span) -> list[Span]:
        start, stop = wanted
        return [(start * self.stride[axis], (stop - 1) * self.stride[axis] + self.window[axis])]

    def gives(self, axis: int, given: Sequence[Span]) -> Span:
        ((start, stop),) = given
        first = start // self.stride[axis]
        return first, first + (stop - start - self.window[axis]) // self.stride[axis] + 1

    def scale(self, axis: int) -> tuple[int, int]:
        return 1, self.stride[axis]

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        needed = box_of(self.needs(axis, span)[0] for axis, span in enumerate(wanted.spans()))
        tensor = cropped(inputs[0], places[0], needed)
        pool = functional.max_pool3d if self.maximum else functional.avg_pool3d
        answer: Tensor = pool(tensor, self.window, self.stride)
        return answer

    def takes(self, places: Sequence[Box], wanted: Box, given: Sequence[Taken]) -> Taken:
        """torch also finds where each maximum lies, in numbers twice as long."""
        answer = self.channels * wanted.voxels
        return Taken(answer, 2 * answer if self.maximum else 0, planar=any_planar(given) or not self.maximum)

    def multiply_adds(self, shape: Zyx) -> int:
        return 0 if self.maximum else self.channels * prod(shape) * prod(self.window)
