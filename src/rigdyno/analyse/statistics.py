"""Numbers with intervals: the median of steps, the throughput of a process, the mean over processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rigdyno.analyse.correlation import long_run_variance
from rigdyno.errors import BadValue, DamagedRun
from rigdyno.schema.estimate import Estimate

Floats = NDArray[np.float64]

NO_INTERVAL = "one value: no interval"
BY_BLOCKS = "sum of items over sum of seconds of one process, moving blocks of steps"


def median_estimate(values: ArrayLike, unit: str, confidence: float = 0.95) -> Estimate:
    """The median with its order-statistic interval, exact for independent values of any distribution."""
    ordered = np.sort(_finite(values, "values"))
    n = len(ordered)
    rank, reached = median_ranks(n, _share(confidence))
    return Estimate(
        value=float(np.median(ordered)),
        low=float(ordered[rank]),
        high=float(ordered[n - 1 - rank]),
        confidence=min(confidence, reached),
        n=n,
        unit=unit,
        method=_median_method(n, confidence, reached),
    )


def _median_method(n: int, confidence: float, reached: float) -> str:
    if n == 1:
        return f"median, {NO_INTERVAL}"
    if reached < confidence:
        return f"median, smallest to largest value: {n} values give {100 * reached:.1f} % at most"
    return "median, order-statistic interval"


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
        return Estimate(
            value=rate, low=rate, high=rate, confidence=0.0, n=1, unit=unit, method=f"sum over sum, {NO_INTERVAL}"
        )
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


def across_processes(
    values: Sequence[float], unit: str, confidence: float = 0.95, of: str = "processes' figures"
) -> Estimate:
    """The geometric mean over processes with Student's t interval of the logarithms, which never reaches below zero:
    what is claimed about a machine rests on this."""
    figures = _finite(values, "values")
    n = len(figures)
    if n < 2:
        raise BadValue("an interval over processes needs at least two of them; try --repeat 2")
    if np.any(figures <= 0):
        raise DamagedRun("a process has a figure of zero or less")
    logs = np.log(figures)
    mean = float(logs.mean())
    half = student_quantile(0.5 + _share(confidence) / 2, n - 1) * float(logs.std(ddof=1)) / math.sqrt(n)
    low, value, high = (math.exp(log) for log in (mean - half, mean, mean + half))
    method = f"geometric mean of {n} {of}, Student t"
    return Estimate(value=value, low=low, high=high, confidence=confidence, n=n, unit=unit, method=method)


@lru_cache(maxsize=1024)
def student_quantile(probability: float, degrees: int) -> float:
    """Of Student's t, for a probability of one half and more."""
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(100):  # bisection: every round halves the error
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def student_cdf(t: float, degrees: int) -> float:
    """For t >= 0: the finite series that holds for a whole number of degrees of freedom (Abramowitz and Stegun
    26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    odd = degrees % 2
    ranks = np.arange(1, (degrees - odd) // 2, dtype=float)
    factors = square * ((2 * ranks) / (2 * ranks + 1) if odd else (2 * ranks - 1) / (2 * ranks))
    series = 1 + float(np.cumprod(factors).sum())
    if not odd:
        return 0.5 + math.sin(angle) * series / 2
    tail = math.sin(angle) * math.cos(angle) * series if degrees > 1 else 0.0
    return 0.5 + (angle + tail) / math.pi


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
