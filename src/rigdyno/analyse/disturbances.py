"""Validity rules about what the machine did to the steps: other tenants, throttling, memory, signals, clocks."""

from __future__ import annotations

import math

import numpy as np

from rigdyno.analyse import thresholds
from rigdyno.analyse.evidence import Evidence, Spoken, graded, gravest
from rigdyno.analyse.soak import soak
from rigdyno.analyse.streams import row_seconds
from rigdyno.analyse.telemetry import (
    CLOCK,
    MAJOR_FAULTS,
    MEMORY_PRESSURE,
    PRESSURE,
    STEAL,
    STOPPED,
    SWITCHES,
    THROTTLED,
    pushed_aside_share,
    readings,
)
from rigdyno.schema.samples import CLOCK_JUMPED
from rigdyno.units import NS_PER_S, show_percent, show_seconds


def throttled(evidence: Evidence) -> Spoken:
    """A figure over a stream that lost speed for good is neither its burst nor its sustained rate. A quota that holds
    all the time is a condition like any other, but one must know of it."""
    if len(evidence.rows) == 0:
        return None
    over_time = soak(evidence.rows, evidence.telemetry)
    if over_time.throttled:
        left = show_percent(over_time.sustained / over_time.burst)
        return "INVALID", f"throttled: the {evidence.steps_name} fell to {left} of their early rate and stayed there"
    quota = f"throttled: the quota of its own control group kept {{}} of a core from the {evidence.steps_name}"
    return graded(evidence.mean(THROTTLED), thresholds.QUOTA_SUSPECT, math.inf, f"{quota}; try fewer --threads")


def other_tenants(evidence: Evidence) -> Spoken:
    """The gravest of what the detectors say; those that can't tell whose fault it is, only where the run queue can't
    be read."""
    aside = pushed_aside_share(evidence.telemetry, evidence.window)
    kept = f"other tenants kept {{}} of a core from the {evidence.steps_name}"
    took = "other tenants took {} of the machine (steal)"
    said = [
        graded(aside, thresholds.PUSHED_ASIDE_SUSPECT, thresholds.PUSHED_ASIDE_INVALID, kept),
        graded(evidence.mean(STEAL), thresholds.STEAL_SUSPECT, thresholds.STEAL_INVALID, took),
    ]
    return gravest(said if aside is not None else [*said, *_signs_of_tenants(evidence)])


def _signs_of_tenants(evidence: Evidence) -> list[Spoken]:
    switches = evidence.mean(SWITCHES)
    waited = "other tenants made tasks wait for {} of the time"
    switched = f"other tenants took a core from the worker {switches or 0.0:.0f} times a second"
    return [
        graded(evidence.mean(PRESSURE), thresholds.PRESSURE_SUSPECT, math.inf, waited),
        graded(switches, thresholds.SWITCHES_SUSPECT, math.inf, switched),
    ]


def memory_pressure(evidence: Evidence) -> Spoken:
    """The kernel's figure is the machine's: it condemns only where the worker itself had to fetch pages again."""
    stalled, faults = evidence.mean(MEMORY_PRESSURE), evidence.mean(MAJOR_FAULTS)
    own = faults is not None and faults >= thresholds.MAJOR_FAULTS_SUSPECT
    fetched = f"the worker fetched pages from the disk {faults or 0.0:.0f} times a second"
    if stalled is None:
        return ("SUSPECT", f"memory was short: {fetched}") if own else None
    sentence = "memory was short: tasks waited for it {} of the time" + (f", and {fetched}" if own else "")
    invalid = thresholds.MEMORY_PRESSURE_INVALID if own else math.inf
    return graded(stalled, thresholds.MEMORY_PRESSURE_SUSPECT, invalid, sentence)


def stopped(evidence: Evidence) -> Spoken:
    share = evidence.mean(STOPPED)
    if not share:
        return None
    whole = evidence.seconds
    sentence = f"the worker was stopped for about {show_seconds(share * whole)} of {show_seconds(whole)}"
    return graded(share, 0.0, thresholds.STOPPED_INVALID, f"{sentence}, by a signal or a debugger")


def clock_changes(evidence: Evidence) -> Spoken:
    found = readings(evidence.telemetry, CLOCK, evidence.window)
    if found is None or len(found.values) < 2 * thresholds.CLOCK_PARTS:
        return None
    levels = [float(np.median(part)) for part in np.array_split(found.values, thresholds.CLOCK_PARTS)]
    if min(levels) <= 0 or max(levels) / min(levels) - 1 <= thresholds.CLOCK_CHANGE:
        return None
    return "SUSPECT", f"the processor's clock changed between {min(levels):.0f} and {max(levels):.0f} MHz"


def clock_jumped(evidence: Evidence) -> Spoken:
    """Whether the steps' clock or the wall clock was wrong can't be told. Briefly, it does little harm."""
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
    return graded(float(seconds[hit].sum() / seconds.sum()), 0.0, thresholds.CLOCK_JUMPED_INVALID, sentence)


def dead_sampler(evidence: Evidence) -> Spoken:
    """Without telemetry nobody would know of other tenants."""
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
