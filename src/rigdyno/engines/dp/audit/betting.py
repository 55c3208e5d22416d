"""Test a claim by many runs: bet on events that are unfavourable bets if the claim is true.

Under (epsilon, delta), P(event, in) <= exp(epsilon) P(event, out) + delta holds for each canary, whichever other
canaries are included. So this has an expectation of at most zero in each run: twice the share of canaries that are in
and show the event, minus exp(epsilon) times twice the share of those that are out and show it, minus delta. Each bet on
it is chosen from earlier runs, and multiplies a capital of 1 by a factor whose expectation is at most 1. By Ville's
inequality the capital of a true claim ever reaches 1 / p with a probability of at most p. So the p-value is valid
whenever the audit is inspected or stopped.

Nothing is assumed about the noise, or about how the canaries of one run depend on each other. The randomness of
different runs must be independent (Waudby-Smith and Ramdas, 2024, 'Estimating means of bounded random variables by
betting').
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rigdyno.engines.dp.audit.runs import Floats
from rigdyno.engines.dp.audit.verdict import ClaimPoint

LEARNING_RUNS = 8  # first runs, without bets

STAKES = (0.1, 0.3, 0.6, 0.95)  # shares of the capital that may be lost in the worst case

CAUTION = 1.0  # standard errors subtracted from the mean growth, against events that look good in few runs by chance

LARGEST_EXPONENT = 300.0  # exp of it can be squared without overflow

GROWTH_OF_LOOKS = 1.2  # a new bet is chosen whenever the number of runs has grown by this factor


class EventCounts(NamedTuple):
    """The shares of all canaries of one run that show each event.

    An event is likely for canaries of one kind (in, or out) and unlikely for the other kind.
    """

    likely: Floats  # of the kind for which it is likely
    unlikely: Floats


class Bet(NamedTuple):
    event: int
    point: ClaimPoint
    stake: float

    def factor(self, run: EventCounts) -> float:
        """Return the factor by which this run multiplies the capital."""
        return 1 + self.stake * float(payoff(run.likely[self.event], run.unlikely[self.event], self.point))


class Bettor:
    """Makes the bets of one audit. Several audits of one claim are several tests."""

    def __init__(self, points: Sequence[ClaimPoint]) -> None:
        self._points = points
        self._bet: Bet | None = None
        self.p_value = 1.0
        self._log_capital = 0.0
        self._gains: dict[Bet, float] = {}
        self._past = Moments()
        self._next_look = LEARNING_RUNS

    def add_run(self, run: EventCounts) -> None:
        if self._bet is not None:
            gain = math.log(self._bet.factor(run))
            self._gains[self._bet] = self._gains.get(self._bet, 0.0) + gain
            self._log_capital += gain
            self.p_value = min(self.p_value, math.exp(-max(0.0, self._log_capital)))
        self._past.add(run)
        if self._past.runs >= self._next_look:
            self._next_look = math.ceil(GROWTH_OF_LOOKS * self._next_look)
            self._bet = best_bet(self._past, self._points)

    def strongest_bet(self) -> Bet | None:
        """Return the bet that gained most; None if there was no bet."""
        return max(self._gains, key=lambda bet: self._gains[bet], default=None)


class Moments:
    """First and second moments of the event counts of all runs so far, from which those of any payoff follow."""

    def __init__(self) -> None:
        self.runs = 0
        self._sums: Floats = np.zeros((5, 1))

    def add(self, run: EventCounts) -> None:
        likely, unlikely = run
        self.runs += 1
        self._sums = self._sums + np.stack((likely, unlikely, likely**2, likely * unlikely, unlikely**2))

    def payoff_moments(self, point: ClaimPoint) -> tuple[Floats, Floats]:
        """Return the mean and the mean square of the payoff, for each event."""
        likely, unlikely, both_likely, mixed, both_unlikely = self._sums / self.runs
        odds, most = _odds(point), _largest_loss(point)
        mean = payoff(likely, unlikely, point)
        gain_square = 4 * (both_likely - 2 * odds * mixed + odds**2 * both_unlikely)
        square = (gain_square - 4 * point.delta * (likely - odds * unlikely) + point.delta**2) / most**2
        return mean, square


def best_bet(past: Moments, points: Sequence[ClaimPoint]) -> Bet | None:
    """Return the bet whose capital would have grown most so far; None if none would have grown."""
    bets = (bet for point in points for bet in _find_promising_bets(past, point))
    promise, bet = max(bets, key=lambda pair: pair[0])
    return bet if promise > 0 else None


def _find_promising_bets(past: Moments, point: ClaimPoint) -> Iterator[tuple[float, Bet]]:
    """Yield, for each stake, the expected growth of the best event and the bet on it.

    Growth is the mean of log(1 + x), to the second order.
    """
    mean, square = past.payoff_moments(point)
    error = np.sqrt(np.maximum(0.0, square - mean**2) / past.runs)
    for stake in STAKES:
        growth = stake * (mean - CAUTION * error) - stake**2 * square / 2
        event = int(growth.argmax())
        yield float(growth[event]), Bet(event, point, stake)


def p_value(runs: Sequence[EventCounts], points: Sequence[ClaimPoint]) -> float:
    """Return the p-value of a claim of these points."""
    bettor = Bettor(points)
    for run in runs:
        bettor.add_run(run)
    return bettor.p_value


def most_showable(runs: int, delta: float, confidence: float) -> float:
    """Return the largest epsilon that can be shown: for an engine without any privacy, if every run reveals all
    canaries."""
    bets = max(1, runs - LEARNING_RUNS)
    gain = math.expm1(-math.log1p(-confidence) / bets) / STAKES[-1]
    odds = ((1 - delta) / gain - delta) / 2
    return max(0.0, math.log(odds)) if odds > 0 else 0.0


def runs_to_show(epsilon: float, delta: float, confidence: float) -> float:
    """Return how many runs such an engine takes to show epsilon; infinity if no float is large enough."""
    if epsilon > LARGEST_EXPONENT:
        return math.inf
    growth = math.log1p(STAKES[-1] * (1 - delta) / (2 * math.exp(epsilon) + delta))
    return LEARNING_RUNS + math.ceil(-math.log1p(-confidence) / growth) + 1 if growth > 0 else math.inf


def payoff(likely: Floats, unlikely: Floats, point: ClaimPoint) -> Floats:
    """Return the payoff per unit at stake; at worst it is -1."""
    return np.asarray((2 * (likely - _odds(point) * unlikely) - point.delta) / _largest_loss(point))


def _odds(point: ClaimPoint) -> float:
    return math.exp(min(point.epsilon, LARGEST_EXPONENT))


def _largest_loss(point: ClaimPoint) -> float:
    return 2 * _odds(point) + point.delta
