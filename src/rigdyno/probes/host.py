"""Reads the state of the machine (cores, pressure, memory, clocks, temperatures) and of the worker from Linux's /proc
and /sys."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from rigdyno.base.clock import Clock, SystemClock
from rigdyno.base.linux import OpenFile, parse_number, read_text
from rigdyno.base.units import NS_PER_S
from rigdyno.contracts import Channel, Probe, Unavailable
from rigdyno.probes.common.worker import Quota, WorkerUsage

IDLE, IO_WAIT, STEAL, FIELDS = 3, 4, 7, 8  # fields of a core in /proc/stat; later ones are contained in 'user'

CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")

NOT_TEMPERATURES = ("pmic", "iwlwifi")  # a constant 100 on some boards; a radio's temperature

Ticks = tuple[int, ...]

SLOW_NS = NS_PER_S * 3 // 2  # interval of expensive readings: pressure, clocks, temperatures, lists of threads

RESOURCES = ("cpu", "memory", "io")

CHANNELS = (
    Channel("steal_share", "share"),
    Channel("frequency_mhz", "MHz", "clock", device="cpu"),
    Channel("memory_available_bytes", "B"),
    Channel("run_queue_wait_share", "share"),
    Channel("worker_cpu_share", "share"),
    *(Channel(f"psi_{resource}_some", "share") for resource in RESOURCES),
    Channel("involuntary_switches", "1/s"),
    Channel("major_faults", "1/s"),
    Channel("worker_memory_bytes", "B", "memory", device="worker"),
    Channel("temperature_c", "C", "temperature", device="cpu"),
    Channel("worker_stopped_share", "share"),  # 0 or 1 at each reading
    Channel("throttled_share", "share"),  # share of a core, by the quota of the worker's control group
)


class CoreTimes:
    """Usage of the cores since the last read, from the kernel's tick counts."""

    def __init__(self, proc: Path, usable: Collection[int] | None = None) -> None:
        """`usable`: the cores that the worker may run on; work on other cores doesn't affect it."""
        self._file = OpenFile(proc / "stat")
        self._last = self._counts()
        every = [name for name in self._last if name != "cpu"]
        self.names = every if usable is None else [name for name in every if name in {f"cpu{n}" for n in usable}]

    def read(self) -> tuple[list[float], float]:
        """Return the usage of each core, and the share of all cores that the hypervisor gave to other machines."""
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
    """Return the shares of the elapsed time that were used and stolen; stolen time doesn't count as used."""
    if last is None or now is None or len(now) < FIELDS or (passed := sum(now) - sum(last)) <= 0:
        return math.nan, math.nan
    idle, waiting, stolen = (max(0, now[field] - last[field]) for field in (IDLE, IO_WAIT, STEAL))
    return min(1.0, max(0.0, 1.0 - (idle + waiting + stolen) / passed)), stolen / passed


class Pressure:
    """Time since the last read during which at least one task waited for a resource, in microseconds."""

    def __init__(self, proc: Path, resource: str) -> None:
        self._file = OpenFile(proc / "pressure" / resource)
        self._last_us = self._total_us()

    def read_us(self) -> float:
        last, self._last_us = self._last_us, self._total_us()
        return self._last_us - last

    def _total_us(self) -> float:
        some = (self._file.read() or b"").partition(b"\n")[0]
        return parse_number(some.partition(b"total=")[2])

    def close(self) -> None:
        self._file.close()


class Memory:
    def __init__(self, proc: Path) -> None:
        self._file = OpenFile(proc / "meminfo")

    def available_bytes(self) -> float:
        line = (self._file.read() or b"").partition(b"MemAvailable:")[2].partition(b"kB")[0]
        return parse_number(line) * 1024

    def close(self) -> None:
        self._file.close()


class Frequency:
    """Mean clock of the cores, from cpufreq, else from /proc/cpuinfo."""

    def __init__(self, root: Path) -> None:
        self._files = _open_files(root / "sys/devices/system/cpu", "cpu[0-9]*/cpufreq/scaling_cur_freq")
        self._cpuinfo = None if self._files else OpenFile(root / "proc/cpuinfo")

    def read_mhz(self) -> float:
        if self._cpuinfo is None:
            return _mean([parse_number(file.read()) / 1000 for file in self._files])
        text = self._cpuinfo.read() or b""
        if b"aperfmperf" not in text:  # then 'cpu MHz' is the constant nominal clock, as in most virtual machines
            self._cpuinfo.close()
            return math.nan
        lines = [line for line in text.split(b"\n") if line.startswith(b"cpu MHz")]
        return _mean([parse_number(line.partition(b":")[2]) for line in lines])

    def close(self) -> None:
        for file in [*self._files, *([self._cpuinfo] if self._cpuinfo else [])]:
            file.close()


