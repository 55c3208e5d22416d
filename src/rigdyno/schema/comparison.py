"""Two configurations held against each other: one ratio, its interval, and what may be said."""

from __future__ import annotations

from typing import Literal

import msgspec

from rigdyno.schema.estimate import Estimate, Missing, Reason
from rigdyno.schema.metric import Metric

# Of the candidate; "less" and "more" are of energy.
Answer = Literal["faster", "slower", "less", "more", "same", "undecided", "NOT_COMPARABLE"]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    what: str  # the configuration, or the workload that both have in common
    metric: Metric
    baseline: str  # "A", or a run's name
    candidate: str
    ratio: Estimate | Missing  # the candidate's figure over the baseline's: 0.97 of a rate is 3 % slower
    rates: tuple[Estimate, Estimate] | None = None  # the baseline's and the candidate's, if each ran by itself
    margin: float  # differences up to this share count as none
    answer: Answer
    sentence: str  # the answer in words, with the interval
    reasons: tuple[Reason, ...] = ()  # why it is undecided or not comparable, and what weakens the answer
    differences: tuple[str, ...] = ()  # what differs beside the figures


class PairFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of processes of a duel."""

    pair: int
    ratio: Estimate  # B's rate over A's, or what an item takes of energy: the median of its paired turns
    seconds: float  # what the pair took, start-up included


class Duel(msgspec.Struct, frozen=True, kw_only=True):
    """Two arms, A and B, and what their pairs of processes say."""

    comparison: Comparison
    pairs: tuple[PairFigure, ...] = ()
    lost: tuple[str, ...] = ()  # what became of pairs that have no figure
    half_width: float | None = None  # of the interval, as a share; None: there is none
    seconds_to_decide: float | None = None  # about how much longer it would take; None: it is decided, or can't be told
