"""A framework that only waits, on a device that works asynchronously."""

from __future__ import annotations

import time

VERSION = "7.1"
DEVICE_BYTES = 5000

seed: int | None = None
threads = 1
allocated = peak = 0
limit = DEVICE_BYTES
_done_at = 0.0


def launch(seconds: float) -> None:
    """Return at once and keep the device busy for that time, after all earlier launches."""
    global _done_at
    _done_at = max(time.monotonic(), _done_at) + seconds


def wait() -> None:
    time.sleep(max(0.0, _done_at - time.monotonic()))


def allocate(size: int) -> None:
    global allocated, peak
    if allocated + size > limit:
        raise RuntimeError("the dream is full")
    allocated += size
    peak = max(peak, allocated)
