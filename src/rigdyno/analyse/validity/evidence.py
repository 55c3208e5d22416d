"""The evidence that validity rules use, and helpers to grade it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rigdyno.analyse.steady import Steady
from rigdyno.analyse.streams import Rows, TimeSpan, mean_reading, span_of
from rigdyno.base.units import seconds_of_ns, show_percent
from rigdyno.schema.estimate import Verdict
from rigdyno.schema.record import Quality

Judgement = tuple[Verdict, str] | None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything known about one stream of steps. None means not measured: rules then find nothing."""

    rows: Rows  # one kind, one rank, warm-up included
    steady: Steady
    telemetry: Rows | None = None
    unsampled: bool = False  # although other nodes of the same cell were sampled
    quality: Quality = field(default_factory=Quality)
    sampler_exit_code: int | None = None
    steps_name: str = "steps"  # such as "memmove steps" if there are several kinds
    has_budget: bool = True  # whether a larger one would give more steps
    memory_bytes: int | None = None  # the peak of the limited memory
    largest: Mapping[str, int] = field(
        default_factory=dict
    )  # options searched for the largest value that fits into so many bytes

    @property
    def kept(self) -> Rows:
        return self.rows[self.steady.start :]

    @property
    def remedy(self) -> str:
        """Return the advice that ends a sentence about too little data."""
        return "; try a larger --budget" if self.has_budget else ""

    @property
    def window(self) -> TimeSpan:
        return span_of(self.kept) if len(self.kept) else TimeSpan(0, 0)

    @property
    def seconds(self) -> float:
        return seconds_of_ns(self.window.end_ns - self.window.start_ns)

    def mean(self, channel: str) -> float | None:
        """Return the mean of a channel over the steady window."""
        return mean_reading(self.telemetry, channel, self.window)


Rule = Callable[[Evidence], Judgement]


def grade(share: float | None, suspect: float, invalid: float, sentence: str) -> Judgement:
    """Judge a share by two thresholds; None is below both. `{}` in the sentence stands for the share."""
    if share is None or share < suspect:
        return None
    return "INVALID" if share >= invalid else "SUSPECT", sentence.replace("{}", show_percent(share))


def gravest(said: list[Judgement]) -> Judgement:
    loud = [each for each in said if each is not None]
    return max(loud, key=lambda each: each[0] == "INVALID") if loud else None
