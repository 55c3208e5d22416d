"""Clocks. Code that measures is given one, so that tests can pass one that they move by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

from rigdyno.base.units import seconds_of_ns

# Both clocks of ClockWatch are slewed alike on Linux; on other systems they differ by up to 500 millionths. Twice that
# is no jump, and a thousandth of a step's time changes no figure.
_SLEW_SHARE = 0.001

_LEAST_JUMP_NS = 1_000_000

# CPU time of this process with all its threads, and of the calling thread.
process_cpu_ns = time.process_time_ns

thread_cpu_ns = time.thread_time_ns


class Clock(Protocol):
    """A monotonic clock, a wall clock, and a way to wait."""

    def now_ns(self) -> int:
        """Return the monotonic time in nanoseconds."""

    def wall_ns(self) -> int:
        """Return the nanoseconds since 1970."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The system's clocks. `now_ns` is CLOCK_MONOTONIC on Linux, which the worker and the sampler share."""

    now_ns = staticmethod(time.perf_counter_ns)
    wall_ns = staticmethod(time.time_ns)
    sleep = staticmethod(time.sleep)


class Stopwatch:
    """Counts the seconds since it was created."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._began_ns = clock, clock.now_ns()

    @property
    def seconds(self) -> float:
        return seconds_of_ns(self._clock.now_ns() - self._began_ns)


class Deadline:
    """A point in time, `seconds` after its creation, until which something is waited for."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Return the seconds that are left; 0 if it has passed."""
        return max(0.0, self._at - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.left == 0.0


class ClockWatch:
    """Notices when the monotonic clock and the wall clock no longer agree.

    One of them was set, the machine slept, or a virtual machine was moved. Which clock is wrong stays unknown.
    """

    def __init__(self, clock: Clock) -> None:
        self._now_ns, self._wall_ns = clock.now_ns, clock.wall_ns
        self._at_ns, self._ahead_ns, self._doubt_ns = self._read_clocks()

    def has_jumped(self) -> bool:
        """Return whether a clock has jumped since the last call. The time between the two readings is no jump."""
        last_at_ns, last_ahead_ns, last_doubt_ns = self._at_ns, self._ahead_ns, self._doubt_ns
        self._at_ns, self._ahead_ns, self._doubt_ns = self._read_clocks()
        allowed_ns = _LEAST_JUMP_NS + _SLEW_SHARE * abs(self._at_ns - last_at_ns) + last_doubt_ns + self._doubt_ns
        return abs(self._ahead_ns - last_ahead_ns) > allowed_ns

    def _read_clocks(self) -> tuple[int, int, int]:
        """Return the monotonic time, how far the wall clock is ahead of it, and how long the readings took."""
        before_ns = self._now_ns()
        wall_ns = self._wall_ns()
        return before_ns, wall_ns - before_ns, abs(self._now_ns() - before_ns)


def utc_now() -> datetime:
    """Return the date and time in UTC."""
    return datetime.now(UTC)
