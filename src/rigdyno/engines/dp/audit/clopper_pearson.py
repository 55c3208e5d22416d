"""How rare or how frequent an event may be that was seen k times in n trials: Clopper and Pearson's exact bounds.

Needs no scipy: the binomial tail is summed term by term, in logarithms, and bisected.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rigdyno.engines.dp.errors import BadSetting

Floats = NDArray[np.float64]

MOST_HALVINGS = 1100  # more than there are powers of two between 1 and the smallest number


@lru_cache(maxsize=1024)
def lower_rate(hits: int, trials: int, confidence: float) -> float:
    """The smallest rate at which that many hits or more aren't yet too surprising; one-sided."""
    if not 0 <= hits <= trials or trials < 1:
        raise BadSetting(f"{hits} hits in {trials} trials can't be")
    if not 0 < confidence < 1:
        raise BadSetting(f"a confidence lies between 0 and 1, not at {confidence}")
    if hits == 0:
        return 0.0
    return _rate_of_tail(1 - confidence, hits, _log_ways(hits, trials))


def upper_rate(hits: int, trials: int, confidence: float) -> float:
    """The largest rate at which that few hits aren't yet too surprising; one-sided."""
    return 1 - lower_rate(trials - hits, trials, confidence)


def _rate_of_tail(probability: float, hits: int, log_ways: Floats) -> float:
    """The end below the root, so that rounding never makes the bound too bold."""
    low, high = 0.0, 1.0
    for _ in range(MOST_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _tail(middle, hits, log_ways) <= probability:
            low = middle
        else:
            high = middle
    return low


def _tail(rate: float, hits: int, log_ways: Floats) -> float:
    """The probability of that many hits or more."""
    misses = np.arange(len(log_ways))[::-1]
    counts = np.arange(hits, hits + len(log_ways))
    return float(np.exp(log_ways + counts * np.log(rate) + misses * np.log1p(-rate)).sum())


def _log_ways(hits: int, trials: int) -> Floats:
    """Logarithms of the binomial coefficients from `hits` to `trials`."""
    factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    counts = np.arange(hits, trials + 1)
    return np.asarray(factorial[trials] - factorial[counts] - factorial[trials - counts], dtype=np.float64)
