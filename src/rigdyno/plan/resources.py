"""Estimate memory, disk, ranks and threads: what the machine has free, and what a cell needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from rigdyno.base.clock import SystemClock
from rigdyno.base.errors import RigdynoError
from rigdyno.base.units import show_bytes
from rigdyno.contracts import Machine
from rigdyno.probes.common.probe_set import has_power_channel
from rigdyno.schema.system import System

if TYPE_CHECKING:
    from rigdyno.plan.request import Request

MEMORY_RESERVE = 0.05  # share of all memory, for other processes

BYTES_PER_SECOND = 40_000  # on disk per second of run time: one row per millisecond, and telemetry

BYTES_PER_CELL = 30_000  # on disk

EVERY_SIZE_UP_TO = 4  # of the first numbers of ranks, none is left out


@dataclass(frozen=True)
class Resources:
    available_bytes: int
    has_meter: bool = False  # whether power or energy can be measured

    @property
    def without_meter(self) -> Resources:
        """Return the resources of a run that doesn't measure the idle machine."""
        return replace(self, has_meter=False)

    def shared_by(self, ranks: int) -> Resources:
        return replace(self, available_bytes=self.available_bytes // ranks)

    def refusal(self, need_bytes: int | None) -> str | None:
        if need_bytes is None or need_bytes <= self.available_bytes:
            return None
        return f"needs {show_bytes(need_bytes)} of memory, {show_bytes(max(0, self.available_bytes))} are free"


def read_resources(system: System) -> Resources:
    free = psutil.virtual_memory().available - int(MEMORY_RESERVE * system.memory_bytes)
    limit = system.limits.memory_bytes
    return Resources(min(free, limit) if limit is not None else free, has_meter=has_power_channel(SystemClock()))


def free_disk_bytes(folder: Path) -> int:
    """Return the free disk space of the folder, or of its nearest parent that exists."""
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path())
    return shutil.disk_usage(existing).free


def disk_bytes(seconds: float, cells: int) -> int:
    return int(seconds * BYTES_PER_SECOND) + cells * BYTES_PER_CELL


def what_would_fit(workload: Any, system: System, resources: Resources) -> str | None:
    """Suggest a value of a whole-number option, the largest with which the workload's memory estimate fits."""
    for field in getattr(workload, "__dataclass_fields__", {}):
        value = getattr(workload, field)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            largest = _find_largest(partial(_estimate_need, workload, system, field), value, resources)
            if largest:
                return f"{field}={largest} would fit"
    return None


def _estimate_need(workload: Any, system: System, field: str, number: int) -> int | None:
    try:
        need: int | None = replace(workload, **{field: number}).memory_bytes(system)
    except RigdynoError:
        return None
    return need


def _find_largest(need: Callable[[int], int | None], too_large: int, resources: Resources) -> int:
    """Find the largest value that fits, by bisection; 0 if none fits or the option doesn't affect memory."""
    fits, fails = 0, too_large
    while fails - fits > 1:
        middle = (fits + fails) // 2
        required = need(middle)
        if required is not None and required <= resources.available_bytes:
            fits = middle
        else:
            fails = middle
    return fits


def most_ranks(system: System, device: str) -> int:
    """Return the maximum number of ranks: one per accelerator, or one per core on a CPU."""
    if device.partition(":")[0] == "cpu":
        return system.cpu.usable_cores
    return max(1, len(system.accelerators_for(device)))


def threads_each(system: System, device: str, ranks: int) -> int | None:
    """Return the threads of each rank: an equal share of the cores; None (the framework's default) on accelerators."""
    return max(1, system.cpu.usable_cores // ranks) if device == "cpu" else None


def sizes(most: int) -> list[int]:
    """Return the numbers of ranks to measure: 1 to 4, then twice as many each time, and `most`."""
    found = list(range(1, min(most, EVERY_SIZE_UP_TO) + 1))
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return found


def threads_of(request: Request, machine: Machine, most: int) -> int | None:
    """Return the threads of each rank, the same for one rank as for `most`: otherwise the first point of a scaling
    curve would have more cores per rank than the others."""
    if request.threads is not None or machine.device != "cpu":
        return request.threads
    return max(1, machine.system.cpu.usable_cores // most)
