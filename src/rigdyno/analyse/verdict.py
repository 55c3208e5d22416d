"""From findings to a verdict. Needs no numpy: what only looks at verdicts answers at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rigdyno.analyse.thresholds import IMPRECISE
from rigdyno.errors import BadValue
from rigdyno.schema.estimate import Estimate, Reason, Validity, Verdict
from rigdyno.units import show_percent, show_scaled

RULE_VERSION = 4  # raised whenever a rule or a threshold changes: a verdict is cached only with it

# How far a figure's lower bound may exceed the upper bound of a physical limit: the limit is itself a measurement of
# the same noisy machine, by a kernel that may not be the best possible one.
LIMIT_MARGIN = 0.05

# Reasons that say how well one process is known by its own steps. From three processes on, the spread between them says
# more: with a chance of one in ten for each, six processes would otherwise be SUSPECT every other time. What nearly all
# of them show is no chance: it belongs to what is measured.
STEADINESS = frozenset(("too_few_steps", "too_short", "never_settled", "drifting", "imprecise"))
ENOUGH_PROCESSES = 3
NEARLY_ALL = 0.75

SEVERITIES: tuple[Verdict, ...] = ("VALID", "SUSPECT", "INVALID")


@dataclass(frozen=True)
class Finding:
    """That a rule spoke: how much it weighs, and its sentence."""

    severity: Verdict
    code: str
    sentence: str


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=SEVERITIES.index, default="VALID")


def validity_of(findings: Sequence[Finding]) -> Validity:
    """Gravest reasons first."""
    ordered = sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))
    return Validity(
        verdict=worst(finding.severity for finding in findings),
        reasons=tuple(Reason(code=finding.code, sentence=finding.sentence) for finding in ordered),
        rule_version=RULE_VERSION,
    )


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Each code once, with its gravest sentence, in the order of first appearance."""
    by_code: dict[str, Finding] = {}
    for finding in findings:
        known = by_code.get(finding.code)
        if known is None or worst((known.severity, finding.severity)) != known.severity:
            by_code[finding.code] = finding
    return list(by_code.values())


def merged_over_processes(processes: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Each code once; says in how many of the processes. What concerns the steadiness of single processes counts if it
    holds for nearly all of them: else the interval of their mean tells what it does to the figure."""
    every = merged(finding for process in processes for finding in process)
    if len(processes) == 1:
        return every
    count = len(processes)
    hit = {finding.code: sum(any(f.code == finding.code for f in p) for p in processes) for finding in every}
    return [
        Finding(finding.severity, finding.code, f"{finding.sentence} ({hit[finding.code]} of {count} processes)")
        for finding in every
        if count < ENOUGH_PROCESSES or not _is_covered(finding, hit[finding.code] / count)
    ]


def _is_covered(finding: Finding, share: float) -> bool:
    """Whether the interval over processes says what this would say of so many of them. It always does of one thing: how
    far a process's own interval reaches."""
    if finding.code not in STEADINESS or finding.severity != "SUSPECT":
        return False
    return finding.code == "imprecise" or share <= NEARLY_ALL


def above_limit(figure: Estimate, limit: Estimate) -> Finding | None:
    """A figure that physics forbids measures something else than it says."""
    if figure.unit != limit.unit:
        raise BadValue(f"a figure in {figure.unit} can't be held against a limit in {limit.unit}")
    least, most = figure.ends[0], limit.ends[1]
    if least <= most * (1 + LIMIT_MARGIN):
        return None
    excess = show_percent(least / most - 1)
    sentence = (
        f"at least {show_scaled(least, figure.unit)} is {excess} above this machine's own limit "
        f"of at most {show_scaled(most, limit.unit)}"
    )
    return Finding("INVALID", "above_limit", sentence)


def imprecise(figure: Estimate, what: str = "steps") -> Finding | None:
    """An interval so wide that the figure in its middle says next to nothing."""
    if figure.interval is None or figure.value <= 0:
        return None  # a single row has no interval: its number is what is said about it
    low, high = figure.interval
    if max(high - figure.value, figure.value - low) / figure.value <= IMPRECISE:
        return None
    interval = f"{show_scaled(low, figure.unit)} to {show_scaled(high, figure.unit)}"
    return Finding("SUSPECT", "imprecise", f"the {what} differ so much that their rate may be {interval}")


def against_limit(validity: Validity, figure: Estimate, limit: Estimate) -> Validity:
    """The validity with this one rule added, for whoever learns the limit later than the figure."""
    finding = above_limit(figure, limit)
    if finding is None:
        return validity
    reason = Reason(code=finding.code, sentence=finding.sentence)
    return Validity(verdict=finding.severity, reasons=(reason, *validity.reasons), rule_version=RULE_VERSION)
