"""How throughput grows with the number of devices: what was measured, and what is expected."""

from __future__ import annotations

import msgspec

from rigdyno.schema.estimate import Estimate


class Point(msgspec.Struct, frozen=True, kw_only=True):
    devices: int
    throughput: float  # items a second, of all devices together
    nodes: int | None = None  # None: nobody said
    estimate: Estimate | None = None  # the throughput with its interval; None: nobody gave one


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a forecast starts from. None: nobody said."""

    source: str
    runs: tuple[str, ...] = ()  # their names, where it starts from stored runs
    measured: bool = False  # in stored runs, not by somebody who only gave the numbers
    points: tuple[Point, ...]  # in ascending order
    unit: str | None = None
    batch: int | None = None  # items that one device does in a step
    bytes_per_step: float | None = None
    link_gbit_s: float | None = None
    remarks: tuple[str, ...] = ()


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """What goes over the network between nodes, as somebody says; nobody has measured it."""

    bytes_per_step: float  # gradients that every node ends up with
    gbit_s: float


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast of the throughput, never to be mixed up with a measurement."""

    devices: int
    value: float
    low: float
    high: float
    confidence: float | None  # of [low, high]; None: nobody knows
