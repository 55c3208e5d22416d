"""Audit any private engine: does it leak more than it claims?

The audit trains a small network on canaries, each included or left out by a fair coin. It then infers from the
parameters after each step which canaries were included. That either refutes the claimed epsilon or doesn't.

    def train(model, dataset, seed):           # your own loop; trains the model in place, or returns it
        ...

    task = AuditTask()                         # task.samples is its size, for your own accounting
    print(audit(train, claimed=my_epsilon_at, delta=1e-5, task=task))

A test by many runs may be inspected and stopped at any time. `runs=1` is a test by a single run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rigdyno.engines.dp.audit.betting import LEARNING_RUNS, most_showable, runs_to_show
from rigdyno.engines.dp.audit.methods import (
    Progress,
    audit_by_many_runs,
    audit_by_one_run,
    guess_numbers,
    most_showable_once,
)
from rigdyno.engines.dp.audit.runs import AuditTask, Train
from rigdyno.engines.dp.audit.verdict import Audit, ClaimPoint, Curve, parse_claim
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
    """Test the claimed epsilon of an engine by training with it.

    claimed: the result of the engine's own accounting for this task, for adding or removing one sample: an epsilon at
        `delta`, or better a function that returns one for any delta.
    runs: the most runs to make; an audit ends early once the claim is refuted with 99.9 % confidence.
    seed: seeds torch's default generator. Other generators of the engine should follow the seed that `train` gets.
    """
    if not 0 < confidence < 1:
        raise BadSetting(f"confidence must be between 0 and 1: {confidence}")
    points = parse_claim(claimed, delta)
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


def _check_runs(runs: int, points: Sequence[ClaimPoint], confidence: float) -> None:
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 2 * LEARNING_RUNS:
        raise BadSetting(f"{runs!r} runs are too few to learn from; try 1000, or 1 for the test by a single run")
    epsilon, delta = min(points)
    needed = runs_to_show(epsilon, delta, confidence)
    if runs < needed:
        most = most_showable(runs, delta, confidence)
        few = f"{runs} runs can show an epsilon of {most:.2f} at most, and {epsilon:.4g} is claimed at delta {delta:g}"
        raise BadSetting(f"{few}; try {needed:.6g} runs or more, or claimed= as a function of delta")


def _check_canaries(canaries: int, point: ClaimPoint, confidence: float) -> None:
    most = most_showable_once(canaries, len(guess_numbers(canaries)), point.delta, confidence) if canaries > 1 else 0.0
    if most <= point.epsilon:
        few = f"one run of {canaries} canaries can show an epsilon of {most:.2f} at most, and {point.epsilon:.4g}"
        raise BadSetting(f"{few} is claimed at delta {point.delta:g}; try more canaries, more noise, or many runs")
