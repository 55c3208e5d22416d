"""Concatenation of several maps along their channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rigdyno.engines.blockwise.boxes import Box, Span, Zyx, intersection
from rigdyno.engines.blockwise.network.layers.layer import MemoryUse, any_planar, crop


@dataclass(frozen=True)
class Concatenation:
    widths: tuple[int, ...]  # channels of each input

    @property
    def channels(self) -> int:
        return sum(self.widths)

    def find_needed(self, axis: int, wanted: Span) -> list[Span]:
        return [wanted] * len(self.widths)

    def find_output(self, axis: int, given: Sequence[Span]) -> Span:
        return intersection(given)

    def scale(self, axis: int) -> tuple[int, int]:
        return 1, 1

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        return torch.cat([crop(tensor, place, wanted) for tensor, place in zip(inputs, places, strict=True)], 1)

    def estimate_memory(self, places: Sequence[Box], wanted: Box, given: Sequence[MemoryUse]) -> MemoryUse:
        return MemoryUse(self.channels * wanted.voxels, planar=any_planar(given))

    def count_multiply_adds(self, shape: Zyx) -> int:
        return 0
