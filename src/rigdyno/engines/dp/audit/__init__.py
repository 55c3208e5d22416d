"""Does an engine leak more than it claims? Trains a small network many times, with one sample more in half of the runs,
and tells from the weights alone which runs had it: a lower bound of epsilon, for any engine.

    def train(model, dataset, seed):           # your own loop; trains the model in place, or returns it
        ...

    task = AuditTask(samples=100)              # its size, for your own accounting
    print(audit(train, claimed=2.1, delta=1e-5, task=task))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rigdyno.engines.dp.audit.bound import (
    FEWEST_TO_CHOOSE,
    Shown,
    choosing_pairs,
    epsilon_shown,
    most_showable,
    pairs_to_show,
)
from rigdyno.engines.dp.audit.runs import Progress, Train, traces
from rigdyno.engines.dp.audit.task import AuditTask
from rigdyno.engines.dp.errors import BadSetting

__all__ = ["Audit", "AuditTask", "audit"]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What the runs show. Epsilon is `lower_bound` or more; nothing here says that it isn't far more."""

    lower_bound: float
    claimed: float
    delta: float
    confidence: float
    runs: int
    most_showable: float  # what the same number of runs would show of an engine without any privacy
    evidence: str  # the event that tells the two kinds of runs apart, with its counts
    deterministic: bool  # all runs of a kind ended alike

    @property
    def holds(self) -> bool:
        """False: the claim is refuted. True: it isn't, which proves nothing."""
        return self.lower_bound <= self.claimed

    def __str__(self) -> str:
        bound = f"epsilon is at least {self.lower_bound:.2f} with {100 * self.confidence:.4g} % confidence"
        found = f"{bound} (delta {self.delta:g}, {self.runs} runs); the claim is {self.claimed:.4g}"
        return " ".join([found + ":", self._verdict(), self.evidence + ".", *self._remark()])

    def _verdict(self) -> str:
        if not self.holds:
            return "the claim is WRONG."
        return (
            "not refuted, which proves nothing. An audit finds faults, not their absence, "
            f"and this many runs never show more than {self.most_showable:.2f}."
        )

    def _remark(self) -> list[str]:
        same = "All runs of a kind ended alike: there is no noise, or the engine uses the same seed in every run."
        return [same] if self.deterministic else []


def audit(
    train: Train,
    *,
    claimed: float,
    delta: float,
    task: AuditTask | None = None,
    runs: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """`claimed` is the epsilon that the engine's own accounting gives for this task, for adding or removing a sample.
    Draws from torch's default generator are seeded here; what the engine seeds by itself is to follow its `seed`."""
    pairs = runs // 2
    _check(claimed, delta, pairs, confidence)
    read = traces(train, task or AuditTask(), pairs, seed, progress)
    shown = epsilon_shown(read.with_canary, read.without, delta=delta, confidence=confidence)
    return Audit(
        lower_bound=shown.lower_bound,
        claimed=claimed,
        delta=delta,
        confidence=confidence,
        runs=2 * pairs,
        most_showable=most_showable(pairs, delta, confidence),
        evidence=_evidence(shown, read.names),
        deterministic=not any(np.ptp(rows, axis=0).any() for rows in (read.with_canary, read.without)),
    )


def _evidence(shown: Shown, names: Sequence[str]) -> str:
    side = "above" if shown.event.above else "at most"
    where = f"The canary's trace in {names[shown.event.statistic]} is {side} {shown.event.threshold:.4g}"
    return f"{where} in {shown.hits_with} of {shown.trials} runs with it and {shown.hits_without} without"


def _check(claimed: float, delta: float, pairs: int, confidence: float) -> None:
    if not 0 < claimed < math.inf:
        raise BadSetting(f"a claimed epsilon is positive and finite, not {claimed}")
    if not 0 <= delta < 1:
        raise BadSetting(f"a delta lies from 0 to below 1, not at {delta}")
    if not 0 < confidence < 1:
        raise BadSetting(f"a confidence lies between 0 and 1, not at {confidence}")
    if choosing_pairs(pairs) < FEWEST_TO_CHOOSE:
        raise BadSetting(f"{2 * pairs} runs are too few to choose a threshold by; try 1000")
    most = most_showable(pairs, delta, confidence)
    if most <= claimed:
        needed = 2 * pairs_to_show(claimed, delta, confidence)
        few = f"{2 * pairs} runs can show an epsilon of {most:.2f} at most, and {claimed:.4g} is claimed"
        raise BadSetting(f"{few}; try {needed:.6g} runs or more, or settings that claim less")
