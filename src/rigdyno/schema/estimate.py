"""Numbers with what one must know to believe them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import msgspec


def require_both_ends(low: float | None, high: float | None) -> None:
    if (low is None) != (high is None):
        raise ValueError("an interval has two ends")


class Estimate(msgspec.Struct, frozen=True, kw_only=True, tag="estimate"):
    value: float
    low: float | None = None  # with `high`; None: there is no interval, which isn't the same as a narrow one
    high: float | None = None
    confidence: float | None = None  # of [low, high]; None: there is none, or it isn't known
    n: int
    unit: str
    method: str

    def __post_init__(self) -> None:
        require_both_ends(self.low, self.high)
        if self.confidence is None:
            return
        if self.low is None:
            raise ValueError("there is no confidence without an interval")
        if not 0 < self.confidence < 1:
            raise ValueError(f"a confidence lies between 0 and 1, not at {self.confidence}")

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """Where something must be decided all the same: without an interval the value stands for itself."""
        return self.interval or (self.value, self.value)

    def mapped(self, function: Callable[[float], float], unit: str) -> Estimate:
        """Through a function that only rises, or only falls."""
        low, high = (None, None) if self.interval is None else sorted(map(function, self.interval))
        return msgspec.structs.replace(self, value=function(self.value), low=low, high=high, unit=unit)

    def scaled(self, factor: float, unit: str) -> Estimate:
        """In another unit, where the factor itself is exact."""
        return self.mapped(lambda number: number * factor, unit)

    def without_interval(self, method: str) -> Estimate:
        return msgspec.structs.replace(self, low=None, high=None, confidence=None, method=method)


def relative_half_width(figure: Estimate) -> float | None:
    """Of the interval, on the logarithm's scale; None where there is none, or it reaches down to zero."""
    if figure.interval is None or figure.interval[0] <= 0:
        return None
    return math.log(figure.interval[1] / figure.interval[0]) / 2


def worst_ratio(above: Estimate, below: Estimate) -> tuple[float, float] | None:
    """From the worst to the best that the intervals of both allow. That it holds the truth is more certain than either,
    by an amount that nobody knows."""
    if above.interval is None or below.interval is None:
        return None
    return above.interval[0] / below.interval[1], above.interval[1] / below.interval[0]


class Number(msgspec.Struct, frozen=True, kw_only=True, tag="number"):
    """A count, or what follows from a figure that stands elsewhere; with an interval where that has one."""

    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        require_both_ends(self.low, self.high)


class Missing(msgspec.Struct, frozen=True, kw_only=True, tag="missing"):
    """A figure that wasn't measured, and why."""

    reason: str


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    sentence: str


Verdict = Literal["VALID", "SUSPECT", "INVALID"]


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    rule_version: int = 1
