"""Boxes of voxels, half-open, in the order z, y, x; they may reach outside of the volume."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

Zyx = tuple[int, int, int]


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
        """The part of this box that lies in the other."""
        return Box(zyx(map(max, self.start, other.start)), zyx(map(min, self.stop, other.stop)))

    def moved(self, by: Zyx) -> Box:
        return Box(zyx(map(sum, zip(self.start, by, strict=True))), zyx(map(sum, zip(self.stop, by, strict=True))))

    def spans(self) -> list[tuple[int, int]]:
        """Start and stop along each axis."""
        return list(zip(self.start, self.stop, strict=True))

    def slices(self) -> tuple[slice, slice, slice]:
        z, y, x = (slice(start, stop) for start, stop in zip(self.start, self.stop, strict=True))
        return z, y, x

    def __str__(self) -> str:
        """As one would write it in Python: [0:64, 0:64, 128:192]."""
        return "[" + ", ".join(f"{start}:{stop}" for start, stop in zip(self.start, self.stop, strict=True)) + "]"


def whole(shape: Zyx) -> Box:
    return Box((0, 0, 0), shape)


def box_of(spans: Iterable[tuple[int, int]]) -> Box:
    """From its start and stop along each axis."""
    starts, stops = zip(*spans, strict=True)
    return Box(zyx(starts), zyx(stops))


def zyx(numbers: Iterable[int]) -> Zyx:
    z, y, x = numbers
    return z, y, x
