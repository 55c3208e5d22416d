"""Where time comes from. Everything that measures is handed a clock; tests hand it one that they move by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int: ...

    def wall_ns(self) -> int: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """CLOCK_MONOTONIC on Linux: one time line for the worker and the sampler, though they are two processes."""

    now_ns = staticmethod(time.perf_counter_ns)
    wall_ns = staticmethod(time.time_ns)
    sleep = staticmethod(time.sleep)


# Time on the cores, of this process with all its threads and of the calling thread.
process_cpu_ns = time.process_time_ns
thread_cpu_ns = time.thread_time_ns


# Both clocks are slewed alike on Linux; on other systems they part by up to 500 millionths. Twice that is no jump, and
# a thousandth of a step's time moves no figure.
_SLEW_SHARE = 0.001
_LEAST_JUMP_NS = 1_000_000


class ClockWatch:
    """Notices that the clock of the steps and the wall clock no longer agree: one of them was set, the machine slept,
    or a virtual one was moved. Which of them is wrong it can't tell."""

    def __init__(self, clock: Clock) -> None:
        self._now_ns, self._wall_ns = clock.now_ns, clock.wall_ns
        self._at_ns, self._ahead_ns, self._doubt_ns = self._look()

    def jumped(self) -> bool:
        """Since it was last asked. What passed between reading the one and the other clock is no jump."""
        last_at_ns, last_ahead_ns, last_doubt_ns = self._at_ns, self._ahead_ns, self._doubt_ns
        self._at_ns, self._ahead_ns, self._doubt_ns = self._look()
        allowed_ns = _LEAST_JUMP_NS + _SLEW_SHARE * abs(self._at_ns - last_at_ns) + last_doubt_ns + self._doubt_ns
        return abs(self._ahead_ns - last_ahead_ns) > allowed_ns

    def _look(self) -> tuple[int, int, int]:
        """The time, how far the wall clock is ahead of it, and how long it took to look."""
        before_ns = self._now_ns()
        wall_ns = self._wall_ns()
        return before_ns, wall_ns - before_ns, abs(self._now_ns() - before_ns)


def utc_now() -> datetime:
    return datetime.now(UTC)