class Temperature:
    """Highest temperature of the thermal zones and of the processor's sensors."""

    def __init__(self, root: Path) -> None:
        zones = root / "sys/class/thermal"
        self._files = [
            OpenFile(zone / "temp") for zone in zones.glob("thermal_zone*") if _is_temperature(zone / "type")
        ]
        for sensor in (root / "sys/class/hwmon").glob("hwmon*"):
            if read_text(sensor / "name") in CPU_SENSORS:
                self._files += _open_files(sensor, "temp*_input")

    def read_c(self) -> float:
        known = [value for file in self._files if not math.isnan(value := parse_number(file.read()))]
        return max(known) / 1000 if known else math.nan

    def close(self) -> None:
        for file in self._files:
            file.close()


def _open_files(folder: Path, pattern: str) -> list[OpenFile]:
    files = [OpenFile(path) for path in sorted(folder.glob(pattern))]
    return [file for file in files if file.is_open]


def _is_temperature(path: Path) -> bool:
    return not read_text(path).lower().startswith(NOT_TEMPERATURES)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


class Host(Probe):
    """Cores, memory, clocks and pressure of the machine; run queue, faults and memory of the worker (Linux)."""

    hints: ClassVar[Mapping[str, str]] = {
        "frequency_mhz": "no cpufreq here: a virtual machine can't read the clock; on bare metal load its driver",
        "temperature_c": "no sensor here: virtual machines have none; on bare metal: sudo sensors-detect",
        "psi_cpu_some": "boot the kernel with psi=1",
        "psi_memory_some": "boot the kernel with psi=1",
        "psi_io_some": "boot the kernel with psi=1",
        "run_queue_wait_share": "needs a kernel with CONFIG_SCHED_INFO",
    }

    def __init__(
        self, clock: Clock | None = None, root: Path = Path("/"), usable_cores: Collection[int] | None = None
    ) -> None:
        """`usable_cores`: the cores that this process and the workers may run on; None: all."""
        self._clock: Clock = clock or SystemClock()
        if usable_cores is None and root == Path("/") and hasattr(os, "sched_getaffinity"):
            usable_cores = os.sched_getaffinity(0)
        self._root, self._usable_cores = root, usable_cores
        self._proc = root / "proc"
        self._opened = ExitStack()

    def availability(self) -> Unavailable | None:
        if (self._proc / "stat").exists():
            return None
        return Unavailable("there is no /proc on this system", "measure on Linux")

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        self._cores = CoreTimes(self._proc, self._usable_cores)
        self._memory = Memory(self._proc)
        self._pressures = [Pressure(self._proc, resource) for resource in RESOURCES]
        self._frequency, self._temperature = Frequency(self._root), Temperature(self._root)
        self._worker, self._quota = WorkerUsage(self._proc, worker_pids), Quota(self._root, worker_pids)
        self._register_closing()
        self._last_ns = self._slow_from_ns = self._slow_due_ns = self._clock.now_ns()
        cores = (Channel(name, "share", "utilisation", device=name, sensor="host") for name in self._cores.names)
        return [*cores, *CHANNELS]

    def read(self) -> Sequence[float]:
        now_ns = self._clock.now_ns()
        elapsed_ns = now_ns - self._last_ns or math.nan
        self._last_ns = now_ns
        if now_ns >= self._slow_due_ns:
            self._read_slow(now_ns)
        usage, steal = self._cores.read()
        waited_ns = self._worker.waited_ns()
        faults, ran_ns, memory_bytes, stopped = self._worker.usage()
        return [
            *usage,
            steal,
            self._mhz,
            self._available_bytes,
            waited_ns / elapsed_ns,
            ran_ns / elapsed_ns,
            *self._pressure_shares,
            self._switches_per_s,
            faults * NS_PER_S / elapsed_ns,
            memory_bytes,
            self._hottest_c,
            stopped,
            self._quota.throttled_ns() / elapsed_ns,
        ]

    def _read_slow(self, now_ns: int) -> None:
        elapsed_ns = now_ns - self._slow_from_ns or math.nan
        self._switches_per_s = self._worker.involuntary_switches() * NS_PER_S / elapsed_ns
        self._pressure_shares = [pressure.read_us() * 1000 / elapsed_ns for pressure in self._pressures]
        self._worker.refresh()
        self._quota.refresh()
        self._available_bytes = self._memory.available_bytes()
        self._mhz, self._hottest_c = self._frequency.read_mhz(), self._temperature.read_c()
        self._slow_from_ns, self._slow_due_ns = now_ns, now_ns + SLOW_NS

    def _register_closing(self) -> None:
        parts = (self._cores, self._memory, self._frequency, self._temperature, self._worker, self._quota)
        for close in (*(part.close for part in parts), *(pressure.close for pressure in self._pressures)):
            self._opened.callback(close)

    def close(self) -> None:
        self._opened.close()
