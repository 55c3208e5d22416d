"""Time the phases of a training step: forward, backward and others.

A mark costs one reading of the clock, or one event in the device's queue. It waits for nothing, so that whatever
overlaps in an ordinary step also overlaps in a timed one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from rigdyno.base.clock import Clock
from rigdyno.contracts import Framework
from rigdyno.schema.samples import PHASES, STEP_STRUCT, RowFile

_ROW = struct.Struct(STEP_STRUCT)

_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}


class PhaseClock:
    def __init__(self, file: RowFile, clock: Clock, framework: Framework, device: str) -> None:
        self._file = file
        synchronise = framework.waiter(device)
        self._moments = (
            _HostMoments(clock) if synchronise is None else _DeviceMoments(clock, framework, device, synchronise)
        )
        self._marked: list[str] = []

    def mark(self, phase: str) -> None:
        """Mark the end of a phase. An empty name marks the start of a step: the time before it is no phase."""
        self._moments.take()
        self._marked.append(phase)

    def flush(self) -> None:
        """Write the marked phases. Call it between two steps, outside of every phase."""
        if not self._marked:
            return
        times = self._moments.times_ns()
        rows = bytearray()
        for phase, start_ns, end_ns in zip(self._marked[1:], times, times[1:], strict=False):
            if phase and end_ns > start_ns:
                rows += _ROW.pack(start_ns, end_ns, 0.0, 1, _NUMBERS[phase], 0)
        self._file.append(bytes(rows))
        self._marked.clear()

    def close(self) -> None:
        self.flush()
        self._file.close()


class _HostMoments:
    """Reads the host's clock, for devices that work synchronously."""

    def __init__(self, clock: Clock) -> None:
        self._now_ns: Callable[[], int] = clock.now_ns
        self._times_ns: list[int] = []

    def take(self) -> None:
        self._times_ns.append(self._now_ns())

    def times_ns(self) -> list[int]:
        taken, self._times_ns = self._times_ns, []
        return taken


class _DeviceMoments:
    """Puts events into the device's queue, which records the time when it reaches them."""

    def __init__(self, clock: Clock, framework: Framework, device: str, synchronise: Callable[[], None]) -> None:
        self._clock, self._framework, self._device, self._synchronise = clock, framework, device, synchronise
        self._events: list[Any] = []
        self._began_ns = 0

    def take(self) -> None:
        if not self._events:  # wait until the device is idle, to relate its clock to the host's
            self._synchronise()
            self._began_ns = self._clock.now_ns()
        self._events.append(self._framework.event(self._device))

    def times_ns(self) -> list[int]:
        self._synchronise()
        first, taken = self._events[0], self._events
        self._events = []
        return [self._began_ns + self._framework.elapsed_ns(first, event) for event in taken]
