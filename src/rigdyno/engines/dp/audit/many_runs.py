"""The test by many runs: trains, counts events, bets, until the runs are over or the claim is refuted for sure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rigdyno.engines.dp.audit.betting import LEARNING_RUNS, Bettor, Counts, most_showable, p_value
from rigdyno.engines.dp.audit.claim import Point
from rigdyno.engines.dp.audit.events import Events
from rigdyno.engines.dp.audit.runs import Run, Train, audit_runs
from rigdyno.engines.dp.audit.task import AuditTask
from rigdyno.engines.dp.audit.verdict import SURE, Audit, lower_bound
from rigdyno.engines.dp.audit.watch import Traces

# Runs made, runs at most, p-value so far. True ends the audit, which is as valid then.
Progress = Callable[[int, int, float], bool | None]

ALIKE = 1e-6  # relative: below it, scores differ by rounding alone


class Book:
    """The runs so far, the events that are counted in them, and the bets."""

    def __init__(self, names: Sequence[str], points: Sequence[Point]) -> None:
        self._names = names
        self.bettor = Bettor(points)
        self.runs: list[Run] = []
        self.counts: list[Counts] = []
        self._events: Events | None = None

    def enter(self, run: Run) -> None:
        self.runs.append(run)
        if len(self.runs) < LEARNING_RUNS:
            return
        if self._events is None:
            self._events = Events(self._names, self.runs)
        for each in self.runs[len(self.counts) :]:
            self.counts.append(self._events.counts(each))
            self.bettor.see(self.counts[-1])

    def p_value_at(self, point: Point) -> float:
        """What a claim of that point alone would have come to, by the same runs."""
        return p_value(self.counts, [point])

    def evidence(self) -> str:
        bet = self.bettor.strongest()
        if bet is None or self._events is None:
            return "No event was worth a bet"
        later = self.runs[LEARNING_RUNS:]
        seen_in, all_in, seen_out, all_out = np.sum([self._events.seen(bet.event, run) for run in later], axis=0)
        seen = f"{seen_in} of {all_in} times where it was in, {seen_out} of {all_out} where it was out"
        return f"The best bet: {self._events.name(bet.event)}, {seen}"

    def alike(self) -> bool:
        """Each canary's scores take one value where it is in, and one where it is out."""
        scores = np.stack([run.scores for run in self.runs])
        included = np.stack([run.included for run in self.runs])[:, None, :]
        spreads = [
            np.where(kind, scores, -np.inf).max(0) - np.where(kind, scores, np.inf).min(0)
            for kind in (included, ~included)
        ]
        return float(np.max(spreads)) <= ALIKE * float(np.abs(scores).max())


def audit_by_many_runs(
    train: Train,
    task: AuditTask,
    points: Sequence[Point],
    *,
    runs: int,
    confidence: float,
    seed: int,
    progress: Progress | None,
) -> Audit:
    """The first point is the one that a bound is given for."""
    traces = Traces(task)
    book = Book(traces.names, points)
    for run in audit_runs(train, task, traces, runs, seed):
        book.enter(run)
        stop = progress is not None and progress(len(book.runs), runs, book.bettor.p_value)
        if stop or book.bettor.p_value <= 1 - max(SURE, confidence):
            break
    return _audit(book, task, points[0], confidence)


def _audit(book: Book, task: AuditTask, point: Point, confidence: float) -> Audit:
    runs, strongest = len(book.runs), book.bettor.strongest()
    return Audit(
        p_value=book.bettor.p_value,
        lower_bound=lower_bound(lambda each: book.p_value_at(Point(each, point.delta)), point.epsilon, confidence),
        claimed=point.epsilon,
        delta=point.delta,
        confidence=confidence,
        runs=runs,
        canaries=task.canaries,
        method=f"betting on {runs} runs of {task.canaries} canaries",
        refuted_point=point if strongest is None else strongest.point,
        most_showable=most_showable(runs, point.delta, confidence),
        evidence=book.evidence(),
        deterministic=book.alike(),
    )
