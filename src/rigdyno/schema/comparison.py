"""Store the comparison of two configurations: the ratio, its interval, and the answer."""

from __future__ import annotations

from typing import Literal

import msgspec

from rigdyno.schema.estimate import Estimate, Missing, Reason
from rigdyno.schema.metric import Metric

# How the candidate compares with the baseline; "less" and "more" are about energy.
Answer = Literal["faster", "slower", "less", "more", "same", "undecided", "NOT_COMPARABLE"]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    what: str  # the configuration, or the workload that both have in common
    metric: Metric
    baseline: str  # "A", or a run's name
    candidate: str
    ratio: Estimate | Missing  # the candidate's figure over the baseline's: 0.97 of a rate is 3 % slower
    rates: tuple[Estimate, Estimate] | None = None  # of baseline and candidate, if each ran by itself
    margin: float  # differences up to this share count as none
    answer: Answer
    sentence: str  # the answer in words, with the interval
    reasons: tuple[Reason, ...] = ()  # why it is undecided or not comparable, and what weakens the answer
    differences: tuple[str, ...] = ()  # what differs in system, environment and options


class PairFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of processes of a duel."""

    pair: int
    ratio: Estimate  # median over the paired turns of B's rate over A's, or of B's energy per item over A's
    seconds: float  # duration of the pair, start-up included


class Duel(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a duel between two arms, A and B, from all pairs of processes."""

    comparison: Comparison
    pairs: tuple[PairFigure, ...] = ()
    lost: tuple[str, ...] = ()  # why some pairs have no figure
    half_width: float | None = None  # of the interval, as a share; None: there is no interval
    seconds_to_decide: float | None = None  # about how much longer it would take; None: it is decided, or unknown
