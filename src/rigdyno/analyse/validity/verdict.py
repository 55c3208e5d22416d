"""Turn findings into a verdict, and check figures against the limits that the same run measured.

This module imports no numpy, so that commands which only read verdicts start quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from rigdyno.analyse.validity.thresholds import IMPRECISE, LIMIT_MARGIN
from rigdyno.base.errors import BadValue
from rigdyno.base.units import rate_unit, show_percent, show_scaled
from rigdyno.schema.estimate import Estimate, Reason, Validity, Verdict
from rigdyno.schema.measured import KindFigures, Measurement

RULE_VERSION = 4  # raise it when a rule or threshold changes: it is part of the key of cached verdicts

# Reasons about the precision of a single process. From three processes on, the spread between them says more: if each
# had a chance of one in ten, six processes would be SUSPECT every other time. A reason that nearly all processes have
# is not by chance: it is a property of the workload.
STEADINESS = frozenset(("too_few_steps", "too_short", "never_settled", "drifting", "imprecise"))

ENOUGH_PROCESSES = 3

NEARLY_ALL = 0.75

SEVERITIES: tuple[Verdict, ...] = ("VALID", "SUSPECT", "INVALID")

MEMORY_WORKLOAD = "memory_bandwidth"

CACHES_TO_EXCEED = 4  # last-level caches: of less data, a part doesn't come from memory


@dataclass(frozen=True)
class Finding:
    """The result of a rule that applies: its severity, its code and a sentence."""

    severity: Verdict
    code: str
    sentence: str


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=SEVERITIES.index, default="VALID")


def validity_of(findings: Sequence[Finding]) -> Validity:
    """Return the verdict of findings, with the gravest reasons first."""
    ordered = sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))
    return Validity(
        verdict=worst(finding.severity for finding in findings),
        reasons=tuple(Reason(code=finding.code, sentence=finding.sentence) for finding in ordered),
        rule_version=RULE_VERSION,
    )


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return each code once, with its gravest sentence, in the order of first appearance."""
    by_code: dict[str, Finding] = {}
    for finding in findings:
        known = by_code.get(finding.code)
        if known is None or worst((known.severity, finding.severity)) != known.severity:
            by_code[finding.code] = finding
    return list(by_code.values())


def merge_over_processes(processes: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Return each code once, with the number of processes that have it.

    A reason about the steadiness of single processes counts only if nearly all have it: otherwise the interval of
    their mean covers it.
    """
    every = merge_findings(finding for process in processes for finding in process)
    if len(processes) == 1:
        return every
    count = len(processes)
    hit = {finding.code: sum(any(f.code == finding.code for f in p) for p in processes) for finding in every}
    return [
        Finding(finding.severity, finding.code, f"{finding.sentence} ({hit[finding.code]} of {count} processes)")
        for finding in every
        if count < ENOUGH_PROCESSES or not _is_covered_by_interval(finding, hit[finding.code] / count)
    ]


def _is_covered_by_interval(finding: Finding, share: float) -> bool:
    """Tell whether the interval over processes covers a finding that this share of them has.

    It always covers the width of a process's own interval.
    """
    if finding.code not in STEADINESS or finding.severity != "SUSPECT":
        return False
    return finding.code == "imprecise" or share <= NEARLY_ALL


def check_limit(figure: Estimate, limit: Estimate) -> Finding | None:
    """Report a figure above a physical limit: it measures something other than it claims."""
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


def check_precision(figure: Estimate, what: str = "steps") -> Finding | None:
    """Report an interval so wide that the figure says almost nothing."""
    if figure.interval is None or figure.value <= 0:
        return None  # a single row has no interval; too_few_steps reports it
    low, high = figure.interval
    if max(high - figure.value, figure.value - low) / figure.value <= IMPRECISE:
        return None
    interval = f"{show_scaled(low, figure.unit)} to {show_scaled(high, figure.unit)}"
    return Finding("SUSPECT", "imprecise", f"the {what} differ so much that their rate may be {interval}")


def apply_limit(validity: Validity, figure: Estimate, limit: Estimate) -> Validity:
    """Add the rule about the limit, which is known later than the figure."""
    finding = check_limit(figure, limit)
    if finding is None:
        return validity
    reason = Reason(code=finding.code, sentence=finding.sentence)
    return Validity(verdict=finding.severity, reasons=(reason, *validity.reasons), rule_version=RULE_VERSION)


def memory_limit(measurements: Iterable[Measurement]) -> Estimate | None:
    """Return the highest memory bandwidth that this run measured; INVALID ones would condemn good figures."""
    found = [
        _best_process(measurement.kinds[measurement.best_kind])
        for measurement in measurements
        if measurement.spec.workload == MEMORY_WORKLOAD and measurement.best_kind is not None
        if measurement.status != "INVALID"
    ]
    return max(found, key=lambda limit: limit.value, default=None)


def _best_process(figures: KindFigures) -> Estimate:
    """Return the rate of the best process.

    Memory bandwidth of a shared machine changes by half within minutes, so the mean over processes is no limit.
    """
    mean, best = figures.throughput, max(figures.process_rates, default=figures.throughput.value)
    if best <= mean.value:
        return mean
    low, high = mean.ends
    method = f"the best of {len(figures.process_rates)} processes"
    return replace(mean, value=best, low=low, high=max(high, best), confidence=None, method=method)


def fits_the_cache(measurement: Measurement) -> bool:
    """Tell whether the data of an item fits into the cache, so that memory bandwidth is no limit."""
    cache = measurement.records[-1].system.cpu.last_level_cache_bytes
    per_item = measurement.facts.per_item.get("byte")
    on_host = measurement.spec.device == "cpu"
    return on_host and cache is not None and per_item is not None and per_item < CACHES_TO_EXCEED * cache


def bytes_per_s(measurement: Measurement) -> Estimate | None:
    """Return the bytes per second that the steps move; None if the bytes of an item are unknown."""
    rate, per_item = measurement.throughput(), measurement.facts.per_item.get("byte")
    if per_item is None or not isinstance(rate, Estimate):
        return None
    return rate.scaled(per_item, rate_unit("byte"))


def apply_limits(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements with verdicts that take the limits of the whole run into account."""
    limit = memory_limit(measurements)
    return [_apply_limit_to(measurement, limit) for measurement in measurements]


def _apply_limit_to(measurement: Measurement, limit: Estimate | None) -> Measurement:
    moved = bytes_per_s(measurement)
    if limit is None or moved is None or measurement.validity is None or fits_the_cache(measurement):
        return measurement
    return replace(measurement, validity=apply_limit(measurement.validity, moved, limit))
