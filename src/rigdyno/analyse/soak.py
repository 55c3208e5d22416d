"""Compare the rate at the beginning of a run (burst) with that at its end (sustained), and recognise throttling."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.streams import (
    CLOCK,
    MEMORY_PRESSURE,
    STEAL,
    STOPPED,
    TEMPERATURE,
    Rows,
    TimeSpan,
    items,
    mean_reading,
    pushed_aside_share,
    readings,
    row_seconds,
    span_of,
)
from rigdyno.base.errors import DamagedRun
from rigdyno.base.units import NS_PER_S
from rigdyno.schema.measured import Soak

SLICES = 60  # about the columns of a plot in the terminal, and enough to see when a rate fell

# Leading slices below this share of the first quarter's rate are warm-up; the burst begins after them.
WARM_UP_RATE = 0.9

# The burst is the first tenth: heat sinks fill within a minute of a ten-minute soak.
BURST_SHARE = 0.1

# The sustained rate is that of the last third, which outlasts a burst of other load.
SUSTAINED_SHARE = 1 / 3

# The rate of a shared machine varies by up to 15 %; overheated ones lose 25 % or more (published: 300 fell to 55).
THROTTLED_RATE = 0.8

# A rate stays down if at least nine slices in ten are below the threshold.
STAYS_DOWN_SHARE = 0.9

# A loss isn't throttling if waiting explains half of it: in the run queue, for memory, or while stopped.
EXPLAINED_BY_WAITING = 0.5

# Heat takes tens of seconds to build up. Within 8 s, the memory bandwidth of a shared virtual machine fell to 0.76 by
# itself, with nothing waiting. Shorter streams are left to the rule 'never settled', which isn't INVALID.
MIN_SECONDS = 20.0

# A clear fall, well below what happens without throttling, needs less time.
CLEARLY_THROTTLED_RATE = 0.6

CLEAR_MIN_SECONDS = 9.0

MIN_SLICES = 12  # so that the last third has four, and one outlier doesn't decide


class RateOverTime(NamedTuple):
    """The rate in slices of equal length; a slice without a step has no entry."""

    seconds: NDArray[np.float64]  # mean time of the slice's steps, since the stream began
    rates: NDArray[np.float64]  # items/s


def soak(rows: Rows, telemetry: Rows | None) -> Soak:
    """Return burst and sustained rate of the rows of one kind, warm-up included."""
    if len(rows) == 0:
        raise DamagedRun("a soak without a single step")
    over_time = rate_over_time(rows)
    burst, sustained = _burst(over_time.rates), float(np.median(_last_rates(over_time.rates)))
    stays_down = _stays_down(over_time, burst)
    return Soak(
        burst=burst,
        sustained=sustained,
        throttled=stays_down and not _is_explained(rows, telemetry, 1 - sustained / burst),
        fell=sustained < THROTTLED_RATE * burst,
        seconds=_as_floats(over_time.seconds),
        rates=_as_floats(over_time.rates),
        clock_mhz=_at_slices(rows, telemetry, CLOCK, over_time.seconds),
        temperature_c=_at_slices(rows, telemetry, TEMPERATURE, over_time.seconds),
    )


def rate_over_time(rows: Rows, slices: int = SLICES) -> RateOverTime:
    """Return items per second, slice by slice; a step belongs to the slice of its middle."""
    if len(rows) == 0:
        return RateOverTime(np.empty(0), np.empty(0))
    began = rows["start_ns"][0]
    middles = ((rows["start_ns"] - began) + (rows["end_ns"] - began)) / (2 * NS_PER_S)
    whole = (rows["end_ns"][-1] - began) / NS_PER_S
    index = np.minimum((middles * (slices / whole)).astype(int), slices - 1)
    counts = np.bincount(index, minlength=slices)
    full = counts > 0
    middle = np.bincount(index, middles, slices)[full] / counts[full]
    rates = np.bincount(index, items(rows), slices)[full] / np.bincount(index, row_seconds(rows), slices)[full]
    return RateOverTime(middle, rates)


def _burst(rates: NDArray[np.float64]) -> float:
    early = rates[: max(1, len(rates) // 4)]
    warm = np.flatnonzero(early >= WARM_UP_RATE * np.median(early))
    begin = int(warm[0])
    return float(np.median(rates[begin : begin + max(1, round(BURST_SHARE * len(rates)))]))


def _last_rates(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    return rates[-max(1, round(SUSTAINED_SHARE * len(rates))) :]


def _stays_down(over_time: RateOverTime, burst: float) -> bool:
    """Tell whether the rate at the end is below the threshold and stays there."""
    if len(over_time.rates) < MIN_SLICES or over_time.seconds[-1] < CLEAR_MIN_SECONDS:
        return False
    rate = THROTTLED_RATE if over_time.seconds[-1] >= MIN_SECONDS else CLEARLY_THROTTLED_RATE
    return bool(np.mean(_last_rates(over_time.rates) < rate * burst) >= STAYS_DOWN_SHARE)


def _is_explained(rows: Rows, telemetry: Rows | None, lost_share: float) -> bool:
    """Tell whether waiting accounts for the loss; what can't be read counts as no waiting."""
    begin, end = span_of(rows)
    late = TimeSpan(end - int(SUSTAINED_SHARE * (end - begin)), end)
    others = (mean_reading(telemetry, channel, late) or 0.0 for channel in (STEAL, STOPPED, MEMORY_PRESSURE))
    return (pushed_aside_share(telemetry, late) or 0.0) + sum(others) >= EXPLAINED_BY_WAITING * lost_share


def _at_slices(rows: Rows, telemetry: Rows | None, channel: str, seconds: NDArray[np.float64]) -> tuple[float, ...]:
    """Return readings interpolated at the slices; nothing if they don't span all slices."""
    span = span_of(rows)
    found = readings(telemetry, channel, span)
    if found is None:
        return ()
    at = (found.at_ns - span.start_ns) / NS_PER_S
    reach = max(2.0, 2 * float(seconds[-1]) / len(seconds))
    if at[0] > seconds[0] + reach or at[-1] < seconds[-1] - reach:
        return ()
    return _as_floats(np.interp(seconds, at, found.values))


def _as_floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
