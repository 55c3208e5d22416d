"""Numbers with what one must know to believe them."""

from __future__ import annotations

from typing import Literal

import msgspec


class Estimate(msgspec.Struct, frozen=True, kw_only=True, tag="estimate"):
    value: float
    low: float
    high: float
    confidence: float  # of [low, high]
    n: int
    unit: str
    method: str

    def scaled(self, factor: float, unit: str) -> Estimate:
        """In another unit, where the factor itself is exact."""
        return msgspec.structs.replace(
            self, value=self.value * factor, low=self.low * factor, high=self.high * factor, unit=unit
        )


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
