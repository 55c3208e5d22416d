"""Whether a figure may be believed: one function a rule, all of them in one table.

A new rule is a function from Evidence to (severity, sentence) or None, and its name in RULES; its name is its code.
Those about the steps and their result stand here, those about what the machine did to them in disturbances.py. What
only the whole run can tell, whether a figure lies above the machine's own limit, is judged in limits.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rigdyno.analyse import thresholds
from rigdyno.analyse.correlation import independent_count
from rigdyno.analyse.disturbances import (
    clock_changes,
    clock_jumped,
    dead_sampler,
    memory_pressure,
    other_tenants,
    stopped,
    throttled,
)
from rigdyno.analyse.evidence import Evidence, Rule, Spoken
from rigdyno.analyse.steady import MIN_STEPS, trend
from rigdyno.analyse.streams import pace_seconds
from rigdyno.analyse.verdict import Finding, merged
from rigdyno.schema.participant import Participant
from rigdyno.units import show_bytes, show_percent, show_seconds


def findings(evidence: Evidence) -> list[Finding]:
    """What each rule has to say. Without a step only their number can be judged, and the result."""
    spoken = [(code, rule(evidence)) for code, rule in RULES.items()]
    return [Finding(said[0], code, said[1]) for code, said in spoken if said is not None]


def too_few_steps(evidence: Evidence) -> Spoken:
    rows = len(evidence.kept)
    if rows == 0:
        return "INVALID", f"there are no steady {evidence.steps_name}"
    if rows < thresholds.FEW_ROWS:
        few = f"{rows}, fewer than {thresholds.FEW_ROWS}"
        return "SUSPECT", f"too few steady {evidence.steps_name}: {few}{evidence.remedy}"
    return _too_few_independent(evidence)


def _too_few_independent(evidence: Evidence) -> Spoken:
    """Where a stream has no level, its steps depend on each other because of that, and other rules say so."""
    durations = pace_seconds(evidence.kept)
    if len(durations) < thresholds.CORRELATION_ROWS or not evidence.steady.settled:
        return None
    worth = independent_count(durations)
    if worth >= thresholds.FEW_INDEPENDENT or drifting(evidence) is not None:
        return None
    few = f"{len(durations)} rows depend on each other and are worth {worth:.1f} independent ones"
    return "SUSPECT", f"too few steady {evidence.steps_name}: {few}{evidence.remedy}"


def too_short(evidence: Evidence) -> Spoken:
    if len(evidence.kept) == 0 or evidence.seconds >= thresholds.LEAST_SECONDS:
        return None
    least = show_seconds(thresholds.LEAST_SECONDS)
    few = f"only {show_seconds(evidence.seconds)} of steady {evidence.steps_name}, less than {least}"
    return "SUSPECT", f"{few}{evidence.remedy}"


def never_settled(evidence: Evidence) -> Spoken:
    if evidence.steady.settled or len(evidence.rows) < MIN_STEPS:  # then too_few_steps says it
        return None
    return "SUSPECT", f"the {evidence.steps_name} never settled: {evidence.steady.reason}"


def drifting(evidence: Evidence) -> Spoken:
    if not evidence.steady.settled or len(evidence.kept) == 0:
        return None
    change, certain = trend(pace_seconds(evidence.kept))
    if not certain or abs(change) <= thresholds.DRIFT_CHANGE:
        return None
    way = "slower" if change > 0 else "faster"
    return "SUSPECT", f"the {evidence.steps_name} got {show_percent(abs(change))} {way} from begin to end"


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
    if evidence.quality.epsilon is not None:
        return None  # over a few steps of private training the noise decides it
    if first is None or last is None or not (math.isfinite(first) and math.isfinite(last)) or last < first:
        return None
    return "SUSPECT", f"the training loss didn't fall: {first:.4g} at first, {last:.4g} at last"


def beyond_memory(evidence: Evidence) -> Spoken:
    """A process may take more than those that an option was tried with."""
    taken = evidence.memory_bytes
    for option, allowed in evidence.largest.items():
        if taken is not None and taken > allowed:
            return "SUSPECT", f"it took {show_bytes(taken)}, and {option} was to fit into {show_bytes(allowed)}"
    return None


# Rules about what a whole node did: of several nodes, the one is named.
_ABOUT_THE_NODE = frozenset(
    rule.__name__
    for rule in (throttled, other_tenants, memory_pressure, stopped, clock_changes, clock_jumped, dead_sampler)
)


def over_ranks(ranks: Sequence[tuple[Participant, Sequence[Finding]]]) -> list[Finding]:
    """Each code once, with its gravest sentence; where not all are meant, with who is."""
    everything = merged(finding for _, found in ranks for finding in found)
    return [_naming(finding, ranks) for finding in everything]


def _naming(finding: Finding, ranks: Sequence[tuple[Participant, Sequence[Finding]]]) -> Finding:
    word = "node" if finding.code in _ABOUT_THE_NODE else "rank"
    everybody = {_number(who, word) for who, _ in ranks}
    meant = {_number(who, word) for who, found in ranks if any(each.code == finding.code for each in found)}
    if meant == everybody:
        return finding
    named = f"{word}{'s' if len(meant) > 1 else ''} {', '.join(map(str, sorted(meant)))}"
    return Finding(finding.severity, finding.code, f"{named}: {finding.sentence}")


def _number(who: Participant, word: str) -> int:
    return who.node if word == "node" else who.rank or 0


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        too_few_steps,
        too_short,
        never_settled,
        drifting,
        throttled,
        other_tenants,
        memory_pressure,
        stopped,
        clock_changes,
        clock_jumped,
        dead_sampler,
        wrong_result,
        loss_not_finite,
        loss_not_falling,
        beyond_memory,
    )
}
