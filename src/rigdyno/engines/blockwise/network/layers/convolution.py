"""Convolution, on just the part of its input that the wanted answer needs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Box, Zyx, box_of, zyx
from rigdyno.engines.blockwise.network.layers import kernels
from rigdyno.engines.blockwise.network.layers.activation import Activation
from rigdyno.engines.blockwise.network.layers.layer import AXES, Taken, cropped
from rigdyno.engines.blockwise.network.spans import Span


@dataclass(eq=False)
class Convolution:
    """One linear map of a `Weighted` layer.

    answer[o] = sum over j of weight[j] * input[o * stride - padding + j * dilation]
    """

    weight: Tensor
    bias: Tensor | None
    stride: Zyx
    padding: Zyx
    dilation: Zyx
    groups: int = 1

    def __post_init__(self) -> None:
        self.packed = kernels.Packed(self.weight)

    @property
    def channels(self) -> int:
        return int(self.weight.shape[0])

    def needs(self, axis: int, wanted: Span) -> Span:
        start, stop = wanted
        first = start * self.stride[axis] - self.padding[axis]
        return first, (stop - 1) * self.stride[axis] - self.padding[axis] + self.reach(axis)

    def gives(self, axis: int, given: Span) -> Span:
        start, stop = given
        first = start // self.stride[axis]
        free = stop - start + 2 * self.padding[axis] - self.reach(axis)
        return first, first + free // self.stride[axis] + 1

    def scale(self, axis: int) -> tuple[int, int]:
        return 1, self.stride[axis]

    def add_to(
        self, sum_so_far: Tensor | None, tensor: Tensor, place: Box, wanted: Box, then: Activation | None
    ) -> Tensor:
        tensor, padding = self._prepared(tensor, place, wanted)
        settings = kernels.Settings(padding, self.stride, self.dilation, self.groups)
        return kernels.convolve(tensor, self.packed, self.bias, settings, sum_so_far, then)

    def takes(self, place: Box, wanted: Box, given: Taken) -> Taken:
        """Of a part the kernel wants a copy, with zeros around it if need be."""
        needed = self._needed(wanted)
        low, high = _outside(needed, place)
        held = needed if low != high else needed.within(place)
        copies = int(held != place or given.part or given.planar) + int(low != high and given.planar)
        return Taken(self.channels * wanted.voxels, copies * int(self.weight.shape[1]) * self.groups * held.voxels)

    def multiply_adds(self, shape: Zyx) -> int:
        return int(self.weight.numel()) * prod(shape)

    def _prepared(self, tensor: Tensor, place: Box, wanted: Box) -> tuple[Tensor, Zyx]:
        """What lies outside of the network's own input is zero: by the kernel's padding where both sides are alike."""
        needed = self._needed(wanted)
        low, high = _outside(needed, place)
        tensor = cropped(tensor, place, needed.within(place))
        if low == high:
            return tensor, low
        return functional.pad(tensor, [low[2], high[2], low[1], high[1], low[0], high[0]]), (0, 0, 0)

    def _needed(self, wanted: Box) -> Box:
        return box_of(self.needs(axis, span) for axis, span in enumerate(wanted.spans()))

    def reach(self, axis: int) -> int:
        return (int(self.weight.shape[axis + 2]) - 1) * self.dilation[axis] + 1


def _outside(needed: Box, place: Box) -> tuple[Zyx, Zyx]:
    """How far one reaches over the other, below and above."""
    low = zyx(max(0, place.start[axis] - needed.start[axis]) for axis in AXES)
    return low, zyx(max(0, needed.stop[axis] - place.stop[axis]) for axis in AXES)
