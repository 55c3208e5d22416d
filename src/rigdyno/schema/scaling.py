"""How throughput grows with the number of devices: what was measured, and what is expected."""

from __future__ import annotations

import msgspec


class Point(msgspec.Struct, frozen=True, kw_only=True):
    devices: int
    throughput: float  # items a second, of all devices together
    nodes: int | None = None  # None: nobody said


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast of the throughput, never to be mixed up with a measurement."""

    devices: int
    value: float
    low: float
    high: float
    confidence: float  # of [low, high]
