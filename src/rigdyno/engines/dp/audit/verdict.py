"""The claim of an engine, and the result of its audit.

A claim is an epsilon at one delta, or at several points of the curve that the engine's accounting gives. Accounting
that says 'epsilon 4.4 at delta 1e-5' also says 'epsilon 0.7 at delta 0.2'. The second is far easier to refute: it is
about events that happen in every fifth run, not once in a hundred thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rigdyno.engines.dp.errors import BadSetting

Curve = Callable[[float], float]

CURVE_DELTAS = (0.01, 0.05, 0.2, 0.4, 0.6)

SURE = 0.999  # confidence at which an audit ends early, unless a higher one was asked for

LARGEST_EPSILON = 30.0


class ClaimPoint(NamedTuple):
    """Claims P(event with the canary) <= exp(epsilon) P(event without) + delta, and the same with both exchanged."""

    epsilon: float
    delta: float


def parse_claim(claimed: float | Curve, delta: float) -> list[ClaimPoint]:
    """Return the points of a claim, the one at `delta` first.

    Of the further points with an epsilon of zero only the one with the smallest delta is kept: it implies the others.
    """
    check_probability("delta", delta)
    if not callable(claimed):
        return [_make_point(claimed, delta)]
    points = [_make_point(claimed(each), each) for each in (delta, *CURVE_DELTAS)]
    nothing = [point for point in points[1:] if point.epsilon == 0]
    return [points[0], *(point for point in points[1:] if point.epsilon > 0), *nothing[:1]]


def _make_point(epsilon: float, delta: float) -> ClaimPoint:
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < math.inf:
        raise BadSetting(f"a claimed epsilon is a finite number, not negative; at delta {delta:g} it is {epsilon!r}")
    return ClaimPoint(float(epsilon), delta)


def check_probability(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise BadSetting(f"{name} must be at least 0 and below 1: {value}")


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit: epsilon at `delta` is at least `lower_bound`. It may be far larger."""

    p_value: float  # largest probability of such a result, or a worse one, if the claim is true
    lower_bound: float
    claimed: float  # epsilon at delta
    delta: float
    confidence: float
    runs: int  # number of runs made
    canaries: int
    method: str
    refuted_point: ClaimPoint  # point of the claim with the strongest evidence against it
    most_showable: float  # epsilon that as many runs would show for an engine without any privacy
    evidence: str  # what was counted
    deterministic: bool  # True if all runs had the same result

    @property
    def holds(self) -> bool:
        """False if the claim is refuted at the requested confidence. True if it isn't, which proves nothing."""
        return not self.refuted(self.confidence)

    def refuted(self, confidence: float) -> bool:
        """Return True if the claim is refuted at this confidence."""
        return self.p_value <= 1 - confidence

    def __str__(self) -> str:
        return " ".join([self._describe_verdict(), self._describe_bound(), self.evidence + ".", *self._make_remarks()])

    def _describe_verdict(self) -> str:
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

    def _describe_bound(self) -> str:
        shown = f"At delta {self.delta:g}, epsilon is at least {self.lower_bound:.2f}"
        return (
            f"{shown} with {100 * self.confidence:.4g} % confidence; at most {self.most_showable:.2f} could be shown."
        )

    def _make_remarks(self) -> list[str]:
        same = "All runs ended alike: there is no noise, or the engine uses the same seed in every run."
        return [same] if self.deterministic else []


def lower_bound(p_value: Callable[[float], float], claimed: float, confidence: float) -> float:
    """Return the largest epsilon of a grid that is refuted together with all smaller ones.

    Epsilons are tested from zero upwards to the first that isn't refuted. Only the test of the true epsilon must not
    fail, so no correction for multiple tests is needed.
    """
    shown = 0.0
    for epsilon in _make_grid(claimed):
        if p_value(epsilon) > 1 - confidence:
            break
        shown = epsilon
    return shown


def _make_grid(claimed: float) -> list[float]:
    """Return steps of 0.1 up to 2, then of 5 %. The claim is among them, so that bound and verdict agree."""
    grid = [0.0, *(tenth / 10 for tenth in range(1, 21))]
    while grid[-1] < LARGEST_EPSILON:
        grid.append(1.05 * grid[-1])
    return sorted({*grid, claimed})
