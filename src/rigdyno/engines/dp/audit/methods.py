"""The two methods of an audit: by many runs, and by one run.

Many runs: train, count events, and bet, until all runs are made or the claim is refuted with certainty. An event is
that a canary's score is above a threshold, or not above it. The thresholds come from the scores of the first runs,
which have no bets.

One run: train once with many canaries, each in or out, guess from their scores which were in, and count the right
guesses. By Steinke, Nasr and Jagielski (2023), 'Privacy auditing with one (1) training run', appendix D: if the engine
keeps (epsilon, delta), the guesses are hardly better than coins that are right with probability
exp(epsilon) / (1 + exp(epsilon)). This assumes nothing about the engine, only that the coins for the canaries are fair
and independent. It is a single test, which can't be inspected before its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rigdyno.engines.dp.audit.betting import LEARNING_RUNS, Bettor, EventCounts, most_showable, p_value
from rigdyno.engines.dp.audit.runs import AuditRun, AuditTask, Floats, Traces, Train, iterate_runs
from rigdyno.engines.dp.audit.verdict import SURE, Audit, ClaimPoint, lower_bound
from rigdyno.engines.dp.errors import BadSetting

QUANTILES = np.array([0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 0.99])

# Further thresholds, as shares of the range of scores: without noise, all quantiles may be extremes.
RANGE_SHARES = np.linspace(0, 1, 9)[1:-1]

# Shares of the canaries that are guessed: those with the most extreme scores, half of them as in and half as out.
# Abstaining from the others pays if epsilon is large. All shares are tried, and the p-value is corrected for that
# (Bonferroni).
GUESSED_SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)

IDENTICAL = 1e-6  # relative: smaller differences of scores are rounding errors

# Arguments: runs made, most runs, p-value so far. Returning True ends the audit; its result is valid then too.
Progress = Callable[[int, int, float], bool | None]


class Events:
    """One event for each threshold of each trace: first all events "above", then all events "at most"."""

    def __init__(self, names: Sequence[str], first_runs: Sequence[AuditRun]) -> None:
        scores = np.concatenate([run.scores for run in first_runs], axis=1)
        low, high = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
        self._names = list(names)
        self._thresholds: Floats = np.concatenate(
            (np.quantile(scores, QUANTILES, axis=1).T, low + (high - low) * RANGE_SHARES), axis=1
        )

    def count_events(self, run: AuditRun) -> EventCounts:
        """Return the shares of the canaries that show each event."""
        above = run.scores[:, :, None] > self._thresholds[:, None, :]
        is_in = run.included[None, :, None]
        canaries = len(run.included)
        in_above, in_below = ((is_in & each).sum(1).ravel() / canaries for each in (above, ~above))
        out_above, out_below = ((~is_in & each).sum(1).ravel() / canaries for each in (above, ~above))
        return EventCounts(np.concatenate((in_above, out_below)), np.concatenate((out_above, in_below)))

    def count_canaries(self, event: int, run: AuditRun) -> tuple[int, int, int, int]:
        """Count canaries: those in that show the event, all those in, those out that show it, all those out."""
        trace, threshold, below = self._locate(event)
        shows = (run.scores[trace] > threshold) ^ below
        return (
            int((shows & run.included).sum()),
            int(run.included.sum()),
            int((shows & ~run.included).sum()),
            int((~run.included).sum()),
        )

    def describe(self, event: int) -> str:
        trace, threshold, below = self._locate(event)
        return f"{self._names[trace]} is {'at most' if below else 'above'} {threshold:.4g}"

    def _locate(self, event: int) -> tuple[int, float, bool]:
        below, place = divmod(event, self._thresholds.size)
        trace, threshold = divmod(place, self._thresholds.shape[1])
        return trace, float(self._thresholds[trace, threshold]), bool(below)


class GuessResult(NamedTuple):
    right: int
    guesses: int
    trace: int  # number of the trace whose scores were used


def guess_numbers(canaries: int) -> list[int]:
    """Return the numbers of guesses to try: even, in ascending order."""
    return sorted({2 * max(1, int(share * canaries / 2)) for share in GUESSED_SHARES})


def guess_membership(run: AuditRun) -> list[GuessResult]:
    """Guess which canaries were in, for each trace and each number of guesses.

    Ties are broken by the order of the canaries, which is not secret.
    """
    found = []
    for trace, scores in enumerate(run.scores):
        if any(np.array_equal(scores, before) for before in run.scores[:trace]):
            continue  # with one step, sum and maximum are equal: the same test doesn't count twice
        is_in = run.included[np.argsort(scores, kind="stable")]
        for number in guess_numbers(len(is_in)):
            right = int((~is_in[: number // 2]).sum() + is_in[-(number // 2) :].sum())
            found.append(GuessResult(right, number, trace))
    return found


def best_p_value(found: list[GuessResult], canaries: int, point: ClaimPoint) -> tuple[float, GuessResult]:
    """Return the p-value of all guesses together, and the guesses that contribute most to it."""
    each = [(guess_p_value(one.right, one.guesses, canaries, point), one) for one in found]
    least, best = min(each, key=lambda pair: pair[0])
    return min(1.0, len(found) * least), best


def guess_p_value(right: int, guesses: int, canaries: int, point: ClaimPoint) -> float:
    """Return an upper bound of the probability of at least `right` right guesses, for any engine within the claim."""
    if not 0 <= right <= guesses <= canaries:
        raise BadSetting(f"{right} right of {guesses} guesses about {canaries} canaries is impossible")
    masses = binomial_masses(guesses, point.epsilon)
    at_least = float(masses[right:].sum())
    if right == 0:
        return 1.0
    # The most that an engine can gain by using its delta to make i more guesses right, over all i.
    nearly = np.cumsum(masses[:right][::-1]) / np.arange(1, right + 1)
    return min(1.0, at_least + 2 * canaries * point.delta * float(nearly.max()))


def binomial_masses(trials: int, epsilon: float) -> Floats:
    """Return the probabilities of 0 to `trials` successes, each of probability exp(epsilon) / (1 + exp(epsilon)).

    Computed by logarithms, so that it works for thousands of trials.
    """
    counts = np.arange(trials + 1)
    factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    log_ways = factorial[trials] - factorial[counts] - factorial[trials - counts]
    log_wrong = -np.logaddexp(0.0, epsilon)
    log_right = -np.logaddexp(0.0, -epsilon)
    return np.asarray(np.exp(log_ways + counts * log_right + (trials - counts) * log_wrong))


def most_showable_once(canaries: int, tests: int, delta: float, confidence: float) -> float:
    """Return the largest epsilon that one run can show: if every guess is right, for the best number of guesses."""
    low, high = 0.0, math.log(canaries + 1) + 10
    for _ in range(40):
        point = ClaimPoint((low + high) / 2, delta)
        least = min(guess_p_value(number, number, canaries, point) for number in guess_numbers(canaries))
        low, high = (point.epsilon, high) if tests * least <= 1 - confidence else (low, point.epsilon)
    return low


class BetLedger:
    """The runs so far, their event counts, and the bets."""

    def __init__(self, names: Sequence[str], points: Sequence[ClaimPoint]) -> None:
        self._names = names
        self.bettor = Bettor(points)
        self.runs: list[AuditRun] = []
        self.counts: list[EventCounts] = []
        self._events: Events | None = None

    def add_run(self, run: AuditRun) -> None:
        self.runs.append(run)
        if len(self.runs) < LEARNING_RUNS:
            return
        if self._events is None:
            self._events = Events(self._names, self.runs)
        for each in self.runs[len(self.counts) :]:
            self.counts.append(self._events.count_events(each))
            self.bettor.add_run(self.counts[-1])

    def p_value_at(self, point: ClaimPoint) -> float:
        """Return the p-value that a claim of this point alone would have, from the same runs."""
        return p_value(self.counts, [point])

    def describe_evidence(self) -> str:
        bet = self.bettor.strongest_bet()
        if bet is None or self._events is None:
            return "No event was worth a bet"
        later = self.runs[LEARNING_RUNS:]
        seen_in, all_in, seen_out, all_out = np.sum(
            [self._events.count_canaries(bet.event, run) for run in later], axis=0
        )
        seen = f"{seen_in} of {all_in} times where it was in, {seen_out} of {all_out} where it was out"
        return f"The best bet: {self._events.describe(bet.event)}, {seen}"

    def runs_are_identical(self) -> bool:
        """Return True if each canary's scores have one value in all runs with it, and one in all runs without it."""
        scores = np.stack([run.scores for run in self.runs])
        included = np.stack([run.included for run in self.runs])[:, None, :]
        spreads = [
            np.where(kind, scores, -np.inf).max(0) - np.where(kind, scores, np.inf).min(0)
            for kind in (included, ~included)
        ]
        return float(np.max(spreads)) <= IDENTICAL * float(np.abs(scores).max())


