"""What every layer answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.engines.blockwise.network.spans import Span

AXES = (0, 1, 2)  # z, y, x


@dataclass(frozen=True)
class Taken:
    """Floats in memory beside a layer's inputs."""

    kept: int  # with its answer: more than that where the answer is a part of something larger
    beside: int = 0  # given back when it is done
    # Either way the answer doesn't lie in memory as kernels want it, and they will copy it:
    part: bool = False  # of something larger
    planar: bool = False  # channel by channel, not voxel by voxel


def any_planar(given: Sequence[Taken]) -> bool:
    return any(taken.planar for taken in given)


class Layer(Protocol):
    @property
    def channels(self) -> int:
        """Of what it gives."""

    def needs(self, axis: int, wanted: Span) -> list[Span]:
        """Of each input, the indices that the wanted ones of the answer depend on."""

    def gives(self, axis: int, given: Sequence[Span]) -> Span:
        """What the layer as it was written would answer, with its own padding, if it were given this much."""

    def scale(self, axis: int) -> tuple[int, int]:
        """(finer by, coarser by): (2, 1) for an upsampling by two."""

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        """The wanted part of the answer; `places` say which part of each input is at hand."""

    def takes(self, places: Sequence[Box], wanted: Box, given: Sequence[Taken]) -> Taken:
        """What `run` takes; `given` are its inputs."""

    def multiply_adds(self, shape: Zyx) -> int:
        """For an answer of this shape."""


def cropped(tensor: Tensor, place: Box, wanted: Box) -> Tensor:
    """A view of the wanted part, which lies inside of what is at hand."""
    for axis in AXES:
        start, size = wanted.start[axis] - place.start[axis], wanted.shape[axis]
        if start or size != place.shape[axis]:
            tensor = tensor.narrow(axis + 2, start, size)
    return tensor
