"""Read stored rows: check them, split steps by kind, and take the readings of a telemetry channel in a time span."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rigdyno.base.errors import DamagedRun
from rigdyno.base.units import NS_PER_S
from rigdyno.schema.channel import Channel
from rigdyno.schema.samples import STEP_FIELDS, WARM_UP, Fields, Header, telemetry_fields

Rows = NDArray[np.void]

Floats = NDArray[np.float64]

MOST_ITEMS = 1e30  # in a row: sums of such counts stay finite

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

HOST = "host"  # the probe whose channels have the names above


class TimeRanBackwards(DamagedRun):
    """The rows are valid except for their times."""


class Readings(NamedTuple):
    at_ns: NDArray[np.int64]
    values: NDArray[np.float64]


class TimeSpan(NamedTuple):
    """The time from the start of the first row to the end of the last."""

    start_ns: int
    end_ns: int


def streams(header: Header, rows: Rows) -> dict[str, Rows]:
    """Return the rows of each kind, in the header's order; kinds without a row are left out."""
    check_rows(header, rows)
    found = {name: rows[rows["kind"] == index] for index, name in enumerate(header.kinds)}
    return {name: part for name, part in found.items() if len(part)}


def check_rows(header: Header, rows: Rows) -> None:
    """Raise DamagedRun for rows that no meter writes."""
    _require_fields(rows, STEP_FIELDS, "step")
    if np.any(rows["steps"] == 0) or np.any(rows["kind"] >= len(header.kinds)):
        raise DamagedRun("the step rows hold one without steps, or of an unknown kind")
    if not np.all((rows["items"] >= 0) & (rows["items"] <= MOST_ITEMS)):
        raise DamagedRun("the step rows hold a count of items that isn't a number")
    starts, ends = rows["start_ns"], rows["end_ns"]
    if np.any(starts < 0):
        raise DamagedRun("the step rows hold a time before the clock began")
    if np.any(ends <= starts) or np.any(starts[1:] < starts[:-1]):
        raise TimeRanBackwards("time runs backwards in the step rows: the clock jumped, or the file is damaged")


def check_telemetry(rows: Rows) -> None:
    """Raise DamagedRun for rows that no sampler writes."""
    _require_fields(rows, telemetry_fields([name for name in rows.dtype.names or () if name != "at_ns"]), "telemetry")


def _require_fields(rows: Rows, fields: Fields, what: str) -> None:
    has = dict(rows.dtype.fields or {})
    wrong = [name for name, form in fields if name not in has or has[name][0] != np.dtype(form)]
    if wrong:
        raise DamagedRun(f"the {what} rows have no {', '.join(sorted(wrong))}")


def row_seconds(rows: Rows) -> Floats:
    return _floats((rows["end_ns"] - rows["start_ns"]) / NS_PER_S)


def step_durations(rows: Rows) -> Floats:
    """Return the seconds of one step in each row; a row may be a block of short steps."""
    return _floats(row_seconds(rows) / rows["steps"])


def pace_seconds(rows: Rows) -> Floats:
    """Return the seconds of one step, scaled to the usual number of items.

    Streams are judged by these: a step that is shorter because it did less (the last batch, a block at the edge of a
    volume) is no change of the rate.
    """
    seconds, items_per_step = step_durations(rows), items(rows) / rows["steps"]
    counted = items_per_step > 0
    usual = float(np.median(items_per_step[counted])) if np.any(counted) else 1.0
    return _floats(seconds * (usual / np.where(counted, items_per_step, usual)))


def items(rows: Rows) -> Floats:
    return _floats(rows["items"])


def seconds_since(rows: Rows, index: int) -> float:
    """Return the time from the start of the stream to the start of row `index`."""
    return float(rows["start_ns"][index] - rows["start_ns"][0]) / NS_PER_S


def measured_from(rows: Rows) -> int:
    """Return the index of the first row after the meter's own warm-up; 0 if the stream ended during it."""
    behind = np.flatnonzero((rows["flags"] & WARM_UP) == 0)
    return int(behind[0]) if len(behind) else 0


def _floats(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64)


def by_meaning(channels: Sequence[Channel], telemetry: Rows) -> Rows:
    """Rename the columns so that only the host's channels keep their bare names.

    Another probe's 'temperature_c' is not that of the processor.
    """
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


def span_of(rows: Rows) -> TimeSpan:
    return TimeSpan(int(rows["start_ns"][0]), int(rows["end_ns"][-1]))


def readings(telemetry: Rows | None, channel: str, span: TimeSpan) -> Readings | None:
    """Return the finite readings in the span; None if there are none, because a missing reading is not a zero."""
    if telemetry is None or channel not in (telemetry.dtype.names or ()):
        return None
    inside = (telemetry["at_ns"] >= span.start_ns) & (telemetry["at_ns"] <= span.end_ns)
    inside &= np.isfinite(telemetry[channel])
    if not inside.any():
        return None
    return Readings(telemetry["at_ns"][inside], telemetry[channel][inside])


def mean_reading(telemetry: Rows | None, channel: str, span: TimeSpan) -> float | None:
    """Return the mean over time of a channel in the span.

    A reading covers the time since the one before it, so the first reading after the span counts too: a span may be
    shorter than the time between two readings.
    """
    if telemetry is None or len(telemetry) == 0 or channel not in (telemetry.dtype.names or ()):
        return None
    values, weights = telemetry[channel], _overlaps_ns(telemetry["at_ns"], span)
    known = np.isfinite(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None


def _overlaps_ns(at_ns: NDArray[np.int64], span: TimeSpan) -> NDArray[np.int64]:
    """Return how much of the span each reading covers; the first covers as much time as the second."""
    first = at_ns[0] - (at_ns[1] - at_ns[0]) if len(at_ns) > 1 else at_ns[0] - NS_PER_S // 2
    begins = np.concatenate(([first], at_ns[:-1]))
    covered: NDArray[np.int64] = np.minimum(at_ns, span.end_ns) - np.maximum(begins, span.start_ns)
    return np.maximum(0, covered, dtype=np.int64)


def pushed_aside_share(telemetry: Rows | None, span: TimeSpan) -> float | None:
    """Return how much of a core other tenants took from the worker's threads while these were ready to run.

    Threads of one process wait for each other too: two pools of threads on two cores waited for 0.44 of a core on a
    quiet machine. Others can't have taken more than the cores did without the worker. Time under the worker's own quota
    doesn't count, although the kernel counts it as waiting.
    """
    waited = mean_reading(telemetry, RUN_QUEUE_WAIT, span)
    if waited is None:
        return None
    for_others = max(0.0, waited - (mean_reading(telemetry, THROTTLED, span) or 0.0))
    others = _others_cores(telemetry, span)
    return for_others if others is None else min(for_others, max(0.0, others))


def core_channels(telemetry: Rows) -> list[str]:
    return [name for name in telemetry.dtype.names or () if CORE_USAGE.fullmatch(name)]


def _others_cores(telemetry: Rows | None, span: TimeSpan) -> float | None:
    """Return how many cores were busy with anything but the worker."""
    worker = mean_reading(telemetry, WORKER_CPU, span)
    if telemetry is None or worker is None:
        return None
    busy = [usage for name in core_channels(telemetry) if (usage := mean_reading(telemetry, name, span)) is not None]
    return sum(busy) - worker if busy else None
