"""The machine and the worker on it, as Linux's /proc and /sys tell."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from rigdyno.clock import Clock, SystemClock
from rigdyno.contracts import Channel, Unavailable
from rigdyno.probes._machine import Cores, Frequency, Memory, Pressure, Temperature
from rigdyno.probes._quota import Quota
from rigdyno.probes._worker import Worker
from rigdyno.units import NS_PER_S

SLOW_NS = NS_PER_S * 3 // 2  # pressure, clocks, temperatures, lists of threads: they cost more than all the rest
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
    Channel("throttled_share", "share"),  # of a core: by the quota of the worker's own control group
)


class Host:
    """Cores, memory, clocks and pressure of the machine; run queue, faults and memory of the worker (Linux)."""

    hints: ClassVar[Mapping[str, str]] = {
        "frequency_mhz": "no cpufreq here: a virtual machine doesn't see its clock; on bare metal load its driver",
        "temperature_c": "no sensor here: a virtual machine has none; on bare metal: sudo sensors-detect",
        "psi_cpu_some": "boot the kernel with psi=1",
        "psi_memory_some": "boot the kernel with psi=1",
        "psi_io_some": "boot the kernel with psi=1",
        "run_queue_wait_share": "needs a kernel with CONFIG_SCHED_INFO",
    }

    def __init__(
        self, clock: Clock | None = None, root: Path = Path("/"), usable_cores: Collection[int] | None = None
    ) -> None:
        """`usable_cores`: those that this process and the workers may run on; None: all."""
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
        self._cores = Cores(self._proc, self._usable_cores)
        self._memory = Memory(self._proc)
        self._pressures = [Pressure(self._proc, resource) for resource in RESOURCES]
        self._frequency, self._temperature = Frequency(self._root), Temperature(self._root)
        self._worker, self._quota = Worker(self._proc, worker_pids), Quota(self._root, worker_pids)
        self._close_later()
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

    def _close_later(self) -> None:
        parts = (self._cores, self._memory, self._frequency, self._temperature, self._worker, self._quota)
        for close in (*(part.close for part in parts), *(pressure.close for pressure in self._pressures)):
            self._opened.callback(close)

    def close(self) -> None:
        self._opened.close()
