"""From what was read in runs with and without the canary to a lower bound of epsilon.

An event is chosen on the first runs alone and counted in the others: nothing else is tried on those, so that two exact
bounds, one for each kind of runs, are all that the confidence must be shared between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch

from rigdyno.engines.dp.audit.clopper_pearson import Floats, lower_rate, upper_rate

# Of the pairs of runs, to choose the event on. Half as many miss good thresholds; twice as many leave too few to count.
CHOOSING_SHARE = 0.25
MOST_TO_CHOOSE = 500
FEWEST_TO_CHOOSE = 5


class Event(NamedTuple):
    """'The statistic is above the threshold', which is likelier with the canary; or 'at most at it': without."""

    statistic: int
    threshold: float
    above: bool

    def hits(self, statistics: Floats) -> int:
        above = statistics[:, self.statistic] > self.threshold
        return int(np.count_nonzero(above == self.above))


class Shown(NamedTuple):
    lower_bound: float
    event: Event
    hits_with: int
    hits_without: int
    trials: int  # of each kind: those that the event was counted in


def epsilon_shown(with_canary: Floats, without: Floats, *, delta: float, confidence: float) -> Shown:
    """Of two arrays of one shape, a row for each run and a column for each statistic that the canary makes larger."""
    first = choosing_pairs(len(with_canary))
    event = best_event(with_canary[:first], without[:first], delta, confidence)
    trials = len(with_canary) - first
    hits_with, hits_without = event.hits(with_canary[first:]), event.hits(without[first:])
    likely, unlikely = (hits_with, hits_without) if event.above else (hits_without, hits_with)
    return Shown(epsilon_of(likely, unlikely, trials, delta, confidence), event, hits_with, hits_without, trials)


def epsilon_of(likely: int, unlikely: int, trials: int, delta: float, confidence: float) -> float:
    """Privacy says P(likely) <= exp(epsilon) P(unlikely) + delta; both rates are taken at their careful end."""
    each = _confidence_of_each(confidence)
    surplus = lower_rate(likely, trials, each) - delta
    return max(0.0, math.log(surplus / upper_rate(unlikely, trials, each))) if surplus > 0 else 0.0


def most_showable(pairs: int, delta: float, confidence: float) -> float:
    """What a perfect event would show: seen in each run of one kind and in none of the other."""
    trials = pairs - choosing_pairs(pairs)
    return epsilon_of(trials, 0, trials, delta, confidence)


def pairs_to_show(epsilon: float, delta: float, confidence: float) -> float:
    """How many pairs of runs it takes at least; infinite where no float is large enough."""
    # A perfect event's rates are r and 1 - r, where r**trials is what the confidence of each leaves.
    rest = (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    if rest == 0:
        return math.inf
    trials = math.ceil(math.log(1 - _confidence_of_each(confidence)) / math.log1p(-rest)) + 1
    return math.ceil(min(trials / (1 - CHOOSING_SHARE), trials + MOST_TO_CHOOSE))


def choosing_pairs(pairs: int) -> int:
    return min(int(pairs * CHOOSING_SHARE), MOST_TO_CHOOSE)


def _confidence_of_each(confidence: float) -> float:
    """Of two bounds that must hold together (Bonferroni)."""
    return 1 - (1 - confidence) / 2


def best_event(with_canary: Floats, without: Floats, delta: float, confidence: float) -> Event:
    """The one that promises most: at any threshold of any statistic, in both directions."""
    columns = range(with_canary.shape[1])
    promised = (each for n in columns for each in _events(n, with_canary[:, n], without[:, n], delta, confidence))
    return max(promised, key=lambda pair: pair[0])[1]


def _events(
    statistic: int, with_canary: Floats, without: Floats, delta: float, confidence: float
) -> Iterator[tuple[float, Event]]:
    """The best threshold in each direction, after what it promises."""
    pooled = np.sort(np.concatenate((with_canary, without)))
    thresholds = (pooled[1:] + pooled[:-1]) / 2
    rate_with, rate_without = _rate_above(with_canary, thresholds), _rate_above(without, thresholds)
    for above in (True, False):
        likely, unlikely = (rate_with, rate_without) if above else (1 - rate_without, 1 - rate_with)
        promise = _rough_epsilon(likely, unlikely, len(with_canary), delta, confidence)
        best = int(promise.argmax())
        yield float(promise[best]), Event(statistic, float(thresholds[best]), above)


def _rate_above(values: Floats, thresholds: Floats) -> Floats:
    """Smoothed, by Silverman's rule: bare counts of a hundred runs say little about their tails."""
    width = max(1.06 * float(values.std()) * len(values) ** -0.2, np.finfo(float).tiny)
    distances = torch.from_numpy(values - thresholds[:, None]) / width
    return np.asarray(torch.special.ndtr(distances).mean(1).numpy(), dtype=np.float64)


def _rough_epsilon(likely: Floats, unlikely: Floats, trials: int, delta: float, confidence: float) -> Floats:
    """Wilson's bounds in place of the exact ones: good enough to choose by, quick for thousands of thresholds, and
    defined for smoothed counts."""
    z = NormalDist().inv_cdf(_confidence_of_each(confidence))
    surplus = np.maximum(_wilson(likely, trials, -z) - delta, np.finfo(float).tiny)
    return np.asarray(np.log(surplus / _wilson(unlikely, trials, z)), dtype=np.float64)


def _wilson(rate: Floats, trials: int, z: float) -> Floats:
    centre = rate + z * z / (2 * trials)
    spread = z * np.sqrt(np.maximum(0, rate * (1 - rate)) / trials + (z / (2 * trials)) ** 2)
    return np.asarray((centre + spread) / (1 + z * z / trials), dtype=np.float64)
