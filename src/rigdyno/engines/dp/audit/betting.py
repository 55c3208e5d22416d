"""Many runs against a claim: bets on events that a true claim makes unfavourable.

Under (epsilon, delta), and whatever the other canaries are, P(event, in) <= exp(epsilon) P(event, out) + delta for each
canary. So twice the share of canaries that are in and show the event, less exp(epsilon) times the same of those
that are out, less delta, has an expectation of at most zero in each run. Betting on it, with what the runs before have
taught, multiplies a capital of 1 by factors whose expectation is at most 1. By Ville's inequality the capital of a
true claim ever reaches 1 / p with probability p at most: the p-value holds whenever one looks, and wherever one stops.

Nothing is assumed about the noise, nor about how canaries of one run depend on each other. Runs must have randomness of
their own (Waudby-Smith and Ramdas, 2024, 'Estimating means of bounded random variables by betting').
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rigdyno.engines.dp.audit.claim import Point
from rigdyno.engines.dp.audit.watch import Floats

LEARNING_RUNS = 8  # nothing is bet on these
STAKES = (0.1, 0.3, 0.6, 0.95)  # of what may be lost in the worst case
CAUTION = 1.0  # standard errors below the mean growth: what looked good by chance in a few runs is not bet on
LARGEST_EXPONENT = 300.0  # squares of it are finite
GROWTH_OF_LOOKS = 1.2  # bets are chosen anew whenever so many times as many runs are known


class Counts(NamedTuple):
    """Of one run, for each event: the share of all canaries that show it and are of the kind that makes it likely
    (in, or out), and of the other kind."""

    likely: Floats
    unlikely: Floats


class Bet(NamedTuple):
    event: int
    point: Point
    stake: float

    def factor(self, run: Counts) -> float:
        return 1 + self.stake * float(payoff(run.likely[self.event], run.unlikely[self.event], self.point))


class Bettor:
    """Follows one audit. Several audits of one claim are several tests."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points
        self._bet: Bet | None = None
        self.p_value = 1.0
        self._log_capital = 0.0
        self._gains: dict[Bet, float] = {}
        self._past = Moments()
        self._next_look = LEARNING_RUNS

    def see(self, run: Counts) -> None:
        if self._bet is not None:
            gain = math.log(self._bet.factor(run))
            self._gains[self._bet] = self._gains.get(self._bet, 0.0) + gain
            self._log_capital += gain
            self.p_value = min(self.p_value, math.exp(-max(0.0, self._log_capital)))
        self._past.add(run)
        if self._past.runs >= self._next_look:
            self._next_look = math.ceil(GROWTH_OF_LOOKS * self._next_look)
            self._bet = best_bet(self._past, self._points)

    def strongest(self) -> Bet | None:
        """What gained most, if anything was bet on."""
        return max(self._gains, key=lambda bet: self._gains[bet], default=None)


class Moments:
    """Of the counts of all runs so far: enough to tell the mean and the spread of any payoff."""

    def __init__(self) -> None:
        self.runs = 0
        self._sums: Floats = np.zeros((5, 1))

    def add(self, run: Counts) -> None:
        likely, unlikely = run
        self.runs += 1
        self._sums = self._sums + np.stack((likely, unlikely, likely**2, likely * unlikely, unlikely**2))

    def of_payoff(self, point: Point) -> tuple[Floats, Floats]:
        """Its mean and its mean square, for each event."""
        likely, unlikely, both_likely, mixed, both_unlikely = self._sums / self.runs
        odds, most = _odds(point), _most_lost(point)
        mean = payoff(likely, unlikely, point)
        gain_square = 4 * (both_likely - 2 * odds * mixed + odds**2 * both_unlikely)
        square = (gain_square - 4 * point.delta * (likely - odds * unlikely) + point.delta**2) / most**2
        return mean, square


def best_bet(past: Moments, points: Sequence[Point]) -> Bet | None:
    """The one that would have grown most so far, or none."""
    bets = (bet for point in points for bet in _promising(past, point))
    promise, bet = max(bets, key=lambda pair: pair[0])
    return bet if promise > 0 else None


def _promising(past: Moments, point: Point) -> Iterator[tuple[float, Bet]]:
    """The best event at each stake, after what it promises: the mean of log(1 + x), to the second order."""
    mean, square = past.of_payoff(point)
    error = np.sqrt(np.maximum(0.0, square - mean**2) / past.runs)
    for stake in STAKES:
        growth = stake * (mean - CAUTION * error) - stake**2 * square / 2
        event = int(growth.argmax())
        yield float(growth[event]), Bet(event, point, stake)


def p_value(runs: Sequence[Counts], points: Sequence[Point]) -> float:
    bettor = Bettor(points)
    for run in runs:
        bettor.see(run)
    return bettor.p_value


def most_showable(runs: int, delta: float, confidence: float) -> float:
    """What an engine without any privacy shows, when each run tells all canaries apart."""
    bets = max(1, runs - LEARNING_RUNS)
    gain = math.expm1(-math.log1p(-confidence) / bets) / STAKES[-1]
    odds = ((1 - delta) / gain - delta) / 2
    return max(0.0, math.log(odds)) if odds > 0 else 0.0


def runs_to_show(epsilon: float, delta: float, confidence: float) -> float:
    """How many such an engine takes; infinite where no float is large enough."""
    if epsilon > LARGEST_EXPONENT:
        return math.inf
    growth = math.log1p(STAKES[-1] * (1 - delta) / (2 * math.exp(epsilon) + delta))
    return LEARNING_RUNS + math.ceil(-math.log1p(-confidence) / growth) + 1 if growth > 0 else math.inf


def payoff(likely: Floats, unlikely: Floats, point: Point) -> Floats:
    """Of a unit at stake; at the worst, minus one."""
    return np.asarray((2 * (likely - _odds(point) * unlikely) - point.delta) / _most_lost(point))


def _odds(point: Point) -> float:
    return math.exp(min(point.epsilon, LARGEST_EXPONENT))


def _most_lost(point: Point) -> float:
    return 2 * _odds(point) + point.delta
