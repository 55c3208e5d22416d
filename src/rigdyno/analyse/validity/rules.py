"""The table of all validity rules, and the rules about the steps and their result.

To add a rule, write a function from Evidence to (severity, sentence) or None and add it to RULES; its name is its code.
State its thresholds and what they mean in thresholds.py, which has the table of all rules.
Rules about disturbances are in disturbances.py. Whether a figure is above the machine's own limit is only known for a
whole run, and is judged in verdict.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rigdyno.analyse.statistics import independent_count
from rigdyno.analyse.steady import MIN_STEPS, trend
from rigdyno.analyse.streams import pace_seconds
from rigdyno.analyse.validity import thresholds
from rigdyno.analyse.validity.disturbances import (
    clock_changes,
    clock_jumped,
    dead_sampler,
    memory_pressure,
    other_tenants,
    stopped,
    throttled,
)
from rigdyno.analyse.validity.evidence import Evidence, Judgement, Rule
from rigdyno.analyse.validity.verdict import Finding, merge_findings
from rigdyno.base.units import show_bytes, show_percent, show_seconds
from rigdyno.schema.spec import Participant

# Rules about a whole node: their sentences name nodes instead of ranks.
_ABOUT_THE_NODE = frozenset(
    rule.__name__
    for rule in (throttled, other_tenants, memory_pressure, stopped, clock_changes, clock_jumped, dead_sampler)
)


def findings(evidence: Evidence) -> list[Finding]:
    """Return the findings of all rules."""
    spoken = [(code, rule(evidence)) for code, rule in RULES.items()]
    return [Finding(said[0], code, said[1]) for code, said in spoken if said is not None]


def too_few_steps(evidence: Evidence) -> Judgement:
    rows = len(evidence.kept)
    if rows == 0:
        return "INVALID", f"there are no steady {evidence.steps_name}"
    if rows < thresholds.FEW_ROWS:
        few = f"{rows}, fewer than {thresholds.FEW_ROWS}"
        return "SUSPECT", f"too few steady {evidence.steps_name}: {few}{evidence.remedy}"
    return _too_few_independent(evidence)


def _too_few_independent(evidence: Evidence) -> Judgement:
    """Judge the effective number of steps. Streams without one level are left to other rules."""
    durations = pace_seconds(evidence.kept)
    if len(durations) < thresholds.CORRELATION_ROWS or not evidence.steady.settled:
        return None
    worth = independent_count(durations)
    if worth >= thresholds.FEW_INDEPENDENT or drifting(evidence) is not None:
        return None
    few = f"{len(durations)} rows depend on each other and are worth {worth:.1f} independent ones"
    return "SUSPECT", f"too few steady {evidence.steps_name}: {few}{evidence.remedy}"


def too_short(evidence: Evidence) -> Judgement:
    if len(evidence.kept) == 0 or evidence.seconds >= thresholds.LEAST_SECONDS:
        return None
    least = show_seconds(thresholds.LEAST_SECONDS)
    few = f"only {show_seconds(evidence.seconds)} of steady {evidence.steps_name}, less than {least}"
    return "SUSPECT", f"{few}{evidence.remedy}"


def never_settled(evidence: Evidence) -> Judgement:
    if evidence.steady.settled or len(evidence.rows) < MIN_STEPS:  # too_few_steps reports the latter
        return None
    return "SUSPECT", f"the {evidence.steps_name} never settled: {evidence.steady.reason}"


def drifting(evidence: Evidence) -> Judgement:
    if not evidence.steady.settled or len(evidence.kept) == 0:
        return None
    change, certain = trend(pace_seconds(evidence.kept))
    if not certain or abs(change) <= thresholds.DRIFT_CHANGE:
        return None
    way = "slower" if change > 0 else "faster"
    return "SUSPECT", f"the {evidence.steps_name} got {show_percent(abs(change))} {way} from begin to end"


def wrong_result(evidence: Evidence) -> Judgement:
    if evidence.quality.correct is not False:
        return None
    return "INVALID", "the workload's own check says that its result is wrong"


def loss_not_finite(evidence: Evidence) -> Judgement:
    if evidence.quality.loss_finite is not False:
        return None
    return "INVALID", "the training loss isn't finite"


def loss_not_falling(evidence: Evidence) -> Judgement:
    first, last = evidence.quality.first_loss, evidence.quality.last_loss
    if evidence.quality.epsilon is not None:
        return None  # over a few steps of private training, noise decides it
    if first is None or last is None or not (math.isfinite(first) and math.isfinite(last)) or last < first:
        return None
    return "SUSPECT", f"the training loss didn't fall: {first:.4g} at first, {last:.4g} at last"


def beyond_memory(evidence: Evidence) -> Judgement:
    """Report a process that took more memory than the tries of a search for the largest value."""
    taken = evidence.memory_bytes
    for option, allowed in evidence.largest.items():
        if taken is not None and taken > allowed:
            return "SUSPECT", f"it took {show_bytes(taken)}, and {option} was to fit into {show_bytes(allowed)}"
    return None


def over_ranks(ranks: Sequence[tuple[Participant, Sequence[Finding]]]) -> list[Finding]:
    """Merge the findings of ranks, each code once with its gravest sentence, and name ranks if not all are meant."""
    everything = merge_findings(finding for _, found in ranks for finding in found)
    return [_name_participants(finding, ranks) for finding in everything]


def _name_participants(finding: Finding, ranks: Sequence[tuple[Participant, Sequence[Finding]]]) -> Finding:
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
