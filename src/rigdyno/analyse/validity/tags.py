"""Tag each step with the disturbances during it. Tags only mark rows: no row is ever dropped because of one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.streams import (
    MEMORY_PRESSURE,
    RUN_QUEUE_WAIT,
    STEAL,
    STOPPED,
    THROTTLED,
    WORKER_CPU,
    Rows,
    core_channels,
)
from rigdyno.analyse.validity import thresholds
from rigdyno.schema.channel import STATES
from rigdyno.schema.samples import CLOCK_JUMPED, WARM_UP

Mask = NDArray[np.bool_]

Floats = NDArray[np.float64]

_FLAGS = {"warm-up": WARM_UP, "clock jumped": CLOCK_JUMPED}

# A reading spans half a second, 50 ticks of the kernel: what makes a whole run INVALID stands out in it.
_LEVELS = {
    "stolen": (STEAL, thresholds.STEAL_INVALID),
    "throttled": (THROTTLED, thresholds.QUOTA_SUSPECT),
    "memory pressure": (MEMORY_PRESSURE, thresholds.MEMORY_PRESSURE_INVALID),
    "stopped": (STOPPED, 0.5),  # it is 0 or 1
}

# Tags that show which steps the reason of a verdict concerns. All other reasons are about the whole stream.
_OF_REASONS = {
    "other_tenants": ("waited", "stolen"),
    "throttled": ("throttled",),
    "memory_pressure": ("memory pressure",),
    "stopped": ("stopped",),
    "clock_jumped": ("clock jumped",),
}


def tags(rows: Rows, telemetry: Rows | None) -> dict[str, Mask]:
    """Return, for every tag, which rows have it. Rows without a reading only have tags of the meter itself."""
    found = {tag: (rows["flags"] & flag) != 0 for tag, flag in _FLAGS.items()}
    if telemetry is None or len(telemetry) == 0:
        return found
    found["waited"] = _rows_overlapping(
        rows, telemetry, _pushed_aside_shares(telemetry) >= thresholds.PUSHED_ASIDE_INVALID
    )
    for tag, (channel, level) in _LEVELS.items():
        found[tag] = _rows_overlapping(rows, telemetry, _channel(telemetry, channel) >= level)
    return found


def tag_counts(rows: Rows, telemetry: Rows | None) -> dict[str, int]:
    """Return the number of steps with each tag, without tags that no step has."""
    counts = {tag: int(rows["steps"][mask].sum()) for tag, mask in tags(rows, telemetry).items()}
    return {tag: count for tag, count in counts.items() if count}


def steps_hit(rows: Rows, telemetry: Rows | None, reason: str) -> int:
    """Return how many steps the reason of a verdict concerns; 0 if it is about all of them."""
    found = tags(rows, telemetry)
    masks = [found[tag] for tag in _OF_REASONS.get(reason, ()) if tag in found]
    return int(rows["steps"][np.logical_or.reduce(masks)].sum()) if masks else 0


def probe_states(telemetry: Rows, channel: str) -> dict[str, int]:
    """Return the number of readings in which a probe was in trouble, by state; unknown codes are skipped."""
    codes = _channel(telemetry, channel)
    return {state: count for code, state in enumerate(STATES) if code and (count := int(np.sum(codes == code)))}


def _rows_overlapping(rows: Rows, telemetry: Rows, loud: Mask) -> Mask:
    """Return which rows overlap with a loud reading; a reading covers the time since the one before it."""
    ends = telemetry["at_ns"]
    first = np.searchsorted(ends, rows["start_ns"], side="right")
    last = np.minimum(np.searchsorted(ends, rows["end_ns"], side="left"), len(ends) - 1)
    loud_before = np.concatenate(([0], np.cumsum(loud)))
    return np.asarray(loud_before[last + 1] > loud_before[np.minimum(first, last + 1)])


def _pushed_aside_shares(telemetry: Rows) -> Floats:
    """Return the same as `pushed_aside_share` for each reading."""
    waited = _channel(telemetry, RUN_QUEUE_WAIT) - np.nan_to_num(_channel(telemetry, THROTTLED))
    busy = [_channel(telemetry, name) for name in core_channels(telemetry)]
    others = sum(busy, np.zeros(len(telemetry))) - _channel(telemetry, WORKER_CPU) if busy else np.nan
    return np.fmin(waited, np.maximum(others, 0.0))


def _channel(telemetry: Rows, name: str) -> Floats:
    """Return the values of a channel, NaN where it wasn't read."""
    if name not in (telemetry.dtype.names or ()):
        return np.full(len(telemetry), np.nan)
    return np.asarray(telemetry[name], dtype=np.float64)
