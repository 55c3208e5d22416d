"""Numbers with intervals: the median of steps, the throughput of a process, the mean over processes, the ratio of two
sets of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from rigdyno.analyse.correlation import long_run_variance
from rigdyno.analyse.student import student_cdf, student_quantile
from rigdyno.errors import BadValue, DamagedRun
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.metric import Metric

Floats = NDArray[np.float64]

NO_INTERVAL = "one value: no interval"
BY_BLOCKS = "sum of items over sum of seconds of one process, moving blocks of steps"


def median_estimate(
    values: ArrayLike, unit: str, confidence: float = 0.95, of: str = "values", independent: bool = False
) -> Estimate:
    """The median of values in the order they were taken, with the interval of a sign test: order statistics, further
    apart where neighbours resemble each other. For values known to be independent it is exact for any distribution."""
    series, confidence = _finite(values, "values"), _share(confidence)
    n, ordered = len(series), np.sort(series)
    if n == 1:
        return Estimate(value=float(ordered[0]), n=1, unit=unit, method=f"median of {of}, {NO_INTERVAL}")
    rank, reached = median_ranks(n, confidence) if independent else correlated_ranks(series, confidence)
    return Estimate(
        value=float(np.median(ordered)),
        low=float(ordered[rank]),
        high=float(ordered[n - 1 - rank]),
        confidence=min(confidence, reached),
        n=n,
        unit=unit,
        method=f"median of {of}, {_median_method(n, confidence, reached, independent)}",
    )


def _median_method(n: int, confidence: float, reached: float, independent: bool) -> str:
    if reached < confidence:
        return f"smallest to largest value: these {n} give {100 * reached:.1f} % at most"
    return "order statistics" if independent else "order statistics, wider for correlation"


def correlated_ranks(series: Floats, confidence: float) -> tuple[int, float]:
    """As `median_ranks`, but further out by how much more the count of values below the median varies in a series that
    remembers. Never further in: a regular up and down would pretend to a precision that nobody can use."""
    n = len(series)
    rank, reached = median_ranks(n, confidence)
    below = long_run_variance((series < np.median(series)).astype(float)) if n > 1 else None
    if below is None or below.block == 1 or below.variance <= 0:
        return rank, reached
    spread = math.sqrt(n * below.variance)
    wider = math.floor(n / 2 - student_quantile(0.5 + confidence / 2, below.degrees_of_freedom) * spread)
    if wider >= rank:
        return rank, reached
    if wider >= 0:
        return wider, confidence
    return 0, 2 * student_cdf(n / 2 / spread, below.degrees_of_freedom) - 1


@lru_cache(maxsize=256)
def median_ranks(n: int, confidence: float) -> tuple[int, float]:
    """The rank from either end, counted from 0, of the narrowest interval that reaches the confidence, and what it
    reaches. The widest, smallest to largest value, if none does."""
    drawn = np.arange(1, n + 1)
    steps = np.log((n - drawn + 1) / drawn)
    below = np.cumsum(np.exp(np.concatenate(([0.0], np.cumsum(steps))) - n * math.log(2)))
    rank = max(0, int(np.searchsorted(below, (1 - confidence) / 2, side="right")) - 1)
    rank = min(rank, (n - 1) // 2)
    return rank, max(0.0, 1 - 2 * float(below[rank]))


def throughput_estimate(items: ArrayLike, seconds: ArrayLike, unit: str, confidence: float = 0.95) -> Estimate:
    """Sum of items over sum of seconds; the interval allows for correlation between steps."""
    counts, times = _finite(items, "items"), _finite(seconds, "seconds")
    _check_steps(counts, times)
    n, rate = len(times), float(counts.sum() / times.sum())
    if n == 1:
        return Estimate(value=rate, n=1, unit=unit, method=f"sum over sum, {NO_INTERVAL}")
    spread = _relative_half_width(counts, times, _share(confidence))
    low, high = rate * math.exp(-spread), rate * math.exp(spread)
    return Estimate(value=rate, low=low, high=high, confidence=confidence, n=n, unit=unit, method=BY_BLOCKS)


def _relative_half_width(counts: Floats, times: Floats, confidence: float) -> float:
    """Of the logarithm of the ratio: an interval of a rate never reaches below zero."""
    influence = counts / counts.mean() - times / times.mean()
    variance, degrees, _block = long_run_variance(influence)
    return student_quantile(0.5 + confidence / 2, degrees) * math.sqrt(variance / len(times))


def _check_steps(counts: Floats, times: Floats) -> None:
    if len(counts) != len(times):
        raise BadValue(f"{len(counts)} item counts for {len(times)} durations")
    if np.any(times <= 0):
        raise DamagedRun("a step took no time, or less: the clock stood still or jumped back")
    if np.any(counts < 0) or counts.sum() <= 0:
        raise DamagedRun("the steps count no items, so there is no throughput")


def across_ranks(metric: Metric, figures: Sequence[Estimate]) -> Estimate:
    """The figures of ranks put together as the metric says."""
    if metric.across == "sum":
        return _sum_over_ranks(figures)
    if metric.across == "max":
        return max(figures, key=lambda each: each.value)
    raise BadValue(f"figures of ranks of '{metric.name}' can't be put together")


def _sum_over_ranks(rates: Sequence[Estimate]) -> Estimate:
    """Their bounds are added up: ranks of one run are disturbed together, so nothing averages out."""
    if len(rates) == 1:
        return rates[0]
    value, n = sum(rate.value for rate in rates), min(rate.n for rate in rates)
    total = replace(rates[0], value=value, n=n, method=f"sum of {len(rates)} ranks, each: {rates[0].method}")
    intervals = [rate.interval for rate in rates if rate.interval is not None]
    if len(intervals) < len(rates):
        return total.without_interval(f"sum of {len(rates)} ranks, {NO_INTERVAL}")
    low, high = (sum(ends) for ends in zip(*intervals, strict=True))
    known = [rate.confidence for rate in rates if rate.confidence is not None]
    return replace(total, low=low, high=high, confidence=min(known) if len(known) == len(rates) else None)


def across_processes(
    values: Sequence[float], unit: str, confidence: float = 0.95, of: str = "processes' figures"
) -> Estimate:
    """The geometric mean over processes with Student's t interval of the logarithms, which never reaches below zero:
    what is claimed about a machine rests on this."""
    logs = _logarithms(values)
    n, mean = len(logs), float(logs.mean())
    if n < 2:
        raise BadValue("an interval over processes needs at least two of them; try --repeat 2")
    half = student_quantile(0.5 + _share(confidence) / 2, n - 1) * float(logs.std(ddof=1)) / math.sqrt(n)
    low, value, high = (math.exp(log) for log in (mean - half, mean, mean + half))
    method = f"geometric mean of {n} {of}, Student t"
    return Estimate(value=value, low=low, high=high, confidence=confidence, n=n, unit=unit, method=method)


def log_ratio_estimate(
    candidate: Sequence[float], baseline: Sequence[float], confidence: float = 0.95, of: str = "processes' figures"
) -> Estimate:
    """The candidate's geometric mean over the baseline's, with Welch's t interval of the logarithms: the two sets of
    processes may spread differently. Without an interval if one of them has a single process."""
    above, below = (_logarithms(values) for values in (candidate, baseline))
    difference = float(above.mean() - below.mean())
    ratio, n = math.exp(difference), min(len(above), len(below))
    method = f"ratio of geometric means of {len(above)} and {len(below)} {of}"
    if n < 2:
        return Estimate(value=ratio, n=n, unit="x", method=f"{method}, no interval")
    half = _welch_half_width(above, below, _share(confidence))
    low, high = math.exp(difference - half), math.exp(difference + half)
    return Estimate(
        value=ratio, low=low, high=high, confidence=confidence, n=n, unit="x", method=f"{method}, Welch's t"
    )


def _welch_half_width(one: Floats, two: Floats, confidence: float) -> float:
    parts = [float(values.var(ddof=1)) / len(values) for values in (one, two)]
    total = sum(parts)
    if total <= 0:
        return 0.0  # all alike
    freedoms = (len(one) - 1, len(two) - 1)
    degrees = total**2 / sum(part**2 / freedom for part, freedom in zip(parts, freedoms, strict=True))
    return student_quantile(0.5 + confidence / 2, degrees) * math.sqrt(total)


def _logarithms(values: Sequence[float]) -> Floats:
    figures = _finite(values, "values")
    if np.any(figures <= 0):
        raise DamagedRun("a process has a figure of zero or less")
    return np.log(figures)


def _share(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise BadValue(f"a confidence lies between 0 and 1, not at {confidence}")
    return confidence


def _finite(values: ArrayLike, what: str) -> Floats:
    numbers = np.asarray(values, dtype=float).reshape(-1)
    if len(numbers) == 0:
        raise BadValue(f"no {what}: there is nothing to estimate from")
    if not np.all(np.isfinite(numbers)):
        raise DamagedRun(f"the {what} hold one that isn't a finite number")
    return numbers
