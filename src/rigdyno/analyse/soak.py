"""How the rate held: burst against sustained, and whether the machine throttled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.slices import RateOverTime, rate_over_time
from rigdyno.analyse.streams import Rows
from rigdyno.analyse.telemetry import (
    CLOCK,
    MEMORY_PRESSURE,
    STEAL,
    STOPPED,
    TEMPERATURE,
    Span,
    mean_reading,
    pushed_aside_share,
    readings,
    span_of,
)
from rigdyno.errors import DamagedRun
from rigdyno.schema.measured import Soak
from rigdyno.units import NS_PER_S

# Leading slices below this share of the first quarter's rate are warm-up: a burst begins behind them.
WARM_UP_RATE = 0.9
# The burst is the first tenth: heat sinks fill within a minute of a ten-minute soak.
BURST_SHARE = 0.1
# What is left at the end: long enough to outlast a neighbour's burst.
SUSTAINED_SHARE = 1 / 3
# A shared machine wanders by up to 15 % by itself; overheated ones lose a quarter and more (published: 300 fell to 55).
THROTTLED_RATE = 0.8
# 'Stays down' allows for a slice in ten that recovers for a moment.
STAYS_DOWN_SHARE = 0.9
# Threads that stood in the run queue for half of what was lost were pushed aside by other tenants; and so for time that
# they were stopped, or waited for memory.
EXPLAINED_BY_WAITING = 0.5
# Heat takes tens of seconds to build up. Within 8 s, memory that a virtual machine shares with its neighbours fell to
# 0.76 by itself with nothing waiting: shorter streams are left to 'never settled', which doesn't condemn.
MIN_SECONDS = 20.0
# Unless the fall is a clear one, well below what was seen to happen by itself.
CLEARLY_THROTTLED_RATE = 0.6
CLEAR_MIN_SECONDS = 9.0
MIN_SLICES = 12  # four for the end, so that one stray slice doesn't decide


def soak(rows: Rows, telemetry: Rows | None) -> Soak:
    """Of one kind's rows, warm-up included."""
    if len(rows) == 0:
        raise DamagedRun("a soak without a single step")
    over_time = rate_over_time(rows)
    burst, sustained = _burst(over_time.rates), float(np.median(_end(over_time.rates)))
    stays_down = _stays_down(over_time, burst)
    return Soak(
        burst=burst,
        sustained=sustained,
        throttled=stays_down and not _explained(rows, telemetry, 1 - sustained / burst),
        fell=sustained < THROTTLED_RATE * burst,
        seconds=_plain(over_time.seconds),
        rates=_plain(over_time.rates),
        clock_mhz=_at_slices(rows, telemetry, CLOCK, over_time.seconds),
        temperature_c=_at_slices(rows, telemetry, TEMPERATURE, over_time.seconds),
    )


def _burst(rates: NDArray[np.float64]) -> float:
    early = rates[: max(1, len(rates) // 4)]
    warm = np.flatnonzero(early >= WARM_UP_RATE * np.median(early))
    begin = int(warm[0])
    return float(np.median(rates[begin : begin + max(1, round(BURST_SHARE * len(rates)))]))


def _end(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    return rates[-max(1, round(SUSTAINED_SHARE * len(rates))) :]


def _stays_down(over_time: RateOverTime, burst: float) -> bool:
    """Below the limit at the end, and staying there."""
    if len(over_time.rates) < MIN_SLICES or over_time.seconds[-1] < CLEAR_MIN_SECONDS:
        return False
    rate = THROTTLED_RATE if over_time.seconds[-1] >= MIN_SECONDS else CLEARLY_THROTTLED_RATE
    return bool(np.mean(_end(over_time.rates) < rate * burst) >= STAYS_DOWN_SHARE)


def _explained(rows: Rows, telemetry: Rows | None, lost_share: float) -> bool:
    """Whether waiting of another kind accounts for the loss; where it can't be read, it doesn't."""
    begin, end = span_of(rows)
    late = Span(end - int(SUSTAINED_SHARE * (end - begin)), end)
    others = (mean_reading(telemetry, channel, late) or 0.0 for channel in (STEAL, STOPPED, MEMORY_PRESSURE))
    return (pushed_aside_share(telemetry, late) or 0.0) + sum(others) >= EXPLAINED_BY_WAITING * lost_share


def _at_slices(rows: Rows, telemetry: Rows | None, channel: str, seconds: NDArray[np.float64]) -> tuple[float, ...]:
    """Readings at the slices' middles, between neighbouring ones; none at all if they don't reach over all slices."""
    span = span_of(rows)
    found = readings(telemetry, channel, span)
    if found is None:
        return ()
    at = (found.at_ns - span.start_ns) / NS_PER_S
    reach = max(2.0, 2 * float(seconds[-1]) / len(seconds))
    if at[0] > seconds[0] + reach or at[-1] < seconds[-1] - reach:
        return ()
    return _plain(np.interp(seconds, at, found.values))


def _plain(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
