"""Interpret the metadata of a stored array: which axis is which, and how large a voxel is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.engines.blockwise.errors import BadSetting, BadVolume
from rigdyno.engines.blockwise.interfaces import VoxelSize

SPACE = ("z", "y", "x")

AXES_BY_COUNT = {3: SPACE, 4: ("c", *SPACE), 5: ("t", "c", *SPACE)}

# The unit names that OME-NGFF recommends; OTHER_NAMES has what N5, Fiji and users write instead.
METRES = {
    "angstrom": 1e-10,
    "nanometer": 1e-9,
    "micrometer": 1e-6,
    "millimeter": 1e-3,
    "centimeter": 1e-2,
    "meter": 1.0,
}

OTHER_NAMES = {
    "å": "angstrom",
    "nm": "nanometer",
    "um": "micrometer",
    "µm": "micrometer",  # the micro sign
    "μm": "micrometer",  # the Greek letter
    "micron": "micrometer",
    "mm": "millimeter",
    "cm": "centimeter",
    "m": "meter",
}

NO_UNITS = ("", "pixel", "pixels", "px", "voxel", "unitless")

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """The stored axes in their order; those in `picks` are read at one index and disappear."""

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    picks: Mapping[str, int]

    @property
    def shape(self) -> Zyx:
        return self.select_zyx(self.lengths)

    @property
    def channels(self) -> int:
        return self.lengths[self.names.index("c")] if self.has_channels else 1

    @property
    def has_channels(self) -> bool:
        return "c" in self.names and "c" not in self.picks

    @property
    def order(self) -> list[int]:
        """Return the positions of channels, z, y and x after the picked axes have been removed."""
        kept = [name for name in self.names if name not in self.picks]
        return [kept.index(name) for name in ("c", *SPACE) if name in kept]

    def select_zyx(self, each: Sequence[T]) -> tuple[T, T, T]:
        """Return the items of z, y and x from a sequence with one item per stored axis."""
        z, y, x = (each[self.names.index(name)] for name in SPACE)
        return z, y, x

    def index(self, box: Box | None = None) -> tuple[int | slice, ...]:
        """Return the index of a box, or of the whole array, in the order of storage."""
        slices = dict(zip(SPACE, box.slices(), strict=True)) if box else {}
        return tuple(self.picks.get(name, slices.get(name, slice(None))) for name in self.names)


def make_layout(location: str, names: Sequence[str], lengths: Sequence[int], at: Mapping[str, int]) -> Layout:
    """Check names and lengths of the axes, and return their layout. `at` reads an axis at one index."""
    known = ", ".join(names)
    if len(names) != len(lengths) or len(set(names)) != len(names):
        raise BadVolume(f"{location} names the axes {known} for {len(lengths)} dimensions: correct its metadata")
    if not set(SPACE) <= set(names):
        raise BadVolume(f"{location} has the axes {known}, and a volume needs z, y and x")
    if not all(lengths):
        raise BadVolume(f"{location} has no voxels: its shape is {' x '.join(map(str, lengths))}")
    sizes = dict(zip(names, lengths, strict=True))
    for axis, index in at.items():
        _check_pick(location, axis, index, sizes)
    return Layout(tuple(names), tuple(lengths), _picks(location, sizes, at))


def axes_by_count(location: str, dimensions: int) -> tuple[str, ...]:
    """Return the usual names of the axes of an array without metadata."""
    if dimensions not in AXES_BY_COUNT:
        raise BadVolume(
            f"{location} has {dimensions} dimensions, and 3 (z, y, x), 4 (with c) or 5 (with t, c) are read"
        )
    return AXES_BY_COUNT[dimensions]


def axes_by_label(labels: Sequence[object], dimensions: int) -> tuple[str, ...] | None:
    """Return the labels that a format stores for the axes, or None if they don't describe a volume."""
    names = tuple(str(label).lower() for label in labels)
    usable = len(names) == len(set(names)) == dimensions and set(SPACE) <= set(names)
    return names if usable else None


def _check_pick(location: str, axis: str, index: int, sizes: Mapping[str, int]) -> None:
    if axis not in sizes:
        raise BadSetting(f"{location} has no axis {axis!r} to read at {index}: it has {', '.join(sizes)}")
    if axis in SPACE:
        raise BadSetting(f"the axis {axis} of {location} can't be read at one index: a volume needs z, y and x")
    if not 0 <= index < sizes[axis]:
        raise BadSetting(f"{location} has no {axis}={index}: the last is {axis}={sizes[axis] - 1}")


def _picks(location: str, sizes: Mapping[str, int], at: Mapping[str, int]) -> dict[str, int]:
    others = [name for name in sizes if name != "c" and name not in SPACE and name not in at]
    for name in others:
        if sizes[name] > 1:
            raise BadSetting(f"{location} has {sizes[name]} along {name}: choose one, for instance --at {name}=0")
    return {**dict.fromkeys(others, 0), **at}


def make_voxel_size(zyx: Sequence[Any], units: Sequence[Any]) -> VoxelSize:
    """Return a voxel size in the unit of x.

    Sizes that make no sense are left out: no result depends on them.
    """
    sizes = [_to_float(size) for size in zyx]
    if len(sizes) != 3 or not all(isfinite(size) and size > 0 for size in sizes):
        return VoxelSize()
    known = [_normalise_unit(unit) for unit in units]
    if len(set(known)) == 1:
        return VoxelSize(_three(sizes), known[-1])
    metres = [METRES.get(str(unit), float("nan")) for unit in known]
    if not all(map(isfinite, metres)):
        return VoxelSize()
    return VoxelSize(_three([_round(size * m / metres[-1]) for size, m in zip(sizes, metres, strict=True)]), known[-1])


def _normalise_unit(name: Any) -> str | None:
    text = str(name or "").strip()
    if text.lower() in NO_UNITS:
        return None
    singular = text.lower().removesuffix("s").replace("metre", "meter")
    return OTHER_NAMES.get(singular, singular if singular in METRES else text)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _round(size: float) -> float:
    return float(f"{size:.12g}")  # 0.04 micrometer is 40 nanometer, not 40.00000000000001


def _three(sizes: Sequence[float]) -> tuple[float, float, float]:
    z, y, x = sizes
    return z, y, x
