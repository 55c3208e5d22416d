"""Which stored axis is which, and how they become channels, z, y, x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.engines.blockwise.errors import BadSetting, BadVolume

SPACE = ("z", "y", "x")
BY_NUMBER = {3: SPACE, 4: ("c", *SPACE), 5: ("t", "c", *SPACE)}

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """The stored axes in their order; those in `picks` are taken at one index and drop out."""

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    picks: Mapping[str, int]

    @property
    def shape(self) -> Zyx:
        return self.spatial(self.lengths)

    @property
    def channels(self) -> int:
        return self.lengths[self.names.index("c")] if self.has_channels else 1

    @property
    def has_channels(self) -> bool:
        return "c" in self.names and "c" not in self.picks

    @property
    def order(self) -> list[int]:
        """Where channels, z, y and x are once the picked axes are gone."""
        kept = [name for name in self.names if name not in self.picks]
        return [kept.index(name) for name in ("c", *SPACE) if name in kept]

    def spatial(self, each: Sequence[T]) -> tuple[T, T, T]:
        """Of one thing for each stored axis, those of z, y and x."""
        z, y, x = (each[self.names.index(name)] for name in SPACE)
        return z, y, x

    def index(self, box: Box | None = None) -> tuple[int | slice, ...]:
        """Where a box is, in the order of storage."""
        slices = dict(zip(SPACE, box.slices(), strict=True)) if box else {}
        return tuple(self.picks.get(name, slices.get(name, slice(None))) for name in self.names)


def layout(location: str, names: Sequence[str], lengths: Sequence[int], at: Mapping[str, int]) -> Layout:
    known = ", ".join(names)
    if len(names) != len(lengths) or len(set(names)) != len(names):
        raise BadVolume(f"{location} names the axes {known} for {len(lengths)} dimensions: mend its metadata")
    if not set(SPACE) <= set(names):
        raise BadVolume(f"{location} has the axes {known}, and a volume needs z, y and x")
    if not all(lengths):
        raise BadVolume(f"{location} has no voxels: its shape is {' x '.join(map(str, lengths))}")
    sizes = dict(zip(names, lengths, strict=True))
    for axis, index in at.items():
        _check_pick(location, axis, index, sizes)
    return Layout(tuple(names), tuple(lengths), _picks(location, sizes, at))


def by_number(location: str, dimensions: int) -> tuple[str, ...]:
    if dimensions not in BY_NUMBER:
        raise BadVolume(
            f"{location} has {dimensions} dimensions, and 3 (z, y, x), 4 (with c) or 5 (with t, c) are read"
        )
    return BY_NUMBER[dimensions]


def by_label(labels: Sequence[object], dimensions: int) -> tuple[str, ...] | None:
    """The names that a format stores beside an array, if they name a volume at all."""
    names = tuple(str(label).lower() for label in labels)
    usable = len(names) == len(set(names)) == dimensions and set(SPACE) <= set(names)
    return names if usable else None


def _check_pick(location: str, axis: str, index: int, sizes: Mapping[str, int]) -> None:
    if axis not in sizes:
        raise BadSetting(f"{location} has no axis {axis!r} to take at {index}: it has {', '.join(sizes)}")
    if axis in SPACE:
        raise BadSetting(f"the axis {axis} of {location} can't be taken at one index: a volume keeps z, y and x")
    if not 0 <= index < sizes[axis]:
        raise BadSetting(f"{location} has no {axis}={index}: the last one is {axis}={sizes[axis] - 1}")


def _picks(location: str, sizes: Mapping[str, int], at: Mapping[str, int]) -> dict[str, int]:
    others = [name for name in sizes if name != "c" and name not in SPACE and name not in at]
    for name in others:
        if sizes[name] > 1:
            raise BadSetting(f"{location} has {sizes[name]} along {name}: choose one, for instance --at {name}=0")
    return {**dict.fromkeys(others, 0), **at}
