"""From the rate of some steps to the time of many: the interval is of another process's time, not of the mean's."""

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
# Identical code in two processes differs by 0.6 to 1.5 % (standard deviation) on shared machines: this is 95 % of the
# difference between two of them.
BETWEEN_PROCESSES = 1.96 * math.sqrt(2) * 0.015


@dataclass(frozen=True)
class Spread:
    """By how much processes of the same code differ on this rig."""

    deviation: float  # standard, of the rate's logarithm
    degrees: int  # of freedom


def spread_between(measurements: Iterable[Measurement]) -> Spread | None:
    """Of all rows of a run together: a few processes of each tell too little by themselves. None: no row has two."""
    every = [figures.process_rates for each in measurements for figures in each.kinds.values()]
    logarithms = [[math.log(rate) for rate in rates] for rates in every if len(rates) > 1]
    degrees = sum(len(rates) - 1 for rates in logarithms)
    squares = sum((len(rates) - 1) * variance(rates) for rates in logarithms)
    return Spread(math.sqrt(squares / degrees), degrees) if degrees else None


def as_prediction(rate: Estimate, processes: int, spread: Spread | None = None) -> Estimate:
    """A rate with the interval that another process's rate lies in.

    Of several processes: the mean's interval shrinks with their number, and one more of them doesn't. Where other rows
    of the run tell more about how processes differ, it is theirs. Of a single one its steps tell how steady it was, and
    nothing about how the next will differ: that is added.
    """
    half, confidence = relative_half_width(rate), rate.confidence
    if spread is not None and spread.degrees > processes - 1:
        reach = student_quantile(0.5 + CONFIDENCE / 2, spread.degrees)
        wide, confidence = reach * spread.deviation * math.sqrt(1 + 1 / processes), CONFIDENCE
        if processes == 1 and half is not None:
            wide = math.hypot(half, wide)  # its own steps may be less steady than those of other rows
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
    items: float, rate: Estimate, processes: int, spread: Spread | None = None, warm_up_seconds: float = 0.0
) -> Estimate:
    """Seconds for so many items. A job's first steps are part of it, and take as much longer as they were seen to."""
    predicted = as_prediction(rate, processes, spread)
    whole = predicted.mapped(lambda a_second: warm_up_seconds + items / a_second, "s")
    return msgspec.structs.replace(whole, method=f"extrapolated from {rate.n} measured ones; {whole.method}")


def seconds_for(
    items: float, each: Measurement, spread: Spread | None = None, *, of_many: bool = False
) -> Estimate | Missing:
    """Of so many items, from the first step on: from the whole job where one was run, else from the steps' rate.
    `of_many`: of one epoch among others, without what only the first steps of a training take."""
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
