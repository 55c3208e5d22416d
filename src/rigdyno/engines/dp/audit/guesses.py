"""One run with many canaries: which of them were in is guessed from their scores, and the right guesses are counted.

Steinke, Nasr and Jagielski (2023), 'Privacy auditing with one (1) training run', appendix D: of an engine that keeps
(epsilon, delta), right guesses are hardly more than those of as many coins that land right with probability
exp(epsilon) / (1 + exp(epsilon)). It assumes nothing about the engine but that the coins for the canaries are fair and
independent. It is one test, of one run: there is nothing to look at before the end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rigdyno.engines.dp.audit.claim import Point
from rigdyno.engines.dp.audit.runs import Run
from rigdyno.engines.dp.audit.watch import Floats
from rigdyno.engines.dp.errors import BadSetting

# Of the canaries, how many are guessed: the surest, half of them as in and half as out. Abstaining from the others pays
# where epsilon is large. All shares are tried, and the p-value pays for that (Bonferroni).
GUESSED_SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class Guessed(NamedTuple):
    right: int
    guesses: int
    trace: int


def guess_numbers(canaries: int) -> list[int]:
    """Even numbers, the least first."""
    return sorted({2 * max(1, int(share * canaries / 2)) for share in GUESSED_SHARES})


def guessed(run: Run) -> list[Guessed]:
    """For each trace and each number; ties are broken by the canaries' order, which is no secret."""
    found = []
    for trace, scores in enumerate(run.scores):
        if any(np.array_equal(scores, before) for before in run.scores[:trace]):
            continue  # of one step, the sum is the largest: the same test again costs nothing
        is_in = run.included[np.argsort(scores, kind="stable")]
        for number in guess_numbers(len(is_in)):
            right = int((~is_in[: number // 2]).sum() + is_in[-(number // 2) :].sum())
            found.append(Guessed(right, number, trace))
    return found


def best_p_value(found: list[Guessed], canaries: int, point: Point) -> tuple[float, Guessed]:
    """Of all guesses together."""
    each = [(guess_p_value(one.right, one.guesses, canaries, point), one) for one in found]
    least, best = min(each, key=lambda pair: pair[0])
    return min(1.0, len(found) * least), best


def guess_p_value(right: int, guesses: int, canaries: int, point: Point) -> float:
    """The probability of that many right guesses or more is at most this, for any engine that keeps to the point."""
    if not 0 <= right <= guesses <= canaries:
        raise BadSetting(f"{right} right of {guesses} guesses about {canaries} canaries can't be")
    masses = binomial_masses(guesses, point.epsilon)
    at_least = float(masses[right:].sum())
    if right == 0:
        return 1.0
    # What an engine can gain that uses its delta to make i more guesses right, for the worst i.
    nearly = np.cumsum(masses[:right][::-1]) / np.arange(1, right + 1)
    return min(1.0, at_least + 2 * canaries * point.delta * float(nearly.max()))


def binomial_masses(trials: int, epsilon: float) -> Floats:
    """Of 0 to `trials` successes with probability exp(epsilon) / (1 + exp(epsilon)): in logarithms, for thousands."""
    counts = np.arange(trials + 1)
    factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    log_ways = factorial[trials] - factorial[counts] - factorial[trials - counts]
    log_wrong = -np.logaddexp(0.0, epsilon)
    log_right = -np.logaddexp(0.0, -epsilon)
    return np.asarray(np.exp(log_ways + counts * log_right + (trials - counts) * log_wrong))


def most_showable_once(canaries: int, tests: int, delta: float, confidence: float) -> float:
    """If every guess were right, for the best number of guesses."""
    low, high = 0.0, math.log(canaries + 1) + 10
    for _ in range(40):
        point = Point((low + high) / 2, delta)
        least = min(guess_p_value(number, number, canaries, point) for number in guess_numbers(canaries))
        low, high = (point.epsilon, high) if tests * least <= 1 - confidence else (low, point.epsilon)
    return low
