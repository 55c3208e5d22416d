"""The energy that the processor packages count themselves (RAPL), through Linux's powercap."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rigdyno.contracts import Channel, Unavailable
from rigdyno.probes._files import OpenFile, number

POWERCAP = Path("sys/class/powercap")
MICROJOULES = 1e6


class _Package:
    """Joules since it was opened. The kernel's counter starts again from zero beyond its range, every few minutes
    to hours: a sampler that reads more often than that misses no turn."""

    def __init__(self, folder: Path) -> None:
        self._file = OpenFile(folder / "energy_uj")
        self._range_uj = _number_in(folder / "max_energy_range_uj")
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
    """Energy of each processor package (Intel and AMD, bare metal)."""

    hints: ClassVar[Mapping[str, str]] = {}

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._packages: list[_Package] = []

    def availability(self) -> Unavailable | None:
        folders = self._folders()
        if not folders:
            return self._why_none()
        if all(os.access(folder / "energy_uj", os.R_OK) for folder in folders):
            return None
        command = f"sudo chmod a+r /{POWERCAP}/intel-rapl:*/energy_uj"
        return Unavailable("the energy counters can be read by root only", command)

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        folders = self._folders()
        self._packages = [_Package(folder) for folder in folders]
        return [Channel(f"{_channel_prefix(folder)}_energy_joules", "J") for folder in folders]

    def read(self) -> Sequence[float]:
        return [package.joules() for package in self._packages]

    def close(self) -> None:
        for package in self._packages:
            package.close()

    def _folders(self) -> list[Path]:
        """Packages only: their parts (intel-rapl:0:0) and the whole board ('psys') would be counted twice."""
        zones = sorted((self._root / POWERCAP).glob("intel-rapl:[0-9]*"))
        return [zone for zone in zones if _text_in(zone / "name").startswith("package")]

    def _why_none(self) -> Unavailable:
        flags = _text_in(self._root / "proc/cpuinfo").partition("flags")[2].partition("\n")[0].split()
        if "hypervisor" in flags:
            return Unavailable("no powercap here: a virtual machine has no energy counter", "measure on its host")
        if not (self._root / "proc").exists():
            return Unavailable("there is no powercap on this system", "measure on Linux")
        return Unavailable("no powercap here: no driver for this processor's counters", "sudo modprobe intel_rapl_msr")


def _channel_prefix(folder: Path) -> str:
    return _text_in(folder / "name").replace("-", "")  # package-0 -> package0


def _number_in(path: Path) -> float:
    return number(_text_in(path).encode()) if path.exists() else math.nan


def _text_in(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
