"""How uncertain the mean of a correlated series is: neighbouring steps share caches, clocks and neighbours' bursts.

The long-run variance is that of a moving-block bootstrap, in closed form: what infinitely many resamples would give,
without a random number. The block length follows Politis and White (2004, corrected 2009), taken twice because coverage
of intervals asks for longer blocks than the least squared error; the first-order bias left is then removed by
extrapolating from half-length blocks (Vats and Flegal's lugsail).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_LAGS = 5  # consecutive lags without correlation before a series counts as forgetful (Politis and White's choice)
MIN_FOR_BLOCKS = 8  # below this no correlation can be seen: steps are taken as independent
MAX_BLOCK_SHARE = 1 / 3  # at least three blocks must be left to compare
# Degrees of freedom for each block that would fit side by side: overlapping ones carry half as much again, and
# extrapolating from two lengths costs half of all (the variance of the flat-top kernel that they make together).
OF_EACH_BLOCK = 0.75


class LongRun(NamedTuple):
    variance: float  # of the mean, times n
    degrees_of_freedom: float
    block: int


def long_run_variance(series: Floats) -> LongRun:
    """For two values or more."""
    n = len(series)
    block = min(2 * best_block(series), int(n * MAX_BLOCK_SHARE)) if n >= MIN_FOR_BLOCKS else 1
    block = max(block, 1)
    variance = block_variance(series, block)
    if block > 1:
        # Never below the plain figure: extrapolation may only widen what correlation made too narrow.
        variance = max(variance, 2 * variance - block_variance(series, block // 2))
    of_each = OF_EACH_BLOCK if block > 1 else 1.0
    return LongRun(variance, max(1.0, of_each * (n / block - 1)), block)


def independent_count(series: Floats) -> float:
    """How many independent values say as much about the mean as this series does: n times its plain variance over its
    long-run variance, between 1 and n. Of n values that follow one another with the correlation r: n(1 - r)/(1 + r)."""
    n = len(series)
    if n < 2:
        return float(n)
    plain = block_variance(series, 1)
    if plain <= 1e-18 * float(series.mean()) ** 2:
        return float(n)  # all alike but for rounding: nothing that could be correlated
    return max(1.0, n * min(1.0, plain / long_run_variance(series).variance))


def block_variance(series: Floats, block: int) -> float:
    """Variance of the mean times n, from the sums of all moving blocks; for block 1 the sample variance."""
    n = len(series)
    running = np.concatenate(([0.0], np.cumsum(series - series.mean())))
    sums = running[block:] - running[:-block]
    return float(sums @ sums) * n / (block * (n - block) * (n - block + 1))


def best_block(series: Floats) -> int:
    """1 when uncorrelated, longer the longer the memory of the series."""
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
    """The last lag before MIN_LAGS lags in a row that can't be told from no correlation."""
    negligible = np.abs(correlation[1:]) < 2 * math.sqrt(math.log10(n) / n)
    run = 0
    for lag, small in enumerate(negligible, start=1):
        run = run + 1 if small else 0
        if run == MIN_LAGS:
            return lag - MIN_LAGS
    return len(negligible)


def autocovariance(series: Floats, lags: int) -> Floats:
    """At lags 0 to `lags`, by Fourier transform: the direct sum is too slow for long runs."""
    n = len(series)
    spectrum = np.fft.rfft(series - series.mean(), 2 * n)
    return np.fft.irfft(np.abs(spectrum) ** 2)[: lags + 1] / n
