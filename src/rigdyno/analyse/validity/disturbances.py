"""Validity rules about disturbances: other tenants, throttling of CPU and GPU, memory pressure, signals, clocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rigdyno.analyse.soak import soak
from rigdyno.analyse.streams import (
    CLOCK,
    MAJOR_FAULTS,
    MEMORY_PRESSURE,
    PRESSURE,
    STEAL,
    STOPPED,
    SWITCHES,
    THROTTLED,
    Rows,
    TimeSpan,
    pushed_aside_share,
    readings,
    row_seconds,
)
from rigdyno.analyse.validity import thresholds
from rigdyno.analyse.validity.evidence import Evidence, Judgement, grade, gravest
from rigdyno.analyse.validity.thresholds import CARD_THROTTLED
from rigdyno.analyse.validity.verdict import Finding
from rigdyno.base.units import NS_PER_S, show_percent, show_seconds
from rigdyno.schema.samples import CLOCK_JUMPED, Header

# Bits of NVML's reasons for a lower clock. The power cap (0x4) is normal for a GPU at full load.
_REASONS = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "a power brake"}


def throttled_cards(telemetry: Sequence[tuple[Header, Rows]], windows: Mapping[int, TimeSpan]) -> list[Finding]:
    """Report GPUs that throttled in the steady window of their node, even if other work heated them."""
    for header, rows in telemetry:
        window = windows.get(header.participant.node)
        for title, reason, share in _throttle_shares(header, rows, window) if window is not None else ():
            if share >= CARD_THROTTLED:
                sentence = f"throttled: {title} lowered its clock for {reason} in {show_percent(share)} of the readings"
                return [Finding("SUSPECT", "card_throttled", sentence)]
    return []


def _throttle_shares(header: Header, rows: Rows, window: TimeSpan) -> Iterator[tuple[str, str, float]]:
    for channel in header.channels:
        found = readings(rows, channel.name, window) if channel.quantity == "throttle" else None
        if found is None:
            continue
        bits = found.values.astype(np.uint64)
        for reason in dict.fromkeys(_REASONS.values()):
            mask = np.uint64(sum(bit for bit, name in _REASONS.items() if name == reason))
            yield channel.title, reason, float(np.mean((bits & mask) != 0))


def throttled(evidence: Evidence) -> Judgement:
    """Report a lasting loss of speed: the figure is then neither the burst nor the sustained rate.

    A CPU quota that applies all the time is no fault, but is reported.
    """
    if len(evidence.rows) == 0:
        return None
    over_time = soak(evidence.rows, evidence.telemetry)
    if over_time.throttled:
        left = show_percent(over_time.sustained / over_time.burst)
        return "INVALID", f"throttled: the {evidence.steps_name} fell to {left} of their early rate and stayed there"
    quota = f"throttled: the quota of its own control group kept {{}} of a core from the {evidence.steps_name}"
    return grade(evidence.mean(THROTTLED), thresholds.QUOTA_SUSPECT, math.inf, f"{quota}; try fewer --threads")


def other_tenants(evidence: Evidence) -> Judgement:
    """Report the gravest sign of other tenants; ambiguous signs count only if the run queue can't be read."""
    aside = pushed_aside_share(evidence.telemetry, evidence.window)
    kept = f"other tenants kept {{}} of a core from the {evidence.steps_name}"
    took = "other tenants took {} of the machine (steal)"
    said = [
        grade(aside, thresholds.PUSHED_ASIDE_SUSPECT, thresholds.PUSHED_ASIDE_INVALID, kept),
        grade(evidence.mean(STEAL), thresholds.STEAL_SUSPECT, thresholds.STEAL_INVALID, took),
    ]
    return gravest(said if aside is not None else [*said, *_signs_of_tenants(evidence)])


