"""What an audit found, in figures and in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rigdyno.engines.dp.audit.claim import Point

SURE = 0.999  # beside the confidence that was asked for
LARGEST_EPSILON = 30.0


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What the runs show. Epsilon at `delta` is `lower_bound` or more; nothing here says that it isn't far more."""

    p_value: float  # of the claim: what it says is at most so likely to end like this, or worse
    lower_bound: float
    claimed: float  # at delta
    delta: float
    confidence: float
    runs: int  # that were made
    canaries: int
    method: str
    refuted_point: Point  # the point of the claim that the runs speak against most
    most_showable: float  # what as many runs would show of an engine without any privacy
    evidence: str  # what was counted
    deterministic: bool  # all runs ended alike

    @property
    def holds(self) -> bool:
        """False: the claim is refuted, at the confidence that was asked for. True: it isn't, which proves nothing."""
        return not self.refuted(self.confidence)

    def refuted(self, confidence: float) -> bool:
        return self.p_value <= 1 - confidence

    def __str__(self) -> str:
        return " ".join([self._verdict(), self._bound(), self.evidence + ".", *self._remark()])

    def _verdict(self) -> str:
        epsilon, delta = self.refuted_point
        how = f"by {self.method} (p {self.p_value:.2g})"
        if not self.holds:
            sure = max(self.confidence, SURE) if self.refuted(max(self.confidence, SURE)) else self.confidence
            wrong = f"The claim of epsilon {epsilon:.4g} at delta {delta:g} is WRONG"
            return f"{wrong}: refuted with {100 * sure:.4g} % confidence {how}."
        return (
            f"The claim of epsilon {self.claimed:.4g} at delta {self.delta:g} is not refuted {how}, which proves "
            "nothing: an audit finds faults, not their absence."
        )

    def _bound(self) -> str:
        shown = f"At delta {self.delta:g}, epsilon is at least {self.lower_bound:.2f}"
        return (
            f"{shown} with {100 * self.confidence:.4g} % confidence; at most {self.most_showable:.2f} could be shown."
        )

    def _remark(self) -> list[str]:
        same = "All runs ended alike: there is no noise, or the engine uses the same seed in every run."
        return [same] if self.deterministic else []


def lower_bound(p_value: Callable[[float], float], claimed: float, confidence: float) -> float:
    """The largest epsilon of a grid that is refuted together with all below it. Epsilons are tested from zero upwards
    to the first that isn't refuted: only the test of the true one must not fail then, so nothing is to be corrected."""
    shown = 0.0
    for epsilon in _grid(claimed):
        if p_value(epsilon) > 1 - confidence:
            break
        shown = epsilon
    return shown


def _grid(claimed: float) -> list[float]:
    """Tenths to 2, then by twentieths of itself; the claim is among them, so that bound and verdict agree."""
    grid = [0.0, *(tenth / 10 for tenth in range(1, 21))]
    while grid[-1] < LARGEST_EPSILON:
        grid.append(1.05 * grid[-1])
    return sorted({*grid, claimed})
