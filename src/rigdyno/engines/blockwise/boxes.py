"""Boxes of voxels, the grid of blocks that covers a volume, and spans of indices along one axis.

Boxes and spans are half-open. Boxes are in the order z, y, x and may extend outside the volume. Spans count from the
origin of the block that is predicted, and are negative in its halo; at a coarser level, index 0 is the voxel that
begins at the same position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from rigdyno.engines.blockwise.errors import BadSetting

Zyx = tuple[int, int, int]

Span = tuple[int, int]


@dataclass(frozen=True, order=True)
class Box:
    start: Zyx
    stop: Zyx

    @property
    def shape(self) -> Zyx:
        z, y, x = (max(0, stop - start) for start, stop in zip(self.start, self.stop, strict=True))
        return z, y, x

    @property
    def voxels(self) -> int:
        return prod(self.shape)

    def grown(self, halo: Zyx) -> Box:
        return Box(
            zyx(a - h for a, h in zip(self.start, halo, strict=True)),
            zyx(map(sum, zip(self.stop, halo, strict=True))),
        )

    def within(self, other: Box) -> Box:
        """Return the part of this box that is inside the other; it may be empty."""
        return Box(zyx(map(max, self.start, other.start)), zyx(map(min, self.stop, other.stop)))

    def moved(self, by: Zyx) -> Box:
        return Box(zyx(map(sum, zip(self.start, by, strict=True))), zyx(map(sum, zip(self.stop, by, strict=True))))

    def spans(self) -> list[tuple[int, int]]:
        """Return the start and the stop along each axis."""
        return list(zip(self.start, self.stop, strict=True))

    def slices(self) -> tuple[slice, slice, slice]:
        z, y, x = (slice(start, stop) for start, stop in zip(self.start, self.stop, strict=True))
        return z, y, x

    def __str__(self) -> str:
        """Format the box as a Python slice: [0:64, 0:64, 128:192]."""
        return "[" + ", ".join(f"{start}:{stop}" for start, stop in zip(self.start, self.stop, strict=True)) + "]"


def whole_box(shape: Zyx) -> Box:
    """Return the box of a whole volume."""
    return Box((0, 0, 0), shape)


def box_from_spans(spans: Iterable[tuple[int, int]]) -> Box:
    """Make a box from its start and stop along each axis."""
    starts, stops = zip(*spans, strict=True)
    return Box(zyx(starts), zyx(stops))


def zyx(numbers: Iterable[int]) -> Zyx:
    z, y, x = numbers
    return z, y, x


@dataclass(frozen=True)
class Grid:
    """The blocks of the output: they cover the volume, each voxel once, in C order.

    There may be hundreds of millions of them, so each is computed on request and none is stored.
    """

    shape: Zyx  # of the volume
    block: Zyx  # shape of a block; blocks at the end of the volume are smaller

    def __post_init__(self) -> None:
        for what, zyx in (("volume", self.shape), ("block", self.block)):
            if len(zyx) != 3 or min(zyx) < 1:
                raise BadSetting(f"a {what} of shape {zyx} has no voxels: give three lengths of at least 1, as z, y, x")

    @property
    def counts(self) -> Zyx:
        """Return the number of blocks along each axis."""
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
        return Box((0, 0, 0), self.block).moved(start).within(whole_box(self.shape))

    def __iter__(self) -> Iterator[Box]:
        return (self[index] for index in range(len(self)))

    def index_of(self, box: Box) -> int:
        """Return the index of a block, the inverse of `grid[index]`."""
        z, y, x = (start // step for start, step in zip(box.start, self.block, strict=True))
        _, rows, columns = self.counts
        index = (z * rows + y) * columns + x
        if not 0 <= index < len(self) or self[index] != box:
            raise BadSetting(f"{box} isn't a block of this grid, which cuts {self.shape} into blocks of {self.block}")
        return index


def union(spans: Iterable[Span]) -> Span:
    """Return the smallest span that contains all of them."""
    starts, stops = zip(*spans, strict=True)
    return min(starts), max(stops)


def intersection(spans: Iterable[Span]) -> Span:
    starts, stops = zip(*spans, strict=True)
    return max(starts), min(stops)


def span_length(span: Span) -> int:
    return max(0, span[1] - span[0])


def round_up(number: int, step: int) -> int:
    """Return the smallest multiple of `step` that isn't below `number`."""
    return -(-number // step) * step