def _signs_of_tenants(evidence: Evidence) -> list[Judgement]:
    switches = evidence.mean(SWITCHES)
    waited = "other tenants made tasks wait for {} of the time"
    switched = f"other tenants took a core from the worker {switches or 0.0:.0f} times a second"
    return [
        grade(evidence.mean(PRESSURE), thresholds.PRESSURE_SUSPECT, math.inf, waited),
        grade(switches, thresholds.SWITCHES_SUSPECT, math.inf, switched),
    ]


def memory_pressure(evidence: Evidence) -> Judgement:
    """Report memory pressure. It is that of the machine, so INVALID needs major faults of the worker itself."""
    stalled, faults = evidence.mean(MEMORY_PRESSURE), evidence.mean(MAJOR_FAULTS)
    own = faults is not None and faults >= thresholds.MAJOR_FAULTS_SUSPECT
    fetched = f"the worker fetched pages from the disk {faults or 0.0:.0f} times a second"
    if stalled is None:
        return ("SUSPECT", f"memory was short: {fetched}") if own else None
    sentence = "memory was short: tasks waited for it {} of the time" + (f", and {fetched}" if own else "")
    invalid = thresholds.MEMORY_PRESSURE_INVALID if own else math.inf
    return grade(stalled, thresholds.MEMORY_PRESSURE_SUSPECT, invalid, sentence)


def stopped(evidence: Evidence) -> Judgement:
    share = evidence.mean(STOPPED)
    if not share:
        return None
    whole = evidence.seconds
    sentence = f"the worker was stopped for about {show_seconds(share * whole)} of {show_seconds(whole)}"
    return grade(share, 0.0, thresholds.STOPPED_INVALID, f"{sentence}, by a signal or a debugger")


def clock_changes(evidence: Evidence) -> Judgement:
    found = readings(evidence.telemetry, CLOCK, evidence.window)
    if found is None or len(found.values) < 2 * thresholds.CLOCK_PARTS:
        return None
    levels = [float(np.median(part)) for part in np.array_split(found.values, thresholds.CLOCK_PARTS)]
    if min(levels) <= 0 or max(levels) / min(levels) - 1 <= thresholds.CLOCK_CHANGE:
        return None
    return "SUSPECT", f"the processor's clock changed between {min(levels):.0f} and {max(levels):.0f} MHz"


def clock_jumped(evidence: Evidence) -> Judgement:
    """Report steps whose clock disagreed with the wall clock; either may be wrong, and short jumps do little harm."""
    kept = evidence.kept
    hit = (kept["flags"] & CLOCK_JUMPED) != 0
    if not hit.any():
        return None
    seconds = row_seconds(kept)
    count, whole = int(kept["steps"][hit].sum()), int(kept["steps"].sum())
    sentence = (
        f"the clock jumped, or the machine slept: the time of {count:,} of {whole:,} {evidence.steps_name} "
        "doesn't agree with the wall clock"
    )
    return grade(float(seconds[hit].sum() / seconds.sum()), 0.0, thresholds.CLOCK_JUMPED_INVALID, sentence)


def dead_sampler(evidence: Evidence) -> Judgement:
    """Report missing telemetry, without which other tenants go unseen."""
    if evidence.sampler_exit_code:
        return (
            "SUSPECT",
            f"the sampler died (exit code {evidence.sampler_exit_code}): disturbances may have gone unseen",
        )
    if evidence.unsampled:
        return "SUSPECT", "there is no telemetry: disturbances may have gone unseen"
    if evidence.telemetry is None or len(evidence.kept) == 0:
        return None
    begin, end = evidence.window
    at = evidence.telemetry["at_ns"]
    inside = at[(at > begin) & (at < end)]
    gap = int(np.diff(np.concatenate(([begin], inside, [end]))).max()) / NS_PER_S
    if gap <= thresholds.SAMPLER_GAP_SECONDS:
        return None
    return "SUSPECT", f"telemetry has a gap of {show_seconds(gap)}: disturbances may have gone unseen"
