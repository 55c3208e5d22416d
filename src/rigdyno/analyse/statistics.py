"""Estimates with intervals: the median of steps, the throughput of a process, the mean over processes, and ratios.

Neighbouring steps are correlated, because they share caches, clocks and other load. The long-run variance of their mean
is that of a moving-block bootstrap in closed form, which is the limit of infinitely many resamples. The block length
follows Politis and White (2004, corrected 2009), doubled because the coverage of intervals needs longer blocks than the
least squared error. The remaining first-order bias is removed by extrapolating from blocks of half the length (the
lugsail estimator of Vats and Flegal).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from rigdyno.analyse.student import student_cdf, student_quantile
from rigdyno.base.errors import BadValue, DamagedRun
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.metric import Metric

Floats = NDArray[np.float64]

MIN_LAGS = 5  # consecutive lags without correlation after which there is none (Politis and White's choice)

MIN_FOR_BLOCKS = 8  # shorter series can't show correlation: their values are taken as independent

MAX_BLOCK_SHARE = 1 / 3  # at least three blocks must remain

# Degrees of freedom per non-overlapping block: overlap adds half as much again, and extrapolating from two lengths
# costs half (by the variance of the flat-top kernel that both lengths make together).
OF_EACH_BLOCK = 0.75

NO_INTERVAL = "one value: no interval"

BY_BLOCKS = "sum of items over sum of seconds of one process, moving blocks of steps"


class LongRun(NamedTuple):
    variance: float  # of the mean, times n
    degrees_of_freedom: float
    block: int


def median_estimate(
    values: ArrayLike, unit: str, confidence: float = 0.95, of: str = "values", independent: bool = False
) -> Estimate:
    """Return the median of a series, with the interval of an inverted sign test.

    The interval consists of order statistics, which are further apart if neighbouring values are correlated. For
    independent values it is exact for any distribution.
    """
    series, confidence = _finite_floats(values, "values"), _check_confidence(confidence)
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
    """Return the ranks of `median_ranks`, moved outwards for the correlation of the series.

    The count of values below the median varies more in a correlated series. Ranks never move inwards: a regular
    alternation would pretend to a precision of no use.
    """
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
    """Return the rank from either end (from 0) of the narrowest sign-test interval, and its confidence.

    If no interval reaches the confidence, it is the widest: from the smallest to the largest value.
    """
    drawn = np.arange(1, n + 1)
    steps = np.log((n - drawn + 1) / drawn)
    below = np.cumsum(np.exp(np.concatenate(([0.0], np.cumsum(steps))) - n * math.log(2)))
    rank = max(0, int(np.searchsorted(below, (1 - confidence) / 2, side="right")) - 1)
    rank = min(rank, (n - 1) // 2)
    return rank, max(0.0, 1 - 2 * float(below[rank]))


def throughput_estimate(items: ArrayLike, seconds: ArrayLike, unit: str, confidence: float = 0.95) -> Estimate:
    """Return the sum of items over the sum of seconds; the interval allows for correlation between steps."""
    counts, times = _finite_floats(items, "items"), _finite_floats(seconds, "seconds")
    _check_steps(counts, times)
    n, rate = len(times), float(counts.sum() / times.sum())
    if n == 1:
        return Estimate(value=rate, n=1, unit=unit, method=f"sum over sum, {NO_INTERVAL}")
    spread = _relative_half_width(counts, times, _check_confidence(confidence))
    low, high = rate * math.exp(-spread), rate * math.exp(spread)
    return Estimate(value=rate, low=low, high=high, confidence=confidence, n=n, unit=unit, method=BY_BLOCKS)


def _relative_half_width(counts: Floats, times: Floats, confidence: float) -> float:
    """Return the half-width on the logarithmic scale, so that the interval of a rate never reaches below zero."""
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
    """Combine the figures of ranks as the metric says."""
    if metric.across == "sum":
        return _sum_over_ranks(figures)
    if metric.across == "max":
        return max(figures, key=lambda each: each.value)
    raise BadValue(f"figures of ranks of '{metric.name}' can't be put together")


def _sum_over_ranks(rates: Sequence[Estimate]) -> Estimate:
    """Add up rates and their bounds: disturbances hit the ranks of a run together, so nothing averages out."""
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
    """Return the geometric mean over processes with Student's t interval of the logarithms.

    The interval never reaches below zero. Claims about a machine rest on this estimate.
    """
    logs = _logarithms(values)
    n, mean = len(logs), float(logs.mean())
    if n < 2:
        raise BadValue("an interval over processes needs at least two of them; try --repeat 2")
    half = student_quantile(0.5 + _check_confidence(confidence) / 2, n - 1) * float(logs.std(ddof=1)) / math.sqrt(n)
    low, value, high = (math.exp(log) for log in (mean - half, mean, mean + half))
    method = f"geometric mean of {n} {of}, Student t"
    return Estimate(value=value, low=low, high=high, confidence=confidence, n=n, unit=unit, method=method)


def log_ratio_estimate(
    candidate: Sequence[float], baseline: Sequence[float], confidence: float = 0.95, of: str = "processes' figures"
) -> Estimate:
    """Return the ratio of the geometric means of candidate and baseline, with Welch's t interval of the logarithms.

    The two sets of processes may have different variances. There is no interval if one has a single process.
    """
    above, below = (_logarithms(values) for values in (candidate, baseline))
    difference = float(above.mean() - below.mean())
    ratio, n = math.exp(difference), min(len(above), len(below))
    method = f"ratio of geometric means of {len(above)} and {len(below)} {of}"
    if n < 2:
        return Estimate(value=ratio, n=n, unit="x", method=f"{method}, no interval")
    half = _welch_half_width(above, below, _check_confidence(confidence))
    low, high = math.exp(difference - half), math.exp(difference + half)
    return Estimate(
        value=ratio, low=low, high=high, confidence=confidence, n=n, unit="x", method=f"{method}, Welch's t"
    )


def _welch_half_width(one: Floats, two: Floats, confidence: float) -> float:
    parts = [float(values.var(ddof=1)) / len(values) for values in (one, two)]
    total = sum(parts)
    if total <= 0:
        return 0.0  # all values are equal
    freedoms = (len(one) - 1, len(two) - 1)
    degrees = total**2 / sum(part**2 / freedom for part, freedom in zip(parts, freedoms, strict=True))
    return student_quantile(0.5 + confidence / 2, degrees) * math.sqrt(total)


def _logarithms(values: Sequence[float]) -> Floats:
    figures = _finite_floats(values, "values")
    if np.any(figures <= 0):
        raise DamagedRun("a process has a figure of zero or less")
    return np.log(figures)


def _check_confidence(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise BadValue(f"a confidence lies between 0 and 1, not at {confidence}")
    return confidence


def _finite_floats(values: ArrayLike, what: str) -> Floats:
    numbers = np.asarray(values, dtype=float).reshape(-1)
    if len(numbers) == 0:
        raise BadValue(f"no {what}: there is nothing to estimate from")
    if not np.all(np.isfinite(numbers)):
        raise DamagedRun(f"the {what} hold one that isn't a finite number")
    return numbers


def independent_count(series: Floats) -> float:
    """Return the effective sample size of the mean, between 1 and n.

    It is n times the plain variance over the long-run variance; for first-order correlation r, n (1 - r) / (1 + r).
    """
    n = len(series)
    if n < 2:
        return float(n)
    plain = block_variance(series, 1)
    if plain <= 1e-18 * float(series.mean()) ** 2:
        return float(n)  # equal except for rounding: nothing can be correlated
    return max(1.0, n * min(1.0, plain / long_run_variance(series).variance))


def long_run_variance(series: Floats) -> LongRun:
    """Return n times the variance of the mean of a series of two values or more."""
    n = len(series)
    block = min(2 * best_block(series), int(n * MAX_BLOCK_SHARE)) if n >= MIN_FOR_BLOCKS else 1
    block = max(block, 1)
    variance = block_variance(series, block)
    if block > 1:
        # Extrapolation may only widen the interval.
        variance = max(variance, 2 * variance - block_variance(series, block // 2))
    of_each = OF_EACH_BLOCK if block > 1 else 1.0
    return LongRun(variance, max(1.0, of_each * (n / block - 1)), block)


def block_variance(series: Floats, block: int) -> float:
    """Return n times the variance of the mean, from the sums of all moving blocks; for block 1 the sample variance."""
    n = len(series)
    running = np.concatenate(([0.0], np.cumsum(series - series.mean())))
    sums = running[block:] - running[:-block]
    return float(sums @ sums) * n / (block * (n - block) * (n - block + 1))


def best_block(series: Floats) -> int:
    """Return Politis and White's block length: 1 without correlation, longer for longer correlation."""
    n = len(series)
    covariance = autocovariance(series, min(math.isqrt(n) + 1 + MIN_LAGS, n // 2))
    if covariance[0] <= 0:
        return 1
    window = min(2 * max(memory(covariance / covariance[0], n), 1), len(covariance) - 1)
    lags = np.arange(1, window + 1)
    weighted = np.minimum(1.0, 2.0 * (1.0 - lags / window)) * covariance[1 : window + 1]
    total = covariance[0] + 2 * float(weighted.sum())
    slope = 2 * float(lags @ weighted)
    if total <= 0:
        return 1
    return max(1, math.ceil(math.pow(1.5 * (slope / total) ** 2 * n, 1 / 3)))


def memory(correlation: Floats, n: int) -> int:
    """Return the last lag before MIN_LAGS consecutive lags without significant correlation."""
    negligible = np.abs(correlation[1:]) < 2 * math.sqrt(math.log10(n) / n)
    run = 0
    for lag, small in enumerate(negligible, start=1):
        run = run + 1 if small else 0
        if run == MIN_LAGS:
            return lag - MIN_LAGS
    return len(negligible)


def autocovariance(series: Floats, lags: int) -> Floats:
    """Return the autocovariance at lags 0 to `lags`, by Fourier transform: the direct sum is slow for long runs."""
    n = len(series)
    spectrum = np.fft.rfft(series - series.mean(), 2 * n)
    return np.fft.irfft(np.abs(spectrum) ** 2)[: lags + 1] / n
