"""Store throughput by number of devices, as measured and as forecast."""

from __future__ import annotations

import msgspec

from rigdyno.schema.estimate import Estimate


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    devices: int
    throughput: float  # items per second, of all devices together
    nodes: int | None = None  # None: unknown
    estimate: Estimate | None = None  # the throughput with its interval; None: no interval was given


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a forecast. None: not given."""

    source: str
    runs: tuple[str, ...] = ()  # names of the stored runs, if any
    measured: bool = False  # True: the points come from stored runs, not from a file of numbers
    points: tuple[ScalingPoint, ...]  # in ascending order
    unit: str | None = None
    batch: int | None = None  # items per device and step
    bytes_per_step: float | None = None
    link_gbit_s: float | None = None
    remarks: tuple[str, ...] = ()


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic and bandwidth between nodes, as given by the user; not measured."""

    bytes_per_step: float  # gradients that every node ends up with
    gbit_s: float


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast of the throughput; a type of its own, so that it can't be mistaken for a measurement."""

    devices: int
    value: float
    low: float
    high: float
    confidence: float | None  # of [low, high]; None: unknown
