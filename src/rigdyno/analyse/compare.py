"""Stored runs held against each other: honestly weaker than a duel, because they ran one after the other.

What can't be compared says why; it never becomes a ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rigdyno.analyse.answers import MARGIN, answer_to, energy_answer, energy_words, in_favour, in_words
from rigdyno.analyse.differences import differences
from rigdyno.analyse.matching import Both, are_alike, matched, name_of
from rigdyno.analyse.statistics import log_ratio_estimate
from rigdyno.schema.comparison import Answer, Comparison
from rigdyno.schema.energy import EnergyFigures
from rigdyno.schema.estimate import Estimate, Missing, Reason
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import ENERGY_PER_ITEM, THROUGHPUT, Metric
from rigdyno.units import show_percent

ENOUGH_PROCESSES = 3  # two have an interval too, but one that reaches very far


@dataclass(frozen=True)
class Sides:
    """How the two runs are called, and what counts as a difference between them."""

    baseline: str
    candidate: str
    margin: float = MARGIN
    noise: float | None = None  # the machine's own, as a share; None: not measured

    def named(self, both: Both) -> tuple[tuple[str, Measurement], tuple[str, Measurement]]:
        return (self.baseline, both.baseline), (self.candidate, both.candidate)


def compare(baseline: Sequence[Measurement], candidate: Sequence[Measurement], sides: Sides) -> list[Comparison]:
    """One for each kind of step of each configuration; at the end those that only one side has."""
    found = matched(baseline, candidate)
    alone = [(sides.baseline, one) for one in found.only_baseline]
    alone += [(sides.candidate, one) for one in found.only_candidate]
    return [
        *(comparison for both in found.pairs for comparison in _of_each_kind(both, sides)),
        *(not_comparable(name_of(one.spec), sides, _only_in(name)) for name, one in alone),
    ]


def regressions(comparisons: Sequence[Comparison], share: float) -> list[Comparison]:
    """Where the candidate is slower by more than that share with its whole interval, and beyond the margin."""
    return [
        each
        for each in comparisons
        if each.answer == "slower" and isinstance(each.ratio, Estimate)
        if in_favour(each.ratio, each.metric).ends[1] < 1 - share
    ]


def _name_of(both: Both, kind: str | None = None) -> str:
    """What a search came to on one side is no name for both: the value is among what differs."""
    one, two = both.baseline.spec, both.candidate.spec
    return name_of(one, kind, rules_alone=any(one.options.get(name) != two.options.get(name) for name in one.largest))


def _of_each_kind(both: Both, sides: Sides) -> Iterator[Comparison]:
    refusal = refusal_of(both, sides)
    if refusal is not None:
        yield not_comparable(_name_of(both), sides, refusal, both)
        return
    kinds = list(dict.fromkeys((*both.baseline.kinds, *both.candidate.kinds)))
    for kind in kinds:
        what = _name_of(both, kind if len(kinds) > 1 else None)
        having = [name for name, side in sides.named(both) if kind in side.kinds]
        if len(having) == 2:
            yield _ratio(both, kind, what, sides)
            yield from _energy_ratio(both, kind, what, sides)
        else:
            yield not_comparable(what, sides, _only_in(having[0]), both)


def _only_in(name: str) -> Reason:
    return Reason(code="only_in_one", sentence=f"measured only in {name}")


def refusal_of(both: Both, sides: Sides) -> Reason | None:
    """Why there is no ratio; the first reason that holds."""
    return next((reason for rule in REFUSALS if (reason := rule(both, sides)) is not None), None)


def _no_figure(both: Both, sides: Sides) -> Reason | None:
    for name, side in sides.named(both):
        if side.status in ("FAILED", "SKIPPED"):
            ended = side.status.lower()
            return Reason(code=ended, sentence=f"{ended} in {name}: {side.why_missing()}")
    return None


def _invalid(both: Both, sides: Sides) -> Reason | None:
    for name, side in sides.named(both):
        if side.status == "INVALID":
            return Reason(code="invalid", sentence=f"INVALID in {name}: {_why(side)}")
    return None


def _why(side: Measurement) -> str:
    reasons = side.validity.reasons if side.validity is not None else ()
    return "; ".join(reason.sentence for reason in reasons)


def _other_unit(both: Both, _sides: Sides) -> Reason | None:
    one, two = both.baseline.facts.unit, both.candidate.facts.unit
    return None if one == two else Reason(code="different_units", sentence=f"{one}s and {two}s have no ratio")


def _other_version(both: Both, _sides: Sides) -> Reason | None:
    versions = [sorted({record.benchmark_version for record in side.records}) for side in both]
    if versions[0] == versions[1] and len(versions[0]) == 1:
        return None
    one, two = (" and ".join(map(str, found)) for found in versions)
    sentence = f"version {one} of this workload and version {two} measure different things; measure both anew"
    return Reason(code="different_versions", sentence=sentence)


REFUSALS: tuple[Callable[[Both, Sides], Reason | None], ...] = (_no_figure, _other_unit, _other_version, _invalid)


def _ratio(both: Both, kind: str, what: str, sides: Sides) -> Comparison:
    one, two = (side.kinds[kind] for side in both)
    metric, ratio = THROUGHPUT.in_unit(one.throughput.unit), log_ratio_estimate(two.process_rates, one.process_rates)
    speeds, margin = in_favour(ratio, metric), max(sides.margin, sides.noise or 0.0)
    answer = answer_to(speeds, margin)
    told = Told(what, metric, ratio, (one.throughput, two.throughput), margin, answer, in_words(what, speeds, answer))
    return _comparison(both, sides, told)


def _energy_ratio(both: Both, kind: str, what: str, sides: Sides) -> Iterator[Comparison]:
    """Where both sides have it, by meters that see as much. The machine's own noise was measured in time, not in
    joules: the margin is the given one."""
    before, after = (side.energy for side in both)
    one, two = (side.kinds[kind].energy for side in both)
    if one is None or two is None or not isinstance(before, EnergyFigures) or not isinstance(after, EnergyFigures):
        return
    name = f"{what}, energy"
    if before.whole != after.whole:
        sentence = f"{before.source} and {after.source} don't measure the same part of a rig"
        yield not_comparable(name, sides, Reason(code="different_meters", sentence=sentence), both)
        return
    ratio = log_ratio_estimate(after.process_per_item, before.process_per_item)
    answer, metric = energy_answer(ratio, sides.margin), ENERGY_PER_ITEM.in_unit(one.unit)
    told = Told(name, metric, ratio, (one, two), sides.margin, answer, energy_words(what, ratio, answer))
    yield _comparison(both, sides, told)


class Told(NamedTuple):
    """What there is to say about one ratio."""

    what: str
    metric: Metric
    ratio: Estimate
    figures: tuple[Estimate, Estimate]
    margin: float
    answer: Answer
    sentence: str


def _comparison(both: Both, sides: Sides, told: Told) -> Comparison:
    return Comparison(
        what=told.what,
        metric=told.metric,
        baseline=sides.baseline,
        candidate=sides.candidate,
        ratio=told.ratio,
        rates=told.figures,
        margin=told.margin,
        answer=told.answer,
        sentence=told.sentence,
        reasons=tuple(_weaknesses(both, told.ratio, sides)),
        differences=_differences(both),
    )


def _differences(both: Both) -> tuple[str, ...]:
    return differences(both.baseline.records[0], both.candidate.records[0])


def _weaknesses(both: Both, ratio: Estimate, sides: Sides) -> Iterator[Reason]:
    """What the answer leaves open, gravest first."""
    if not are_alike(both.baseline.spec, both.candidate.spec):
        yield Reason(code="other_configuration", sentence="the two sides were asked to do different things")
    if ratio.n < ENOUGH_PROCESSES:
        yield _too_few(ratio.n)
    for name, side in sides.named(both):
        if side.status == "SUSPECT":
            yield Reason(code="suspect", sentence=f"SUSPECT in {name}: {_why(side)}")
    yield Reason(code="sequential", sentence=f"the runs were made one after the other, {_noise(sides)}")


def _noise(sides: Sides) -> str:
    if sides.noise is None:
        return "and how much this machine differs from itself was not measured"
    decides = ", so that is the margin" if sides.noise > sides.margin else ""
    return f"where even in turns differences below {show_percent(sides.noise)} meant nothing{decides}"


def _too_few(processes: int) -> Reason:
    more = f"run both with --repeat {ENOUGH_PROCESSES} or more"
    if processes == 1:
        return Reason(code="one_process", sentence=f"one process doesn't tell what the next one does: {more}")
    return Reason(code="few_processes", sentence=f"the interval of two processes reaches far: {more}")


def not_comparable(what: str, sides: Sides, reason: Reason, both: Both | None = None) -> Comparison:
    return Comparison(
        what=what,
        metric=THROUGHPUT,
        baseline=sides.baseline,
        candidate=sides.candidate,
        ratio=Missing(reason=reason.sentence),
        margin=sides.margin,
        answer="NOT_COMPARABLE",
        sentence=f"{what}: {reason.sentence}",
        reasons=(reason,),
        differences=_differences(both) if both is not None else (),
    )
