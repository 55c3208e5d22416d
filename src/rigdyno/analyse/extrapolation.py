"""Predict the time of a long job from the rate of some steps.

The interval is that of the time of one more process, which is wider than the interval of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import variance

import msgspec

from rigdyno.analyse.student import student_quantile
from rigdyno.schema.estimate import Estimate, Missing, relative_half_width
from rigdyno.schema.measured import Measurement

CONFIDENCE = 0.95

# On shared machines, processes of the same code differ by 0.6 to 1.5 % (standard deviation). This is the half-width of
# the 95 % interval of the difference between two of them.
BETWEEN_PROCESSES = 1.96 * math.sqrt(2) * 0.015


@dataclass(frozen=True)
class ProcessSpread:
    """The spread between processes of the same code on this machine."""

    deviation: float  # standard deviation of the logarithm of the rate
    degrees: int  # degrees of freedom


def spread_between(measurements: Iterable[Measurement]) -> ProcessSpread | None:
    """Return the spread pooled over all rows of a run, because one row has few processes; None if no row has two."""
    every = [figures.process_rates for each in measurements for figures in each.kinds.values()]
    logarithms = [[math.log(rate) for rate in rates] for rates in every if len(rates) > 1]
    degrees = sum(len(rates) - 1 for rates in logarithms)
    squares = sum((len(rates) - 1) * variance(rates) for rates in logarithms)
    return ProcessSpread(math.sqrt(squares / degrees), degrees) if degrees else None


def as_prediction(rate: Estimate, processes: int, spread: ProcessSpread | None = None) -> Estimate:
    """Return the rate with the prediction interval of one more process.

    The interval of the mean shrinks with the number of processes; that of one more process doesn't. If the spread over
    all rows of the run has more degrees of freedom, it is used. The steps of a single process say nothing about the
    difference to the next process, so a usual difference is added.
    """
    half, confidence = relative_half_width(rate), rate.confidence
    if spread is not None and spread.degrees > processes - 1:
        reach = student_quantile(0.5 + CONFIDENCE / 2, spread.degrees)
        wide, confidence = reach * spread.deviation * math.sqrt(1 + 1 / processes), CONFIDENCE
        if processes == 1 and half is not None:
            wide = math.hypot(half, wide)  # its steps may be less steady than those of other rows
        why = f"of one more process, by how those of all rows differ, {spread.degrees} degrees of freedom"
    elif half is None:
        return rate.without_interval(rate.method)
    elif processes > 1:
        wide, why = half * math.sqrt(processes + 1), f"of one more process than these {processes}"
    else:
        wide, why = math.hypot(half, BETWEEN_PROCESSES), "wider by what two processes differ"
    return msgspec.structs.replace(
        rate,
        low=rate.value * math.exp(-wide),
        high=rate.value * math.exp(wide),
        confidence=confidence,
        method=f"{rate.method}; {why}",
    )


def time_of(
    items: float, rate: Estimate, processes: int, spread: ProcessSpread | None = None, warm_up_seconds: float = 0.0
) -> Estimate:
    """Return the seconds for `items`, with the extra time that the first steps took."""
    predicted = as_prediction(rate, processes, spread)
    whole = predicted.mapped(lambda a_second: warm_up_seconds + items / a_second, "s")
    return msgspec.structs.replace(whole, method=f"extrapolated from {rate.n} measured ones; {whole.method}")


def seconds_for(
    items: float, each: Measurement, spread: ProcessSpread | None = None, *, of_many: bool = False
) -> Estimate | Missing:
    """Return the seconds for `items`, from the whole job if one was run, else from the rate of the steps.

    `of_many`: the time of one epoch among many, without the extra time of the first steps of a training.
    """
    job, begin = each.job, 0.0 if "step" not in each.kinds else each.kinds["step"].warm_up_seconds
    if job is not None:
        method = "the whole job without its start" + ("" if job.seconds.n > 1 else ", one process")
        loop = job.loop - (begin if of_many else 0.0)
        whole = Estimate(value=loop, n=job.seconds.n, unit="s", method=method)
        return whole if job.items == items else whole.scaled(items / job.items, "s")
    rate = each.throughput()
    if isinstance(rate, Missing):
        return rate
    return time_of(items, rate, len(each.records), spread, 0.0 if of_many else begin)
