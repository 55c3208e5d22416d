"""Store numbers with their unit, interval, sample count and method, and verdicts with their reasons."""

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
    low: float | None = None  # None, like `high`, without an interval, which isn't the same as a narrow one
    high: float | None = None
    confidence: float | None = None  # of [low, high]; None: no interval, or unknown
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
            raise ValueError(f"a confidence must be between 0 and 1, not {self.confidence}")

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the interval, or the value twice without one, for decisions that need two ends."""
        return self.interval or (self.value, self.value)

    def mapped(self, function: Callable[[float], float], unit: str) -> Estimate:
        """Apply a monotonic function to the value and to both ends of the interval."""
        low, high = (None, None) if self.interval is None else sorted(map(function, self.interval))
        return msgspec.structs.replace(self, value=function(self.value), low=low, high=high, unit=unit)

    def scaled(self, factor: float, unit: str) -> Estimate:
        """Convert to another unit by an exact factor."""
        return self.mapped(lambda number: number * factor, unit)

    def without_interval(self, method: str) -> Estimate:
        return msgspec.structs.replace(self, low=None, high=None, confidence=None, method=method)


def relative_half_width(figure: Estimate) -> float | None:
    """Return half of the interval's width on a log scale; None without an interval, or if it reaches zero."""
    if figure.interval is None or figure.interval[0] <= 0:
        return None
    return math.log(figure.interval[1] / figure.interval[0]) / 2


class Number(msgspec.Struct, frozen=True, kw_only=True, tag="number"):
    """A count, or a number derived from another figure, with an interval if that figure has one."""

    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        require_both_ends(self.low, self.high)


class Missing(msgspec.Struct, frozen=True, kw_only=True, tag="missing"):
    """A figure that wasn't measured, with the reason."""

    reason: str


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    sentence: str


Verdict = Literal["VALID", "SUSPECT", "INVALID"]


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    rule_version: int = 1
