"""Channels of several maps, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.engines.blockwise.network.layers.layer import Taken, any_planar, cropped
from rigdyno.engines.blockwise.network.spans import Span, common


@dataclass(frozen=True)
class Concatenation:
    widths: tuple[int, ...]  # channels of each input

    @property
    def channels(self) -> int:
        return sum(self.widths)

    def needs(self, axis: int, wanted: Span) -> list[Span]:
        return [wanted] * len(self.widths)

    def gives(self, axis: int, given: Sequence[Span]) -> Span:
        return common(given)

    def scale(self, axis: int) -> tuple[int, int]:
        return 1, 1

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        return torch.cat([cropped(tensor, place, wanted) for tensor, place in zip(inputs, places, strict=True)], 1)

    def takes(self, places: Sequence[Box], wanted: Box, given: Sequence[Taken]) -> Taken:
        return Taken(self.channels * wanted.voxels, planar=any_planar(given))

    def multiply_adds(self, shape: Zyx) -> int:
        return 0
