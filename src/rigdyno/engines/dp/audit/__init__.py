"""Does an engine leak more than it claims? Trains a small network, with canaries in it or not by fair coins, and tells
from the parameters after each step which were in: that refutes a claim, or doesn't, for any engine.

    def train(model, dataset, seed):           # your own loop; trains the model in place, or returns it
        ...

    task = AuditTask()                         # task.samples is its size, for your own accounting
    print(audit(train, claimed=my_epsilon_at, delta=1e-5, task=task))

Many runs are a test that may be looked at and stopped at any time. `runs=1` is the test by a single run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rigdyno.engines.dp.audit.betting import LEARNING_RUNS, most_showable, runs_to_show
from rigdyno.engines.dp.audit.claim import Curve, Point, claimed_points
from rigdyno.engines.dp.audit.guesses import guess_numbers, most_showable_once
from rigdyno.engines.dp.audit.many_runs import Progress, audit_by_many_runs
from rigdyno.engines.dp.audit.one_run import audit_by_one_run
from rigdyno.engines.dp.audit.runs import Train
from rigdyno.engines.dp.audit.task import AuditTask
from rigdyno.engines.dp.audit.verdict import Audit
from rigdyno.engines.dp.errors import BadSetting

__all__ = ["Audit", "AuditTask", "audit"]

ONE_RUN_TASK = AuditTask(canaries=2000, layers=1)


def audit(
    train: Train,
    *,
    claimed: float | Curve,
    delta: float,
    task: AuditTask | None = None,
    runs: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """`claimed` is what the engine's own accounting gives for this task, for adding or removing a sample: an epsilon at
    `delta`, or better a function that gives one for any delta. Many runs end early once the claim is refuted with
    99.9 % confidence. Draws from torch's default generator are seeded here; what the engine seeds by itself is to
    follow its `seed`."""
    if not 0 < confidence < 1:
        raise BadSetting(f"a confidence lies between 0 and 1, not at {confidence}")
    points = claimed_points(claimed, delta)
    once = runs == 1 and runs is not True
    task = task or (ONE_RUN_TASK if once else AuditTask())
    if once:
        _check_canaries(task.canaries, points[0], confidence)
    else:
        _check_runs(runs, points, confidence)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if once:
            return audit_by_one_run(train, task, points[0], confidence=confidence, seed=seed)
        return audit_by_many_runs(train, task, points, runs=runs, confidence=confidence, seed=seed, progress=progress)


def _check_runs(runs: int, points: Sequence[Point], confidence: float) -> None:
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 2 * LEARNING_RUNS:
        raise BadSetting(f"{runs!r} runs are too few to learn from; try 1000, or 1 for the test by a single run")
    epsilon, delta = min(points)
    needed = runs_to_show(epsilon, delta, confidence)
    if runs < needed:
        most = most_showable(runs, delta, confidence)
        few = f"{runs} runs can show an epsilon of {most:.2f} at most, and {epsilon:.4g} is claimed at delta {delta:g}"
        raise BadSetting(f"{few}; try {needed:.6g} runs or more, or claimed= as a function of delta")


def _check_canaries(canaries: int, point: Point, confidence: float) -> None:
    most = most_showable_once(canaries, len(guess_numbers(canaries)), point.delta, confidence) if canaries > 1 else 0.0
    if most <= point.epsilon:
        few = f"one run of {canaries} canaries can show an epsilon of {most:.2f} at most, and {point.epsilon:.4g}"
        raise BadSetting(f"{few} is claimed at delta {point.delta:g}; try more canaries, more noise, or many runs")
