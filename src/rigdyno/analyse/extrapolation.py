"""From the rate of some steps to the time of many: the interval is of another process's time, not of the mean's."""

from __future__ import annotations

import math

import msgspec

from rigdyno.schema.estimate import Estimate, Missing, relative_half_width
from rigdyno.schema.measured import Measurement

# Identical code in two processes differs by 0.6 to 1.5 % (standard deviation) on shared machines: this is 95 % of the
# difference between two of them.
BETWEEN_PROCESSES = 1.96 * math.sqrt(2) * 0.015


def as_prediction(rate: Estimate, processes: int) -> Estimate:
    """A rate with the interval that another process's rate lies in.

    Of several processes: the mean's interval shrinks with their number, and one more of them doesn't. Of a single one
    its steps tell how steady it was, and nothing about how the next will differ: that is added.
    """
    half = relative_half_width(rate)
    if half is None:
        return rate.without_interval(rate.method)
    if processes > 1:
        wide, why = half * math.sqrt(processes + 1), f"of one more process than these {processes}"
    else:
        wide, why = math.hypot(half, BETWEEN_PROCESSES), "wider by what two processes differ"
    return msgspec.structs.replace(
        rate,
        low=rate.value * math.exp(-wide),
        high=rate.value * math.exp(wide),
        method=f"{rate.method}; {why}",
    )


def time_of(items: float, rate: Estimate, processes: int) -> Estimate:
    """Seconds for so many items."""
    whole = as_prediction(rate, processes).mapped(lambda a_second: items / a_second, "s")
    return msgspec.structs.replace(whole, method=f"extrapolated from {rate.n} measured ones; {whole.method}")


def seconds_for(items: float, each: Measurement) -> Estimate | Missing:
    """Of so many items: from the whole job where one was run, else from the rate of the steps."""
    job = each.job
    if job is not None:
        method = "the whole job without its start" + ("" if job.seconds.n > 1 else ", one process")
        whole = Estimate(value=job.loop, n=job.seconds.n, unit="s", method=method)
        return whole if job.items == items else whole.scaled(items / job.items, "s")
    rate = each.throughput()
    return rate if isinstance(rate, Missing) else time_of(items, rate, len(each.records))
