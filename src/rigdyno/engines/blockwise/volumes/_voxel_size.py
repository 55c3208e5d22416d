"""Voxel sizes as metadata give them: units by many names, or none."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from rigdyno.engines.blockwise.ports import VoxelSize

# The names that OME-NGFF recommends, for what N5, Fiji and users write.
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


def voxel_size(zyx: Sequence[Any], units: Sequence[Any]) -> VoxelSize:
    """One unit for all three axes, that of x. Sizes that make no sense are left out: no answer depends on them."""
    sizes = [_number(size) for size in zyx]
    if len(sizes) != 3 or not all(isfinite(size) and size > 0 for size in sizes):
        return VoxelSize()
    known = [_unit(unit) for unit in units]
    if len(set(known)) == 1:
        return VoxelSize(_three(sizes), known[-1])
    metres = [METRES.get(str(unit), float("nan")) for unit in known]
    if not all(map(isfinite, metres)):
        return VoxelSize()
    return VoxelSize(
        _three([_rounded(size * m / metres[-1]) for size, m in zip(sizes, metres, strict=True)]), known[-1]
    )


def _unit(name: Any) -> str | None:
    text = str(name or "").strip()
    if text.lower() in NO_UNITS:
        return None
    singular = text.lower().removesuffix("s").replace("metre", "meter")
    return OTHER_NAMES.get(singular, singular if singular in METRES else text)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _rounded(size: float) -> float:
    return float(f"{size:.12g}")  # 0.04 micrometer is 40 nanometer, not 40.00000000000001


def _three(sizes: Sequence[float]) -> tuple[float, float, float]:
    z, y, x = sizes
    return z, y, x
