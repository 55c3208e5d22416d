"""Whether a figure may be believed: one function a rule, all of them in one table.

A new rule is a function from Evidence to (severity, sentence) or None, and its name in RULES; its name is its code.
What only the whole run can tell, whether a figure lies above the machine's own limit, is judged in limits.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rigdyno.analyse import thresholds
from rigdyno.analyse.soak import soak
from rigdyno.analyse.steady import MIN_STEPS, Steady, trend
from rigdyno.analyse.streams import Rows, step_seconds
from rigdyno.analyse.telemetry import (
    CLOCK,
    PRESSURE,
    STEAL,
    Span,
    mean_reading,
    pushed_aside_share,
    readings,
    span_of,
)
from rigdyno.analyse.verdict import Finding
from rigdyno.schema.estimate import Verdict
from rigdyno.schema.record import Quality
from rigdyno.units import NS_PER_S, show_percent, show_seconds

Spoken = tuple[Verdict, str] | None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of one stream of steps. What is None wasn't measured, and no rule speaks about it."""

    rows: Rows  # one kind, one rank, warm-up included
    steady: Steady
    telemetry: Rows | None = None
    quality: Quality = field(default_factory=Quality)
    sampler_exit_code: int | None = None
    steps_name: str = "steps"  # "memmove steps", where there are several kinds

    @property
    def kept(self) -> Rows:
        return self.rows[self.steady.start :]

    @property
    def window(self) -> Span:
        return span_of(self.kept) if len(self.kept) else Span(0, 0)


def findings(evidence: Evidence) -> list[Finding]:
    """What each rule has to say. Without a step only their number can be judged, and the result."""
    spoken = [(code, rule(evidence)) for code, rule in RULES.items()]
    return [Finding(said[0], code, said[1]) for code, said in spoken if said is not None]


def too_few_steps(evidence: Evidence) -> Spoken:
    rows = len(evidence.kept)
    if rows >= thresholds.FEW_ROWS:
        return None
    if rows == 0:
        return "INVALID", f"there are no steady {evidence.steps_name}"
    return (
        "SUSPECT",
        f"too few steady {evidence.steps_name}: {rows}, fewer than {thresholds.FEW_ROWS}; try a larger --budget",
    )


def never_settled(evidence: Evidence) -> Spoken:
    if evidence.steady.settled or len(evidence.rows) < MIN_STEPS:  # then too_few_steps says it
        return None
    return "SUSPECT", f"the {evidence.steps_name} never settled: {evidence.steady.reason}"


def drifting(evidence: Evidence) -> Spoken:
    if not evidence.steady.settled or len(evidence.kept) == 0:
        return None
    change, certain = trend(step_seconds(evidence.kept))
    if not certain or abs(change) <= thresholds.DRIFT_CHANGE:
        return None
    way = "slower" if change > 0 else "faster"
    return "SUSPECT", f"the {evidence.steps_name} got {show_percent(abs(change))} {way} from begin to end"


def throttled(evidence: Evidence) -> Spoken:
    """A figure over a stream that lost speed for good is neither its burst nor its sustained rate."""
    if len(evidence.rows) == 0:
        return None
    over_time = soak(evidence.rows, evidence.telemetry)
    if not over_time.throttled:
        return None
    left = show_percent(over_time.sustained / over_time.burst)
    return "INVALID", f"throttled: the {evidence.steps_name} fell to {left} of their early rate and stayed there"


def other_tenants(evidence: Evidence) -> Spoken:
    """The gravest of what the detectors say; pressure only where the run queue can't be read."""
    aside = pushed_aside_share(evidence.telemetry, evidence.window)
    steal = mean_reading(evidence.telemetry, STEAL, evidence.window)
    said = [
        _graded(
            aside, thresholds.PUSHED_ASIDE_SUSPECT, thresholds.PUSHED_ASIDE_INVALID, "kept {} of a core from the steps"
        ),
        _graded(steal, thresholds.STEAL_SUSPECT, thresholds.STEAL_INVALID, "took {} of the machine (steal)"),
    ]
    if aside is None:
        pressure = mean_reading(evidence.telemetry, PRESSURE, evidence.window)
        said.append(_graded(pressure, thresholds.PRESSURE_SUSPECT, math.inf, "made tasks wait for {} of the time"))
    loud = [each for each in said if each is not None]
    return max(loud, key=lambda each: each[0] == "INVALID") if loud else None


def _graded(share: float | None, suspect: float, invalid: float, sentence: str) -> Spoken:
    if share is None or share < suspect:
        return None
    return "INVALID" if share >= invalid else "SUSPECT", f"other tenants {sentence.format(show_percent(share))}"


def clock_changes(evidence: Evidence) -> Spoken:
    found = readings(evidence.telemetry, CLOCK, evidence.window)
    if found is None or len(found.values) < 2 * thresholds.CLOCK_PARTS:
        return None
    levels = [float(np.median(part)) for part in np.array_split(found.values, thresholds.CLOCK_PARTS)]
    if min(levels) <= 0 or max(levels) / min(levels) - 1 <= thresholds.CLOCK_CHANGE:
        return None
    return "SUSPECT", f"the processor's clock changed between {min(levels):.0f} and {max(levels):.0f} MHz"


def dead_sampler(evidence: Evidence) -> Spoken:
    """Without telemetry nobody would know of other tenants."""
    if evidence.sampler_exit_code:
        return (
            "SUSPECT",
            f"the sampler died (exit code {evidence.sampler_exit_code}): disturbances may have gone unseen",
        )
    if evidence.telemetry is None or len(evidence.kept) == 0:
        return None
    begin, end = evidence.window
    at = evidence.telemetry["at_ns"]
    inside = at[(at > begin) & (at < end)]
    gap = int(np.diff(np.concatenate(([begin], inside, [end]))).max()) / NS_PER_S
    if gap <= thresholds.SAMPLER_GAP_SECONDS:
        return None
    return "SUSPECT", f"telemetry has a gap of {show_seconds(gap)}: disturbances may have gone unseen"


def wrong_result(evidence: Evidence) -> Spoken:
    if evidence.quality.correct is not False:
        return None
    return "INVALID", "the workload's own check says that its result is wrong"


def loss_not_finite(evidence: Evidence) -> Spoken:
    if evidence.quality.loss_finite is not False:
        return None
    return "INVALID", "the training loss isn't finite"


def loss_not_falling(evidence: Evidence) -> Spoken:
    first, last = evidence.quality.first_loss, evidence.quality.last_loss
    if first is None or last is None or not (math.isfinite(first) and math.isfinite(last)) or last < first:
        return None
    return "SUSPECT", f"the training loss didn't fall: {first:.4g} at first, {last:.4g} at last"


Rule = Callable[[Evidence], Spoken]

RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        too_few_steps,
        never_settled,
        drifting,
        throttled,
        other_tenants,
        clock_changes,
        dead_sampler,
        wrong_result,
        loss_not_finite,
        loss_not_falling,
    )
}
