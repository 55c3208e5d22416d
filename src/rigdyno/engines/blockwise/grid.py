"""The blocks of the output: they cover the volume, each voxel once, in C order.

A volume may have hundreds of millions of them: each is worked out when it is asked for, and none is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from rigdyno.engines.blockwise.boxes import Box, Zyx, whole
from rigdyno.engines.blockwise.errors import BadSetting


@dataclass(frozen=True)
class Grid:
    shape: Zyx  # of the volume
    block: Zyx  # of a block, unless the volume ends before it does

    def __post_init__(self) -> None:
        for what, zyx in (("volume", self.shape), ("block", self.block)):
            if len(zyx) != 3 or min(zyx) < 1:
                raise BadSetting(f"a {what} of shape {zyx} has no voxels: give three lengths of at least 1, as z, y, x")

    @property
    def counts(self) -> Zyx:
        """How many blocks there are along each axis."""
        z, y, x = (-(-length // step) for length, step in zip(self.shape, self.block, strict=True))
        return z, y, x

    def __len__(self) -> int:
        return prod(self.counts)

    def __getitem__(self, index: int) -> Box:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no block {index} in a grid of {len(self)}")
        _, rows, columns = self.counts
        z, rest = divmod(index, rows * columns)
        y, x = divmod(rest, columns)
        start = (z * self.block[0], y * self.block[1], x * self.block[2])
        return Box((0, 0, 0), self.block).moved(start).within(whole(self.shape))

    def __iter__(self) -> Iterator[Box]:
        return (self[index] for index in range(len(self)))

    def index_of(self, box: Box) -> int:
        """The other way round: `grid[grid.index_of(box)] == box`."""
        z, y, x = (start // step for start, step in zip(box.start, self.block, strict=True))
        _, rows, columns = self.counts
        index = (z * rows + y) * columns + x
        if not 0 <= index < len(self) or self[index] != box:
            raise BadSetting(f"{box} is no block of this grid, which cuts {self.shape} into blocks of {self.block}")
        return index
