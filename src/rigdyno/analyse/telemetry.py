"""Looks into telemetry rows: the finite readings of a channel inside a span of time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.streams import Rows
from rigdyno.schema.channel import Channel
from rigdyno.units import NS_PER_S

CORE_USAGE = re.compile(r"cpu\d+")
WORKER_CPU = "worker_cpu_share"
RUN_QUEUE_WAIT = "run_queue_wait_share"
PRESSURE = "psi_cpu_some"
STEAL = "steal_share"
SWITCHES = "involuntary_switches"
MEMORY_PRESSURE = "psi_memory_some"
MAJOR_FAULTS = "major_faults"
STOPPED = "worker_stopped_share"
THROTTLED = "throttled_share"
CLOCK = "frequency_mhz"
TEMPERATURE = "temperature_c"


HOST = "host"  # the probe whose channels the rules know by the names above


def by_meaning(channels: Sequence[Channel], telemetry: Rows) -> Rows:
    """The rows with columns that only the host's channels go by their own names in: what another probe calls
    'temperature_c' is not the processor's."""
    names = ["at_ns", *(_meaning(channel) for channel in channels)]
    if not channels or len({*names}) < len(names):
        return telemetry
    forms = [str(each[1]) for each in telemetry.dtype.descr]
    found = np.dtype(list(zip(names, forms, strict=True)))
    renamed: Rows = telemetry.view(found)
    return renamed


def _meaning(channel: Channel) -> str:
    if channel.sensor == HOST:
        return channel.name.removeprefix(f"{HOST}_") if channel.quantity != "state" else channel.name
    return f"{channel.sensor}: {channel.name}"


class Readings(NamedTuple):
    at_ns: NDArray[np.int64]
    values: NDArray[np.float64]


class Span(NamedTuple):
    """From the start of the first row to the end of the last."""

    start_ns: int
    end_ns: int


def span_of(rows: Rows) -> Span:
    return Span(int(rows["start_ns"][0]), int(rows["end_ns"][-1]))


def readings(telemetry: Rows | None, channel: str, span: Span) -> Readings | None:
    """None where the channel is absent or couldn't be read: a reading that isn't there is not a zero."""
    if telemetry is None or channel not in (telemetry.dtype.names or ()):
        return None
    inside = (telemetry["at_ns"] >= span.start_ns) & (telemetry["at_ns"] <= span.end_ns)
    inside &= np.isfinite(telemetry[channel])
    if not inside.any():
        return None
    return Readings(telemetry["at_ns"][inside], telemetry[channel][inside])


def mean_reading(telemetry: Rows | None, channel: str, span: Span) -> float | None:
    """Over time. A reading tells of the time since the one before it, so the first one behind the span counts as well:
    a span may be shorter than the time between two readings."""
    if telemetry is None or len(telemetry) == 0 or channel not in (telemetry.dtype.names or ()):
        return None
    values, weights = telemetry[channel], _overlaps_ns(telemetry["at_ns"], span)
    known = np.isfinite(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None


def _overlaps_ns(at_ns: NDArray[np.int64], span: Span) -> NDArray[np.int64]:
    """How much of the span each reading covers; the first covers as much as the second."""
    first = at_ns[0] - (at_ns[1] - at_ns[0]) if len(at_ns) > 1 else at_ns[0] - NS_PER_S // 2
    begins = np.concatenate(([first], at_ns[:-1]))
    covered: NDArray[np.int64] = np.minimum(at_ns, span.end_ns) - np.maximum(begins, span.start_ns)
    return np.maximum(0, covered, dtype=np.int64)


def pushed_aside_share(telemetry: Rows | None, span: Span) -> float | None:
    """How much of a core other tenants kept from the worker's threads while these wanted to run.

    Threads of one process wait for each other too: two pools of threads on two cores waited for 0.44 of a core on a
    quiet machine. What others took can't be more than what the cores did without the worker, and what the worker's own
    quota took is none of it, though the kernel counts it as waiting.
    """
    waited = mean_reading(telemetry, RUN_QUEUE_WAIT, span)
    if waited is None:
        return None
    for_others = max(0.0, waited - (mean_reading(telemetry, THROTTLED, span) or 0.0))
    others = _others_cores(telemetry, span)
    return for_others if others is None else min(for_others, max(0.0, others))


def core_channels(telemetry: Rows) -> list[str]:
    return [name for name in telemetry.dtype.names or () if CORE_USAGE.fullmatch(name)]


def _others_cores(telemetry: Rows | None, span: Span) -> float | None:
    """Cores that were busy with something else than the worker."""
    worker = mean_reading(telemetry, WORKER_CPU, span)
    if telemetry is None or worker is None:
        return None
    busy = [usage for name in core_channels(telemetry) if (usage := mean_reading(telemetry, name, span)) is not None]
    return sum(busy) - worker if busy else None
