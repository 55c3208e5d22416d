"""A sum of convolutions and transposed convolutions of several inputs, then an activation.

A convolution over a concatenation is the sum of one convolution for each of its parts: nothing needs to be
concatenated, and a part that was only upsampled can be taken at its own resolution (see simplify.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.engines.blockwise.network.layers.activation import Activation
from rigdyno.engines.blockwise.network.layers.convolution import Convolution
from rigdyno.engines.blockwise.network.layers.deconvolution import Deconvolution
from rigdyno.engines.blockwise.network.layers.layer import Taken
from rigdyno.engines.blockwise.network.spans import Span, common


@dataclass(eq=False)
class Weighted:
    parts: tuple[Convolution | Deconvolution, ...]
    then: Activation | None = None

    @property
    def channels(self) -> int:
        return self.parts[0].channels

    def needs(self, axis: int, wanted: Span) -> list[Span]:
        return [part.needs(axis, wanted) for part in self.parts]

    def gives(self, axis: int, given: Sequence[Span]) -> Span:
        return common(part.gives(axis, span) for part, span in zip(self.parts, given, strict=True))

    def scale(self, axis: int) -> tuple[int, int]:
        return self.parts[0].scale(axis)

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        answer: Tensor | None = None
        for number in self._order():
            last = number == self._order()[-1]
            answer = self.parts[number].add_to(
                answer, inputs[number], places[number], wanted, self.then if last else None
            )
        assert answer is not None
        return answer

    def takes(self, places: Sequence[Box], wanted: Box, given: Sequence[Taken]) -> Taken:
        """Only what comes first is kept: a transposed convolution after it is added from beside, others in place."""
        first, *others = self._order()
        each = zip(self.parts, places, given, strict=True)
        taken = [part.takes(place, wanted, own) for part, place, own in each]
        beside = [taken[first].beside]
        for number in others:
            added = taken[number].kept if isinstance(self.parts[number], Deconvolution) else 0
            beside.append(taken[number].beside + added)
        activated = self.channels * wanted.voxels if self.then and self.then.name == "gelu" else 0
        return Taken(taken[first].kept, max(beside) + activated, part=taken[first].part)

    def multiply_adds(self, shape: Zyx) -> int:
        return sum(part.multiply_adds(shape) for part in self.parts)

    def _order(self) -> list[int]:
        """Convolutions last: they can add to what is there and apply the activation in one pass."""
        return sorted(range(len(self.parts)), key=lambda number: isinstance(self.parts[number], Convolution))
