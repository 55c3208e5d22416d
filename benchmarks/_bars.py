"""Print the result of a benchmark: a table for people, one JSON line for programs, and an exit code."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from rigdyno.analyse.statistics import median_estimate

ONE_SIDED = 0.90  # of an interval: either bound by itself holds with 95 %
FULL_SECONDS, QUICK_SECONDS = 560.0, 52.0  # of ten minutes and of one, with some to end in


class Allowance:
    """The time limit of a benchmark; rounds continue as long as another one fits."""

    def __init__(self, quick: bool) -> None:
        self._end = time.monotonic() + (QUICK_SECONDS if quick else FULL_SECONDS)

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def rounds(self, least: int, most: int, share: float = 1.0) -> Iterator[int]:
        """`share`: of the time that is left now."""
        end, longest = time.monotonic() + share * self.seconds_left, 0.0
        for number in range(most):
            began = time.monotonic()
            if number >= least and began + longest > end:
                return
            yield number
            longest = max(longest, time.monotonic() - began)


@dataclass(frozen=True)
class Bar:
    """A claim: the whole interval must be on the right side of the bar."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    bar: float
    at: Literal["most", "least"] = field(default="most")

    @property
    def holds(self) -> bool:
        return self.high <= self.bar if self.at == "most" else self.low >= self.bar

    def as_json(self) -> dict[str, object]:
        fields = {key: value for key, value in asdict(self).items() if key != "at"}
        return {**fields, "holds": self.holds}


@dataclass(frozen=True)
class ValueBar(Bar):
    """A claim about the value itself, for data that are too few for the interval to be on one side."""

    @property
    def holds(self) -> bool:
        return self.value <= self.bar if self.at == "most" else self.value >= self.bar


@dataclass(frozen=True)
class NotMeasured(Bar):
    """A claim that couldn't be measured, and therefore doesn't hold."""

    why: str = field(default="")

    @classmethod
    def because(cls, name: str, why: str, bar: float, at: Literal["most", "least"]) -> NotMeasured:
        return cls(name, math.nan, math.nan, math.nan, "not measured", bar, at, why)

    @property
    def holds(self) -> bool:
        return False

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "value": None, "low": None, "high": None}


def median_bar(name: str, values: list[float], unit: str, bar: float) -> Bar:
    estimate = median_estimate(values, unit, independent=True)
    return Bar(name, estimate.value, estimate.low, estimate.high, unit, bar)


def distance_bar(name: str, ratios: list[float], bar: float) -> Bar:
    """Return how far the geometric mean of the ratios is from one, and the worse end of its interval."""
    middle, half = mean_and_half([math.log(ratio) for ratio in ratios])
    worst = max(abs(math.expm1(middle - half)), abs(math.expm1(middle + half)))
    return Bar(name, abs(math.expm1(middle)), 0.0, worst, "of the peer's rate", bar)


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of the width of its 95 % interval by Student's t."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), float(half)


def share_bar(
    name: str,
    said: Sequence[bool],
    bar: float,
    at: Literal["most", "least"],
    confidence: float = 0.95,
    on_value: bool = False,
) -> Bar:
    """How often it was so, with Clopper and Pearson's interval; nothing asked proves nothing. `on_value`: by what was
    seen, where there is too little for the interval to lie on one side, as in a quick run."""
    from scipy.stats import binomtest

    if not said:
        return Bar(name, 0.0, 0.0, 1.0, "of none", bar, at)
    interval = binomtest(sum(said), len(said)).proportion_ci(confidence)
    kind = ValueBar if on_value else Bar
    return kind(name, sum(said) / len(said), interval.low, interval.high, f"of {len(said)}", bar, at)


def machine() -> str:
    """Describe the processor and torch's use of it, which ratios of engines depend on."""
    import torch

    from rigdyno.rig.system import describe_system

    return f"{describe_system(()).line()}; torch {torch.__version__} uses {torch.backends.cpu.get_cpu_capability()}"


def finish(bars: list[Bar]) -> None:
    print(machine())
    width = max(len(bar.name) for bar in bars)
    print(f"{'bar':<{width}}  {'value':>9}  {'low':>9}  {'high':>9}  {'bar':>9}  holds")
    for bar in bars:
        sign = "<=" if bar.at == "most" else ">="
        figures = f"{bar.value:>9.4g}  {bar.low:>9.4g}  {bar.high:>9.4g}  {sign}{bar.bar:>7.4g}"
        print(f"{bar.name:<{width}}  {figures}  {'yes' if bar.holds else 'NO'}  ({bar.unit})")
    print(json.dumps([bar.as_json() for bar in bars]))
    sys.exit(0 if all(bar.holds for bar in bars) else 1)