def audit_by_many_runs(
    train: Train,
    task: AuditTask,
    points: Sequence[ClaimPoint],
    *,
    runs: int,
    confidence: float,
    seed: int,
    progress: Progress | None,
) -> Audit:
    """Audit by many runs. The lower bound is that of the first point."""
    traces = Traces(task)
    bets = BetLedger(traces.names, points)
    for run in iterate_runs(train, task, traces, runs, seed):
        bets.add_run(run)
        stop = progress is not None and progress(len(bets.runs), runs, bets.bettor.p_value)
        if stop or bets.bettor.p_value <= 1 - max(SURE, confidence):
            break
    return _summarise(bets, task, points[0], confidence)


def _summarise(bets: BetLedger, task: AuditTask, point: ClaimPoint, confidence: float) -> Audit:
    runs, strongest = len(bets.runs), bets.bettor.strongest_bet()
    return Audit(
        p_value=bets.bettor.p_value,
        lower_bound=lower_bound(lambda each: bets.p_value_at(ClaimPoint(each, point.delta)), point.epsilon, confidence),
        claimed=point.epsilon,
        delta=point.delta,
        confidence=confidence,
        runs=runs,
        canaries=task.canaries,
        method=f"betting on {runs} runs of {task.canaries} canaries",
        refuted_point=point if strongest is None else strongest.point,
        most_showable=most_showable(runs, point.delta, confidence),
        evidence=bets.describe_evidence(),
        deterministic=bets.runs_are_identical(),
    )


def audit_by_one_run(train: Train, task: AuditTask, point: ClaimPoint, *, confidence: float, seed: int) -> Audit:
    """Audit by guessing the canaries of one run."""
    traces, canaries = Traces(task), task.canaries
    [run] = iterate_runs(train, task, traces, 1, seed)
    found = guess_membership(run)
    p_value, best = best_p_value(found, canaries, point)

    def p_value_at(epsilon: float) -> float:
        return best_p_value(found, canaries, ClaimPoint(epsilon, point.delta))[0]

    return Audit(
        p_value=p_value,
        lower_bound=lower_bound(p_value_at, point.epsilon, confidence),
        claimed=point.epsilon,
        delta=point.delta,
        confidence=confidence,
        runs=1,
        canaries=canaries,
        method=f"guessing the {canaries} canaries of one run",
        refuted_point=point,
        most_showable=most_showable_once(canaries, len(found), point.delta, confidence),
        evidence=f"Of {best.guesses} guesses by {traces.names[best.trace]}, {best.right} were right",
        deterministic=False,
    )
