"""The energy that processors count themselves (RAPL), through Linux's powercap."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rigdyno.contracts import Channel, Unavailable
from rigdyno.probes._files import OpenFile, number, text_in

POWERCAP = Path("sys/class/powercap")
MICROJOULES = 1e6
INTERVAL_SECONDS = 0.001  # the processor renews its counters about every millisecond
MOST_WATTS = 5000.0  # no package or memory of today comes near


class _Zone:
    """Joules since it was opened. The kernel's counter starts again from zero beyond its range, every few minutes
    to hours: a sampler that reads more often than that misses no turn."""

    def __init__(self, folder: Path) -> None:
        self._file = OpenFile(folder / "energy_uj")
        self._range_uj = number(text_in(folder / "max_energy_range_uj").encode())
        self._last_uj = number(self._file.read())
        self._sum_uj = 0.0

    def joules(self) -> float:
        now_uj = number(self._file.read())
        step_uj = now_uj - self._last_uj
        if step_uj < 0:
            step_uj += self._range_uj
        self._last_uj = now_uj
        self._sum_uj += step_uj  # once unreadable it stays NaN: what was used meanwhile is unknown
        return self._sum_uj / MICROJOULES

    def close(self) -> None:
        self._file.close()


class Rapl:
    """Energy of processor packages, their cores, their memory and the platform (Intel and AMD, bare metal)."""

    hints: ClassVar[Mapping[str, str]] = {}

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._zones: list[_Zone] = []

    def availability(self) -> Unavailable | None:
        folders = self._folders()
        if not folders:
            return self._why_none()
        if any(_is_readable(folder) for folder in folders):
            return None
        command = f"sudo chmod a+r /{POWERCAP}/intel-rapl:*/energy_uj"
        return Unavailable("the energy counters can be read by root only", command)

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        found: dict[str, tuple[Channel, Path]] = {}
        for folder in self._folders():
            if _is_readable(folder):
                channel = _channel(folder)
                found.setdefault(channel.name, (channel, folder))
        self._zones = [_Zone(folder) for _, folder in found.values()]
        return [channel for channel, _ in found.values()]

    def read(self) -> Sequence[float]:
        return [zone.joules() for zone in self._zones]

    def close(self) -> None:
        for zone in self._zones:
            zone.close()

    def _folders(self) -> list[Path]:
        """Without intel-rapl-mmio, which counts the same packages again."""
        zones = sorted((self._root / POWERCAP).glob("intel-rapl:[0-9]*"))
        return [zone for zone in zones if text_in(zone / "name")]

    def _why_none(self) -> Unavailable:
        flags = text_in(self._root / "proc/cpuinfo").partition("flags")[2].partition("\n")[0].split()
        if "hypervisor" in flags:
            return Unavailable("no powercap here: a virtual machine has no energy counter", "measure on its host")
        if not (self._root / "proc").exists():
            return Unavailable("there is no powercap on this system", "measure on Linux")
        return Unavailable("no powercap here: no driver for this processor's counters", "sudo modprobe intel_rapl_msr")


def _is_readable(folder: Path) -> bool:
    path = folder / "energy_uj"
    return os.access(path, os.R_OK) and not math.isnan(number(text_in(path).encode()))


def _channel(folder: Path) -> Channel:
    """A package holds its cores; its memory is counted apart. What 'psys' holds differs from board to board."""
    own = text_in(folder / "name")
    parent = own if folder.name.count(":") < 2 else text_in(folder.parent / folder.name.rpartition(":")[0] / "name")
    is_package = own.startswith("package") and folder.name.count(":") < 2
    device = "board" if own == "psys" else parent.replace("-", "")  # package-0 -> package0
    rail = "" if is_package else own
    return Channel(
        name="_".join(part for part in (device if rail != "psys" else "", rail, "energy_joules") if part),
        unit="J",
        quantity="energy",
        kind="counter",
        device=device,
        rail=rail,
        scope="board" if own == "psys" else "package",
        extent="whole" if is_package or own == "dram" else "part",
        interval_seconds=INTERVAL_SECONDS,
        sensor="rapl",
        most=MOST_WATTS,
    )
