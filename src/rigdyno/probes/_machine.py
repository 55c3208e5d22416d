"""What the whole machine is going through: cores, pressure, memory, clocks, temperatures."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path

from rigdyno.probes._files import OpenFile, number, text_in

IDLE, IO_WAIT, STEAL, FIELDS = 3, 4, 7, 8  # of a core's line in /proc/stat; what follows is counted in 'user' already
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
NOT_TEMPERATURES = ("pmic", "iwlwifi")  # a constant 100 on some boards; a radio

Ticks = tuple[int, ...]


class Cores:
    """Shares of time since the last read, from the kernel's tick counts."""

    def __init__(self, proc: Path, usable: Collection[int] | None = None) -> None:
        """`usable`: those that the worker may run on; what others do on the rest of a machine keeps nothing from it."""
        self._file = OpenFile(proc / "stat")
        self._last = self._counts()
        of_all = [name for name in self._last if name != "cpu"]
        self.names = of_all if usable is None else [name for name in of_all if name in {f"cpu{n}" for n in usable}]

    def read(self) -> tuple[list[float], float]:
        """The usage of each core, and the share of all cores that the hypervisor gave to others."""
        last, self._last = self._last, self._counts()
        _, stolen = _shares(last.get("cpu"), self._last.get("cpu"))
        return [_shares(last.get(name), self._last.get(name))[0] for name in self.names], stolen

    def _counts(self) -> dict[str, Ticks]:
        counts = {}
        for line in (self._file.read() or b"").split(b"\n"):
            if not line.startswith(b"cpu"):
                break
            name, *fields = line.split(None, FIELDS + 1)
            counts[name.decode()] = tuple(map(int, fields[:FIELDS]))
        return counts

    def close(self) -> None:
        self._file.close()


def _shares(last: Ticks | None, now: Ticks | None) -> tuple[float, float]:
    """Of the time since: used, and stolen, which was not used here."""
    if last is None or now is None or len(now) < FIELDS or (passed := sum(now) - sum(last)) <= 0:
        return math.nan, math.nan
    idle, waiting, stolen = (max(0, now[field] - last[field]) for field in (IDLE, IO_WAIT, STEAL))
    return min(1.0, max(0.0, 1.0 - (idle + waiting + stolen) / passed)), stolen / passed


class Pressure:
    """How long at least one task waited for a resource since the last read, in microseconds."""

    def __init__(self, proc: Path, resource: str) -> None:
        self._file = OpenFile(proc / "pressure" / resource)
        self._last_us = self._total_us()

    def read_us(self) -> float:
        last, self._last_us = self._last_us, self._total_us()
        return self._last_us - last

    def _total_us(self) -> float:
        some = (self._file.read() or b"").partition(b"\n")[0]
        return number(some.partition(b"total=")[2])

    def close(self) -> None:
        self._file.close()


class Memory:
    def __init__(self, proc: Path) -> None:
        self._file = OpenFile(proc / "meminfo")

    def available_bytes(self) -> float:
        line = (self._file.read() or b"").partition(b"MemAvailable:")[2].partition(b"kB")[0]
        return number(line) * 1024

    def close(self) -> None:
        self._file.close()


class Frequency:
    """The mean clock of the cores, from cpufreq, else from /proc/cpuinfo."""

    def __init__(self, root: Path) -> None:
        self._files = _opened(root / "sys/devices/system/cpu", "cpu[0-9]*/cpufreq/scaling_cur_freq")
        self._cpuinfo = None if self._files else OpenFile(root / "proc/cpuinfo")

    def read_mhz(self) -> float:
        if self._cpuinfo is None:
            return _mean([number(file.read()) / 1000 for file in self._files])
        text = self._cpuinfo.read() or b""
        if b"aperfmperf" not in text:  # then 'cpu MHz' is the nominal clock, as in most virtual machines, for ever
            self._cpuinfo.close()
            return math.nan
        lines = [line for line in text.split(b"\n") if line.startswith(b"cpu MHz")]
        return _mean([number(line.partition(b":")[2]) for line in lines])

    def close(self) -> None:
        for file in [*self._files, *([self._cpuinfo] if self._cpuinfo else [])]:
            file.close()


class Temperature:
    """The hottest of the thermal zones and of the processor's own sensors."""

    def __init__(self, root: Path) -> None:
        zones = root / "sys/class/thermal"
        self._files = [
            OpenFile(zone / "temp") for zone in zones.glob("thermal_zone*") if not _is_no_temperature(zone / "type")
        ]
        for sensor in (root / "sys/class/hwmon").glob("hwmon*"):
            if text_in(sensor / "name") in CPU_SENSORS:
                self._files += _opened(sensor, "temp*_input")

    def read_c(self) -> float:
        known = [value for file in self._files if not math.isnan(value := number(file.read()))]
        return max(known) / 1000 if known else math.nan

    def close(self) -> None:
        for file in self._files:
            file.close()


def _opened(folder: Path, pattern: str) -> list[OpenFile]:
    files = [OpenFile(path) for path in sorted(folder.glob(pattern))]
    return [file for file in files if file.is_open]


def _is_no_temperature(path: Path) -> bool:
    return text_in(path).lower().startswith(NOT_TEMPERATURES)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
