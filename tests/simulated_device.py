"""Accelerators that aren't there, under the real port: a queue for each of them, on a clock that is moved by hand.

What torch documents of an asynchronous device holds here: work is launched at once and ends later, one after the other;
an event is stamped when the queue reaches it, and tells no time before; whoever synchronises waits until the queue is
empty. Memory is the host's matter, as in torch's allocators: it is taken and given back when the host says so.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import rigdyno
from rigdyno.base.units import NS_PER_MS
from support import ManualClock

SOURCE = Path(rigdyno.__file__).parent
LAUNCHING = 1e-5  # seconds of the host for giving a device something to do
Site = tuple[str, int]  # file below src/rigdyno, line


class Queue:
    """One device: its work, and its memory."""

    def __init__(self, clock: ManualClock, memory_bytes: int) -> None:
        self._clock, self.memory_bytes = clock, memory_bytes
        self.empty_ns = clock.now_ns()  # when all that it was given is done
        self.allocated = self.peak = 0

    def work(self, seconds: float) -> None:
        """Queue work; the host returns almost at once."""
        self._clock.advance(LAUNCHING)
        self.empty_ns = self.reached_ns() + round(seconds * 1e9)

    def reached_ns(self) -> int:
        """Return when it will start work that is queued now."""
        return max(self._clock.now_ns(), self.empty_ns)

    def wait_event(self, event: Event) -> None:
        self.empty_ns = max(self.reached_ns(), event.stamp_ns())

    def allocate(self, size: int) -> None:
        if self.allocated + size > self.memory_bytes:
            raise OutOfMemoryError(f"tried to allocate {size} bytes")
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def free(self, size: int) -> None:
        self.allocated -= size


class Event:
    def __init__(self, clock: ManualClock, enable_timing: bool) -> None:
        self._clock, self._timed = clock, enable_timing
        self._stamp_ns: int | None = None

    def record(self, queue: Queue) -> None:
        self._stamp_ns = queue.reached_ns()

    def stamp_ns(self) -> int:
        assert self._stamp_ns is not None, "it was never recorded"
        return self._stamp_ns

    def query(self) -> bool:
        return self._clock.now_ns() >= self.stamp_ns()

    def elapsed_time(self, end: Event) -> float:
        if not self._timed or not end._timed:
            raise ValueError("both events must be created with argument 'enable_timing=True'")
        if not self.query() or not end.query():
            raise NotReady("device not ready: both events must be completed before calculating elapsed time")
        return (end.stamp_ns() - self.stamp_ns()) / NS_PER_MS


class NotReady(RuntimeError):
    pass


class OutOfMemoryError(RuntimeError):
    """Whose words say nothing of memory: it is known by its type."""


class SimulatedTorch:
    """The part of torch that the port uses. `old`: before 2.9, where only a device's own module knows its memory."""

    OutOfMemoryError = OutOfMemoryError
    __version__ = "99.0"
    version = SimpleNamespace(cuda="99.1", hip=None)

    def __init__(
        self, clock: ManualClock, devices: int = 1, *, kind: str = "cuda", memory_bytes: int = 1000, old: bool = False
    ) -> None:
        self.clock, self.kind = clock, kind
        self.queues = [Queue(clock, memory_bytes) for _ in range(devices)]
        self.waited: set[Site] = set()  # who of rigdyno has synchronised
        self.skipped: Site | None = None  # who only believes so
        self.backends = SimpleNamespace(
            cudnn=SimpleNamespace(version=lambda: 9), cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX2")
        )
        memory = {"max_memory_allocated": self._peak, "reset_peak_memory_stats": self._reset_peak}
        self.module = SimpleNamespace(
            get_device_properties=self._properties,
            memory_reserved=lambda device: self.queue(device).peak,
            set_per_process_memory_fraction=self._limit,
            **memory,
        )
        self.accelerator = SimpleNamespace(
            is_available=lambda: True,
            current_accelerator=lambda: SimpleNamespace(type=kind),
            device_count=lambda: devices,
            synchronize=self._synchronize,
            current_stream=self.queue,
            **({} if old else memory),
        )

    def queue(self, device: str | int) -> Queue:
        kind, _, index = (f"{self.kind}:{device}" if isinstance(device, int) else device).partition(":")
        assert kind == self.kind, device
        return self.queues[int(index or 0)]

    def get_device_module(self, device: str) -> SimpleNamespace:
        assert device.partition(":")[0] == self.kind
        return self.module

    def Event(self, device: str, *, enable_timing: bool = False) -> Event:  # noqa: N802
        self.queue(device)
        return Event(self.clock, enable_timing)

    def manual_seed(self, seed: int) -> None:
        self.seed = seed

    def set_num_threads(self, threads: int) -> None:
        self.number_of_threads = threads

    def get_num_threads(self) -> int:
        return self.number_of_threads

    def _synchronize(self, device: str) -> None:
        site = _caller()
        if site is not None:
            self.waited.add(site)
        if site is None or site != self.skipped:
            self.clock.at_ns = self.queue(device).reached_ns()

    def _peak(self, device: str) -> int:
        return self.queue(device).peak

    def _limit(self, share: float, device: str) -> None:
        assert 0 <= share <= 1
        self.queue(device).memory_bytes = int(share * self.queue(device).memory_bytes)

    def _reset_peak(self, device: str) -> None:
        self.queue(device).peak = self.queue(device).allocated

    def _properties(self, device: str) -> SimpleNamespace:
        return SimpleNamespace(
            name="Simulated", total_memory=self.queue(device).memory_bytes, major=9, minor=0, gcnArchName="gfx9"
        )


def _caller() -> Site | None:
    """Return the innermost line of rigdyno that waits; None if a test waits."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            return path.relative_to(SOURCE).as_posix(), frame.f_lineno
        frame = frame.f_back
    return None
