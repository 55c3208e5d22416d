"""Where time comes from. Everything that measures is handed a clock; tests hand it one that they move by hand."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """CLOCK_MONOTONIC on Linux: one time line for the worker and the sampler, though they are two processes."""

    now_ns = staticmethod(time.perf_counter_ns)
    sleep = staticmethod(time.sleep)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)
