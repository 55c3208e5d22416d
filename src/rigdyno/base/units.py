"""Parses, converts and prints units. Nothing else in Rigdyno does."""

from __future__ import annotations

import math
import re

from rigdyno.base.errors import BadValue

NS_PER_S = 1_000_000_000

NS_PER_MS = 1_000_000

JOULES_PER_KWH = 3.6e6

_ENERGY_ITEMS = {
    "voxel": ("megavoxel", 1e6),
    "byte": ("GB", 1e9),
    "flop": ("TFLOP", 1e12),
    "iteration": ("it", 1.0),
}

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}

_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


def seconds_from(text: str | float) -> float:
    """Return the seconds of '90', '90s', '1.5m' or '1h30m'; a bare number is seconds."""
    value = _parse_duration(str(text).strip().lower())
    if value is None or not math.isfinite(value):
        raise BadValue(f"'{text}' is not a duration; try 30s, 5m or 1h30m")
    if value <= 0:
        raise BadValue(f"a duration must be longer than zero, not '{text}'")
    return value


def _parse_duration(text: str) -> float | None:
    """Return the seconds of a number or of numbers with units, or None if the text is something else."""
    try:
        return float(text)
    except ValueError:
        pass
    parts = _DURATION_PART.findall(text)
    if not parts or _DURATION_PART.sub("", text).strip() or any(unit not in _SECONDS for _, unit in parts):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def share_from(text: str) -> float:
    """Return 0.03 for '3%'; a bare number is a share already."""
    stripped = text.strip()
    try:
        number = float(stripped.removesuffix("%"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadValue(f"'{text}' is not a share; write 3% or 0.03")
    return number / 100 if stripped.endswith("%") else number


def bytes_from(text: str) -> int:
    """Return the bytes of '8GB' or '512 MiB'."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _BYTES:
        raise BadValue(f"'{text}' is not a size; try 8GB or 512MiB")
    return int(float(match[1]) * _BYTES[match[2]])


def bus_bytes(size: float, ranks: int) -> float:
    """Return the bytes that a ring all-reduce of `size` bytes moves over each link, as nccl-tests define it."""
    return 2 * (ranks - 1) / ranks * size


def bytes_of_gbit(gigabits: float) -> float:
    """Convert gigabits to bytes."""
    return gigabits * 1e9 / 8


def gbit_of_bytes(size: float) -> float:
    """Convert bytes to gigabits."""
    return size * 8 / 1e9


def seconds_of_ns(nanoseconds: float) -> float:
    """Convert nanoseconds to seconds."""
    return nanoseconds / NS_PER_S


def show_seconds(seconds: float) -> str:
    """Format a duration as people say it: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(whole, 3600)
    return f"{hours} h {rest // 60} min" if rest >= 60 else f"{hours} h"


def show_bytes(size: float) -> str:
    """Format bytes with a decimal prefix, as bandwidths and disks are sold: 1.81 GB."""
    return show_scaled(size, "B")


def show_scaled(value: float, unit: str) -> str:
    """Format a value with three significant digits and an SI prefix: 1.81 GB, 27.3 GFLOP/s."""
    number, prefix = scale_to_prefix(value)
    return f"{show_number(number)} {prefix}{unit}"


def scale_to_prefix(value: float) -> tuple[float, str]:
    """Return a value divided by the largest SI prefix that it reaches, and the prefix ('' below a thousand)."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor * 0.9995:
            return value / factor, prefix
    return value, ""


def show_number(value: float) -> str:
    """Format a number with three significant digits, or as an integer from a thousand on.

    Scientific notation is used only below 0.001.
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    size = abs(value)
    if size >= 999.5:
        return f"{value:,.0f}"
    if size < 0.001:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(size * 1.0005)))}f}"


def rate_unit(item: str) -> str:
    """Return the unit of a rate of such items: 'B/s' for 'byte', 'image/s' for 'image'."""
    return {"byte": "B/s", "flop": "FLOP/s", "iteration": "it/s"}.get(item, f"{item}/s")


def energy_unit(item: str) -> tuple[str, float]:
    """Return the unit in which energy per item is written, and the number of items in it.

    A single voxel or byte takes so little energy that it is given for a million voxels or a billion bytes.
    """
    name, count = _ENERGY_ITEMS.get(item, (item, 1.0))
    return f"J/{name}", count


def show_percent(share: float) -> str:
    """Format a share as a percentage: 0.031 as '3.1 %', 0.31 as '31 %'."""
    percent = 100 * share
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else f"{percent:.1f} %"


def show_binary_bytes(size: int) -> str:
    """Format bytes with a binary prefix, as caches are sized: 32 KiB, 1.5 MiB."""
    for prefix, factor in (("Mi", 2**20), ("Ki", 2**10)):
        if size >= factor:
            return f"{size / factor:g} {prefix}B"
    return f"{size} B"
