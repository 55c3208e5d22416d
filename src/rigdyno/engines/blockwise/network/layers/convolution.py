"""Sums of convolutions and transposed convolutions, which compute only the wanted part of the output.

A convolution over a concatenation is the sum of one convolution for each of its parts: nothing needs to be
concatenated, and a part that was only upsampled can be used at its own resolution (see simplify.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Box, Span, Zyx, box_from_spans, intersection, zyx
from rigdyno.engines.blockwise.network.layers import kernels
from rigdyno.engines.blockwise.network.layers.layer import AXES, MemoryUse, crop
from rigdyno.engines.blockwise.network.layers.pointwise import Activation


@dataclass(eq=False)
class Convolution:
    """A convolution, as one term of a `ConvolutionSum`.

    output[o] = sum over j of weight[j] * input[o * stride - padding + j * dilation]
    """

    weight: Tensor
    bias: Tensor | None
    stride: Zyx
    padding: Zyx
    dilation: Zyx
    groups: int = 1

    def __post_init__(self) -> None:
        self.packed = kernels.PackedWeight(self.weight)

    @property
    def channels(self) -> int:
        return int(self.weight.shape[0])

    def find_needed(self, axis: int, wanted: Span) -> Span:
        start, stop = wanted
        first = start * self.stride[axis] - self.padding[axis]
        return first, (stop - 1) * self.stride[axis] - self.padding[axis] + self.reach(axis)

    def find_output(self, axis: int, given: Span) -> Span:
        start, stop = given
        first = start // self.stride[axis]
        free = stop - start + 2 * self.padding[axis] - self.reach(axis)
        return first, first + free // self.stride[axis] + 1

    def scale(self, axis: int) -> tuple[int, int]:
        return 1, self.stride[axis]

    def add_to(
        self, sum_so_far: Tensor | None, tensor: Tensor, place: Box, wanted: Box, activation: Activation | None
    ) -> Tensor:
        tensor, padding = self._prepare(tensor, place, wanted)
        settings = kernels.Settings(padding, self.stride, self.dilation, self.groups)
        return kernels.convolve(tensor, self.packed, self.bias, settings, sum_so_far, activation)

    def estimate_memory(self, place: Box, wanted: Box, given: MemoryUse) -> MemoryUse:
        """Estimate the memory; the kernel needs a copy of a view, with zeros around it where necessary."""
        needed = self._needed_box(wanted)
        low, high = _find_overhang(needed, place)
        held = needed if low != high else needed.within(place)
        copies = int(held != place or given.is_view or given.planar) + int(low != high and given.planar)
        return MemoryUse(self.channels * wanted.voxels, copies * int(self.weight.shape[1]) * self.groups * held.voxels)

    def count_multiply_adds(self, shape: Zyx) -> int:
        return int(self.weight.numel()) * prod(shape)

    def _prepare(self, tensor: Tensor, place: Box, wanted: Box) -> tuple[Tensor, Zyx]:
        """Crop the input, and return it with the padding for the kernel.

        Outside the given input there are zeros, by the kernel's own padding if both sides need the same.
        """
        needed = self._needed_box(wanted)
        low, high = _find_overhang(needed, place)
        tensor = crop(tensor, place, needed.within(place))
        if low == high:
            return tensor, low
        return functional.pad(tensor, [low[2], high[2], low[1], high[1], low[0], high[0]]), (0, 0, 0)

    def _needed_box(self, wanted: Box) -> Box:
        return box_from_spans(self.find_needed(axis, span) for axis, span in enumerate(wanted.spans()))

    def reach(self, axis: int) -> int:
        return (int(self.weight.shape[axis + 2]) - 1) * self.dilation[axis] + 1


def _find_overhang(needed: Box, place: Box) -> tuple[Zyx, Zyx]:
    """Return how far `needed` extends beyond `place`, below and above."""
    low = zyx(max(0, place.start[axis] - needed.start[axis]) for axis in AXES)
    return low, zyx(max(0, needed.stop[axis] - place.stop[axis]) for axis in AXES)


@dataclass(eq=False)
class Deconvolution:
    """A transposed convolution, as one term of a `ConvolutionSum`.

    input[i] adds weight[j] * input[i] to output[i * stride - padding + j * dilation]
    """

    weight: Tensor  # input channels first
    bias: Tensor | None
    stride: Zyx
    padding: Zyx
    output_padding: Zyx
    dilation: Zyx
    groups: int = 1

    def __post_init__(self) -> None:
        self.packed = kernels.PackedWeight(self.weight)

    @property
    def channels(self) -> int:
        return int(self.weight.shape[1]) * self.groups

    def find_needed(self, axis: int, wanted: Span) -> Span:
        start, stop = wanted
        stride, padding = self.stride[axis], self.padding[axis]
        first = -((self.reach(axis) - 1 - start - padding) // stride)
        return first, (stop - 1 + padding) // stride + 1

    def find_output(self, axis: int, given: Span) -> Span:
        start, stop = given
        first = start * self.stride[axis]
        return first, first + self._full_length(axis, stop - start) - 2 * self.padding[axis] + self.output_padding[axis]

    def scale(self, axis: int) -> tuple[int, int]:
        return self.stride[axis], 1

    def add_to(
        self, sum_so_far: Tensor | None, tensor: Tensor, place: Box, wanted: Box, activation: Activation | None
    ) -> Tensor:
        needed = self._needed_box(place, wanted)
        settings, extra, given = self._choose_padding(needed, wanted)
        answer = kernels.deconvolve(crop(tensor, place, needed), self.packed, self.bias, settings, extra)
        answer = crop(answer, given, wanted)
        if sum_so_far is not None:
            answer = sum_so_far.add_(answer)
        return activation.apply_(answer) if activation else answer

    def estimate_memory(self, place: Box, wanted: Box, given: MemoryUse) -> MemoryUse:
        needed = self._needed_box(place, wanted)
        copied = needed != place or given.is_view or given.planar
        full = self._choose_padding(needed, wanted)[2]
        scratch = int(copied) * int(self.weight.shape[0]) * needed.voxels
        return MemoryUse(self.channels * full.voxels, scratch, is_view=full != wanted)

    def count_multiply_adds(self, shape: Zyx) -> int:
        return int(self.weight.numel()) * prod(shape) // prod(self.stride)

    def _needed_box(self, place: Box, wanted: Box) -> Box:
        return box_from_spans(self.find_needed(axis, span) for axis, span in enumerate(wanted.spans())).within(place)

    def _choose_padding(self, place: Box, wanted: Box) -> tuple[kernels.Settings, Zyx, Box]:
        """Return the kernel's settings, its output padding, and the box that it computes with them.

        The kernel's own padding crops both sides by the same length.
        """
        low, high = self._find_surplus(place, wanted)
        padding = zyx(min(low[axis], high[axis] + self._most_output_padding(axis)) for axis in AXES)
        extra = zyx(max(0, padding[axis] - high[axis]) for axis in AXES)
        start = zyx(wanted.start[axis] - low[axis] + padding[axis] for axis in AXES)
        stop = zyx(wanted.stop[axis] + high[axis] - padding[axis] + extra[axis] for axis in AXES)
        return kernels.Settings(padding, self.stride, self.dilation, self.groups), extra, Box(start, stop)

    def _find_surplus(self, place: Box, wanted: Box) -> tuple[Zyx, Zyx]:
        """Return how far the output without padding extends beyond the wanted box, below and above."""
        first = [place.start[axis] * self.stride[axis] - self.padding[axis] for axis in AXES]
        last = [first[axis] + self._full_length(axis, place.shape[axis]) for axis in AXES]
        low = zyx(wanted.start[axis] - first[axis] for axis in AXES)
        return low, zyx(last[axis] - wanted.stop[axis] for axis in AXES)

    def _full_length(self, axis: int, size: int) -> int:
        return (size - 1) * self.stride[axis] + self.reach(axis)

    def _most_output_padding(self, axis: int) -> int:
        """Return the largest output padding that torch allows."""
        return max(self.stride[axis], self.dilation[axis]) - 1

    def reach(self, axis: int) -> int:
        return (int(self.weight.shape[axis + 2]) - 1) * self.dilation[axis] + 1


@dataclass(eq=False)
class ConvolutionSum:
    """A sum of convolutions of several inputs, followed by an activation."""

    parts: tuple[Convolution | Deconvolution, ...]
    activation: Activation | None = None

    @property
    def channels(self) -> int:
        return self.parts[0].channels

    def find_needed(self, axis: int, wanted: Span) -> list[Span]:
        return [part.find_needed(axis, wanted) for part in self.parts]

    def find_output(self, axis: int, given: Sequence[Span]) -> Span:
        return intersection(part.find_output(axis, span) for part, span in zip(self.parts, given, strict=True))

    def scale(self, axis: int) -> tuple[int, int]:
        return self.parts[0].scale(axis)

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        answer: Tensor | None = None
        for number in self._order():
            last = number == self._order()[-1]
            answer = self.parts[number].add_to(
                answer, inputs[number], places[number], wanted, self.activation if last else None
            )
        assert answer is not None
        return answer

    def estimate_memory(self, places: Sequence[Box], wanted: Box, given: Sequence[MemoryUse]) -> MemoryUse:
        """Estimate the memory: only the first term is kept.

        Later transposed convolutions need a tensor of their own before they are added; convolutions add in place.
        """
        first, *others = self._order()
        each = zip(self.parts, places, given, strict=True)
        taken = [part.estimate_memory(place, wanted, own) for part, place, own in each]
        scratch = [taken[first].scratch]
        for number in others:
            added = taken[number].kept if isinstance(self.parts[number], Deconvolution) else 0
            scratch.append(taken[number].scratch + added)
        activated = self.channels * wanted.voxels if self.activation and self.activation.name == "gelu" else 0
        return MemoryUse(taken[first].kept, max(scratch) + activated, is_view=taken[first].is_view)

    def count_multiply_adds(self, shape: Zyx) -> int:
        return sum(part.count_multiply_adds(shape) for part in self.parts)

    def _order(self) -> list[int]:
        """Return the order of the terms: convolutions last, which can add to a sum and apply the activation."""
        return sorted(range(len(self.parts)), key=lambda number: isinstance(self.parts[number], Convolution))
