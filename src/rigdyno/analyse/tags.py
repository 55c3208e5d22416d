"""Which disturbances each step fell into. Tagged rows stay where they are: nothing is ever dropped for a tag."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse import thresholds
from rigdyno.analyse.streams import Rows
from rigdyno.analyse.telemetry import (
    MEMORY_PRESSURE,
    RUN_QUEUE_WAIT,
    STEAL,
    STOPPED,
    THROTTLED,
    WORKER_CPU,
    core_channels,
)
from rigdyno.schema.channel import STATES
from rigdyno.schema.samples import CLOCK_JUMPED, WARM_UP

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]

_FLAGS = {"warm-up": WARM_UP, "clock jumped": CLOCK_JUMPED}
# A reading spans half a second, 50 of the kernel's ticks: what condemns a whole run is what stands out in it.
_LEVELS = {
    "stolen": (STEAL, thresholds.STEAL_INVALID),
    "throttled": (THROTTLED, thresholds.QUOTA_SUSPECT),
    "memory pressure": (MEMORY_PRESSURE, thresholds.MEMORY_PRESSURE_INVALID),
    "stopped": (STOPPED, 0.5),  # it is 0 or 1
}

# The tags that tell which steps a verdict's reason fell on. All other reasons are about the stream as a whole.
_OF_REASONS = {
    "other_tenants": ("waited", "stolen"),
    "throttled": ("throttled",),
    "memory_pressure": ("memory pressure",),
    "stopped": ("stopped",),
    "clock_jumped": ("clock jumped",),
}


def tags(rows: Rows, telemetry: Rows | None) -> dict[str, Mask]:
    """For every tag, which of the rows bear it. A row that no reading covers bears none but the meter's own."""
    found = {tag: (rows["flags"] & flag) != 0 for tag, flag in _FLAGS.items()}
    if telemetry is None or len(telemetry) == 0:
        return found
    found["waited"] = _covered(rows, telemetry, _pushed_aside(telemetry) >= thresholds.PUSHED_ASIDE_INVALID)
    for tag, (channel, level) in _LEVELS.items():
        found[tag] = _covered(rows, telemetry, _channel(telemetry, channel) >= level)
    return found


def tag_counts(rows: Rows, telemetry: Rows | None) -> dict[str, int]:
    """How many steps bear each tag; those that none bears are left out."""
    counts = {tag: int(rows["steps"][mask].sum()) for tag, mask in tags(rows, telemetry).items()}
    return {tag: count for tag, count in counts.items() if count}


def steps_hit(rows: Rows, telemetry: Rows | None, reason: str) -> int:
    """How many steps the reason of a verdict fell on; 0 where it is about all of them, or none stands out."""
    found = tags(rows, telemetry)
    masks = [found[tag] for tag in _OF_REASONS.get(reason, ()) if tag in found]
    return int(rows["steps"][np.logical_or.reduce(masks)].sum()) if masks else 0


def probe_states(telemetry: Rows, channel: str) -> dict[str, int]:
    """How many readings a probe was in trouble in, by what kind; what a file says beyond that is skipped."""
    codes = _channel(telemetry, channel)
    return {state: count for code, state in enumerate(STATES) if code and (count := int(np.sum(codes == code)))}


def _covered(rows: Rows, telemetry: Rows, loud: Mask) -> Mask:
    """Rows that overlap with a loud reading; a reading tells of the time since the one before it."""
    ends = telemetry["at_ns"]
    first = np.searchsorted(ends, rows["start_ns"], side="right")
    last = np.minimum(np.searchsorted(ends, rows["end_ns"], side="left"), len(ends) - 1)
    loud_before = np.concatenate(([0], np.cumsum(loud)))
    return np.asarray(loud_before[last + 1] > loud_before[np.minimum(first, last + 1)])


def _pushed_aside(telemetry: Rows) -> Floats:
    """As telemetry.pushed_aside_share, reading by reading."""
    waited = _channel(telemetry, RUN_QUEUE_WAIT) - np.nan_to_num(_channel(telemetry, THROTTLED))
    busy = [_channel(telemetry, name) for name in core_channels(telemetry)]
    others = sum(busy, np.zeros(len(telemetry))) - _channel(telemetry, WORKER_CPU) if busy else np.nan
    return np.fmin(waited, np.maximum(others, 0.0))


def _channel(telemetry: Rows, name: str) -> Floats:
    """NaN where it wasn't read, which is above no level."""
    if name not in (telemetry.dtype.names or ()):
        return np.full(len(telemetry), np.nan)
    return np.asarray(telemetry[name], dtype=np.float64)
