"""What the validity rules judge by, and what they may say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rigdyno.analyse.steady import Steady
from rigdyno.analyse.streams import Rows
from rigdyno.analyse.telemetry import Span, mean_reading, span_of
from rigdyno.schema.estimate import Verdict
from rigdyno.schema.record import Quality
from rigdyno.units import seconds_of_ns, show_percent

Spoken = tuple[Verdict, str] | None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of one stream of steps. What is None wasn't measured, and no rule speaks about it."""

    rows: Rows  # one kind, one rank, warm-up included
    steady: Steady
    telemetry: Rows | None = None
    unsampled: bool = False  # though other nodes of the same cell were
    quality: Quality = field(default_factory=Quality)
    sampler_exit_code: int | None = None
    steps_name: str = "steps"  # "memmove steps", where there are several kinds
    has_budget: bool = True  # whether a larger one would give more steps
    memory_bytes: int | None = None  # the peak of what is scarce
    largest: Mapping[str, int] = field(default_factory=dict)  # options that are as large as fits into so many bytes

    @property
    def kept(self) -> Rows:
        return self.rows[self.steady.start :]

    @property
    def remedy(self) -> str:
        """The end of a sentence about too little."""
        return "; try a larger --budget" if self.has_budget else ""

    @property
    def window(self) -> Span:
        return span_of(self.kept) if len(self.kept) else Span(0, 0)

    @property
    def seconds(self) -> float:
        return seconds_of_ns(self.window.end_ns - self.window.start_ns)

    def mean(self, channel: str) -> float | None:
        """Over the steady window."""
        return mean_reading(self.telemetry, channel, self.window)


Rule = Callable[[Evidence], Spoken]


def graded(share: float | None, suspect: float, invalid: float, sentence: str) -> Spoken:
    """By two thresholds; what wasn't measured is below both. The sentence says {} where the share belongs."""
    if share is None or share < suspect:
        return None
    return "INVALID" if share >= invalid else "SUSPECT", sentence.replace("{}", show_percent(share))


def gravest(said: list[Spoken]) -> Spoken:
    loud = [each for each in said if each is not None]
    return max(loud, key=lambda each: each[0] == "INVALID") if loud else None
