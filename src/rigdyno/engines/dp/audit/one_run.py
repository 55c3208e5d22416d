"""The test by one run: trains once, with each of many canaries in or out, and counts right guesses."""

from __future__ import annotations

from rigdyno.engines.dp.audit.claim import Point
from rigdyno.engines.dp.audit.guesses import best_p_value, guessed, most_showable_once
from rigdyno.engines.dp.audit.runs import Train, audit_runs
from rigdyno.engines.dp.audit.task import AuditTask
from rigdyno.engines.dp.audit.verdict import Audit, lower_bound
from rigdyno.engines.dp.audit.watch import Traces


def audit_by_one_run(train: Train, task: AuditTask, point: Point, *, confidence: float, seed: int) -> Audit:
    traces, canaries = Traces(task), task.canaries
    [run] = audit_runs(train, task, traces, 1, seed)
    found = guessed(run)
    p_value, best = best_p_value(found, canaries, point)

    def p_value_at(epsilon: float) -> float:
        return best_p_value(found, canaries, Point(epsilon, point.delta))[0]

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
