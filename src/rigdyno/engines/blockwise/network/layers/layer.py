"""The interface of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rigdyno.engines.blockwise.boxes import Box, Span, Zyx

AXES = (0, 1, 2)  # z, y, x


@dataclass(frozen=True)
class MemoryUse:
    """Number of floats that a layer allocates in addition to its inputs.

    Kernels must copy a map that is a view or planar, because its memory layout isn't the one they need.
    """

    kept: int  # for the output; more than its size if the output is a view
    scratch: int = 0  # freed when the layer is done
    is_view: bool = False  # the output is a part of a larger tensor
    planar: bool = False  # the output is stored channel by channel, not voxel by voxel


def any_planar(given: Sequence[MemoryUse]) -> bool:
    return any(taken.planar for taken in given)


class Layer(Protocol):
    @property
    def channels(self) -> int:
        """Return the number of channels of the output."""

    def find_needed(self, axis: int, wanted: Span) -> list[Span]:
        """Return, for each input, the indices that the wanted ones of the output depend on."""

    def find_output(self, axis: int, given: Sequence[Span]) -> Span:
        """Return the indices that the original layer, with its padding, would compute from these inputs."""

    def scale(self, axis: int) -> tuple[int, int]:
        """Return how much finer and how much coarser the output is: (2, 1) for an upsampling by two."""

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        """Compute the wanted part of the output; `places` are the parts of the inputs that are given."""

    def estimate_memory(self, places: Sequence[Box], wanted: Box, given: Sequence[MemoryUse]) -> MemoryUse:
        """Estimate the memory that `run` allocates; `given` is that of its inputs."""

    def count_multiply_adds(self, shape: Zyx) -> int:
        """Return the multiply-adds for an output of this shape."""


def crop(tensor: Tensor, place: Box, wanted: Box) -> Tensor:
    """Return a view of the wanted part of a tensor that covers `place`."""
    for axis in AXES:
        start, size = wanted.start[axis] - place.start[axis], wanted.shape[axis]
        if start or size != place.shape[axis]:
            tensor = tensor.narrow(axis + 2, start, size)
    return tensor
