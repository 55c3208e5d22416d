"""What the machine has left, and what a cell would need of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from rigdyno.clock import SystemClock
from rigdyno.errors import RigdynoError
from rigdyno.probes._meters import reads_power
from rigdyno.schema.system import System
from rigdyno.units import show_bytes

MEMORY_RESERVE = 0.05  # of all memory, for everybody else
BYTES_PER_SECOND = 40_000  # of run time on disk: a row a millisecond, and telemetry
BYTES_PER_CELL = 30_000


@dataclass(frozen=True)
class Resources:
    available_bytes: int
    has_meter: bool = False  # of power or energy

    @property
    def without_meter(self) -> Resources:
        """For what has no use for the idle rig."""
        return replace(self, has_meter=False)

    def shared_by(self, ranks: int) -> Resources:
        return replace(self, available_bytes=self.available_bytes // ranks)

    def refusal(self, need_bytes: int | None) -> str | None:
        if need_bytes is None or need_bytes <= self.available_bytes:
            return None
        return f"needs {show_bytes(need_bytes)} of memory, {show_bytes(max(0, self.available_bytes))} are free"


def look(system: System) -> Resources:
    free = psutil.virtual_memory().available - int(MEMORY_RESERVE * system.memory_bytes)
    limit = system.limits.memory_bytes
    return Resources(min(free, limit) if limit is not None else free, has_meter=reads_power(SystemClock()))


def free_disk_bytes(folder: Path) -> int:
    """Of the nearest folder that exists: the run folder will be made below it."""
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path())
    return shutil.disk_usage(existing).free


def disk_bytes(seconds: float, cells: int) -> int:
    return int(seconds * BYTES_PER_SECOND) + cells * BYTES_PER_CELL


def what_would_fit(workload: Any, system: System, resources: Resources) -> str | None:
    """The largest value of a whole-number option with which the workload's own estimate fits."""
    for field in getattr(workload, "__dataclass_fields__", {}):
        value = getattr(workload, field)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            largest = _largest(partial(_need, workload, system, field), value, resources)
            if largest:
                return f"{field}={largest} would fit"
    return None


def _need(workload: Any, system: System, field: str, number: int) -> int | None:
    try:
        need: int | None = replace(workload, **{field: number}).memory_bytes(system)
    except RigdynoError:
        return None
    return need


def _largest(need: Callable[[int], int | None], too_large: int, resources: Resources) -> int:
    """By bisection; 0 if nothing fits or the option doesn't matter."""
    fits, fails = 0, too_large
    while fails - fits > 1:
        middle = (fits + fails) // 2
        required = need(middle)
        if required is not None and required <= resources.available_bytes:
            fits = middle
        else:
            fails = middle
    return fits
