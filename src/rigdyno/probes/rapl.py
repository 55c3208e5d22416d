"""Reads the energy counters of processors (RAPL) through Linux's powercap."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rigdyno.base.linux import OpenFile, parse_number, read_text
from rigdyno.contracts import Channel, Probe, Unavailable

POWERCAP = Path("sys/class/powercap")

MICROJOULES = 1e6

INTERVAL_SECONDS = 0.001  # the processor updates its counters about every millisecond

MOST_WATTS = 5000.0  # far above any current package or memory


class _Zone:
    """Counts joules since it was opened. The kernel's counter wraps around every few minutes to hours; a sampler that
    reads more often than that misses nothing."""

    def __init__(self, folder: Path) -> None:
        self._file = OpenFile(folder / "energy_uj")
        self._range_uj = parse_number(read_text(folder / "max_energy_range_uj").encode())
        self._last_uj = parse_number(self._file.read())
        self._sum_uj = 0.0

    def read_joules(self) -> float:
        now_uj = parse_number(self._file.read())
        step_uj = now_uj - self._last_uj
        if step_uj < 0:
            step_uj += self._range_uj
        self._last_uj = now_uj
        self._sum_uj += step_uj  # stays NaN once it was unreadable: the energy used meanwhile is unknown
        return self._sum_uj / MICROJOULES

    def close(self) -> None:
        self._file.close()


class Rapl(Probe):
    """Energy of processor packages, their cores, their memory and the platform (Intel and AMD, bare metal)."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._zones: list[_Zone] = []

    def availability(self) -> Unavailable | None:
        folders = self._folders()
        if not folders:
            return self._explain_absence()
        if any(_is_readable(folder) for folder in folders):
            return None
        command = f"sudo chmod a+r /{POWERCAP}/intel-rapl:*/energy_uj"
        return Unavailable("the energy counters can be read by root only", command)

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        zones: dict[str, tuple[Channel, Path]] = {}
        for folder in self._folders():
            if _is_readable(folder):
                channel = _make_channel(folder)
                zones.setdefault(channel.name, (channel, folder))
        self._zones = [_Zone(folder) for _, folder in zones.values()]
        return [channel for channel, _ in zones.values()]

    def read(self) -> Sequence[float]:
        return [zone.read_joules() for zone in self._zones]

    def close(self) -> None:
        for zone in self._zones:
            zone.close()

    def _folders(self) -> list[Path]:
        """Return the zones' folders, without intel-rapl-mmio, which counts the same packages again."""
        zones = sorted((self._root / POWERCAP).glob("intel-rapl:[0-9]*"))
        return [zone for zone in zones if read_text(zone / "name")]

    def _explain_absence(self) -> Unavailable:
        flags = read_text(self._root / "proc/cpuinfo").partition("flags")[2].partition("\n")[0].split()
        if "hypervisor" in flags:
            return Unavailable("no powercap here: a virtual machine has no energy counter", "measure on its host")
        if not (self._root / "proc").exists():
            return Unavailable("there is no powercap on this system", "measure on Linux")
        return Unavailable("no powercap here: no driver for this processor's counters", "sudo modprobe intel_rapl_msr")


def _is_readable(folder: Path) -> bool:
    path = folder / "energy_uj"
    return os.access(path, os.R_OK) and not math.isnan(parse_number(read_text(path).encode()))


def _make_channel(folder: Path) -> Channel:
    """Describe a zone. A package contains its cores, but not its memory; what 'psys' contains depends on the board."""
    own = read_text(folder / "name")
    parent = own if folder.name.count(":") < 2 else read_text(folder.parent / folder.name.rpartition(":")[0] / "name")
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
