"""Compare stored runs. This is weaker than a duel, because the runs took place one after the other.

What can't be compared gives a reason and never a ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rigdyno.analyse.comparison import MARGIN, answer_to, differences, energy_answer, energy_words, in_favour, in_words
from rigdyno.analyse.matching import Both, are_alike, match_configurations, name_of
from rigdyno.analyse.statistics import log_ratio_estimate
from rigdyno.base.units import show_percent
from rigdyno.schema.comparison import Answer, Comparison
from rigdyno.schema.estimate import Estimate, Missing, Reason
from rigdyno.schema.measured import EnergyFigures, Measurement
from rigdyno.schema.metric import ENERGY_PER_ITEM, THROUGHPUT, Metric

ENOUGH_PROCESSES = 3  # two have an interval too, but a very wide one


@dataclass(frozen=True)
class Sides:
    """The names of the two runs, and what counts as a difference between them."""

    baseline: str
    candidate: str
    margin: float = MARGIN
    noise: float | None = None  # noise floor of the machine, as a share; None: not measured

    def with_names(self, both: Both) -> tuple[tuple[str, Measurement], tuple[str, Measurement]]:
        return (self.baseline, both.baseline), (self.candidate, both.candidate)


class ComparisonText(NamedTuple):
    """A ratio with the answer and the sentence about it."""

    what: str
    metric: Metric
    ratio: Estimate
    figures: tuple[Estimate, Estimate]
    margin: float
    answer: Answer
    sentence: str


def compare(baseline: Sequence[Measurement], candidate: Sequence[Measurement], sides: Sides) -> list[Comparison]:
    """Return a comparison per kind of step of each configuration, then those that only one side has."""
    found = match_configurations(baseline, candidate)
    alone = [(sides.baseline, one) for one in found.only_baseline]
    alone += [(sides.candidate, one) for one in found.only_candidate]
    return [
        *(comparison for both in found.pairs for comparison in _compare_kinds(both, sides)),
        *(refuse_comparison(name_of(one.spec), sides, _only_in_one(name)) for name, one in alone),
    ]


def regressions(comparisons: Sequence[Comparison], share: float) -> list[Comparison]:
    """Return the comparisons whose whole interval is slower by more than that share, and beyond the margin."""
    return [
        each
        for each in comparisons
        if each.answer == "slower" and isinstance(each.ratio, Estimate)
        if in_favour(each.ratio, each.metric).ends[1] < 1 - share
    ]


def _compare_kinds(both: Both, sides: Sides) -> Iterator[Comparison]:
    refusal = refusal_of(both, sides)
    if refusal is not None:
        yield refuse_comparison(_name_of(both), sides, refusal, both)
        return
    kinds = list(dict.fromkeys((*both.baseline.kinds, *both.candidate.kinds)))
    for kind in kinds:
        what = _name_of(both, kind if len(kinds) > 1 else None)
        having = [name for name, side in sides.with_names(both) if kind in side.kinds]
        if len(having) == 2:
            yield _compare_rates(both, kind, what, sides)
            yield from _compare_energy(both, kind, what, sides)
        else:
            yield refuse_comparison(what, sides, _only_in_one(having[0]), both)


def _comparison(both: Both, sides: Sides, text: ComparisonText) -> Comparison:
    return Comparison(
        what=text.what,
        metric=text.metric,
        baseline=sides.baseline,
        candidate=sides.candidate,
        ratio=text.ratio,
        rates=text.figures,
        margin=text.margin,
        answer=text.answer,
        sentence=text.sentence,
        reasons=tuple(_weaknesses(both, text.ratio, sides)),
        differences=_differences(both),
    )


def _compare_rates(both: Both, kind: str, what: str, sides: Sides) -> Comparison:
    one, two = (side.kinds[kind] for side in both)
    metric, ratio = THROUGHPUT.in_unit(one.throughput.unit), log_ratio_estimate(two.process_rates, one.process_rates)
    speeds, margin = in_favour(ratio, metric), max(sides.margin, sides.noise or 0.0)
    answer = answer_to(speeds, margin)
    text = ComparisonText(
        what, metric, ratio, (one.throughput, two.throughput), margin, answer, in_words(what, speeds, answer)
    )
    return _comparison(both, sides, text)


def _compare_energy(both: Both, kind: str, what: str, sides: Sides) -> Iterator[Comparison]:
    """Compare the energy per item if both sides have it, by meters that cover the same part of a machine.

    The noise floor was measured in time, not in joules, so the margin is the given one.
    """
    before, after = (side.energy for side in both)
    one, two = (side.kinds[kind].energy for side in both)
    if one is None or two is None or not isinstance(before, EnergyFigures) or not isinstance(after, EnergyFigures):
        return
    name = f"{what}, energy"
    if before.whole != after.whole:
        sentence = f"{before.source} and {after.source} don't measure the same part of a machine"
        yield refuse_comparison(name, sides, Reason(code="different_meters", sentence=sentence), both)
        return
    ratio = log_ratio_estimate(after.process_per_item, before.process_per_item)
    answer, metric = energy_answer(ratio, sides.margin), ENERGY_PER_ITEM.in_unit(one.unit)
    text = ComparisonText(name, metric, ratio, (one, two), sides.margin, answer, energy_words(what, ratio, answer))
    yield _comparison(both, sides, text)


def _differences(both: Both) -> tuple[str, ...]:
    return differences(both.baseline.records[0], both.candidate.records[0])


def _weaknesses(both: Both, ratio: Estimate, sides: Sides) -> Iterator[Reason]:
    """Yield reasons to doubt the answer, gravest first."""
    if not are_alike(both.baseline.spec, both.candidate.spec):
        yield Reason(code="other_configuration", sentence="the two sides were asked to do different things")
    if ratio.n < ENOUGH_PROCESSES:
        yield _too_few(ratio.n)
    for name, side in sides.with_names(both):
        if side.status == "SUSPECT":
            yield Reason(code="suspect", sentence=f"SUSPECT in {name}: {_reasons(side)}")
    yield Reason(code="sequential", sentence=f"the runs were made one after the other, {_noise_words(sides)}")


def _noise_words(sides: Sides) -> str:
    if sides.noise is None:
        return "and how much this machine differs from itself was not measured"
    decides = ", so that is the margin" if sides.noise > sides.margin else ""
    return f"where even in turns differences below {show_percent(sides.noise)} meant nothing{decides}"


def _too_few(processes: int) -> Reason:
    more = f"run both with --repeat {ENOUGH_PROCESSES} or more"
    if processes == 1:
        return Reason(code="one_process", sentence=f"one process doesn't tell what the next one does: {more}")
    return Reason(code="few_processes", sentence=f"the interval of two processes reaches far: {more}")


def _name_of(both: Both, kind: str | None = None) -> str:
    """Return a name for both sides; values that a search found differently are left to the differences."""
    one, two = both.baseline.spec, both.candidate.spec
    return name_of(one, kind, rules_alone=any(one.options.get(name) != two.options.get(name) for name in one.largest))


def _only_in_one(name: str) -> Reason:
    return Reason(code="only_in_one", sentence=f"measured only in {name}")


def refusal_of(both: Both, sides: Sides) -> Reason | None:
    """Return the first reason why there is no ratio; None if there is one."""
    return next((reason for rule in REFUSALS if (reason := rule(both, sides)) is not None), None)


def _no_figure(both: Both, sides: Sides) -> Reason | None:
    for name, side in sides.with_names(both):
        if side.status in ("FAILED", "SKIPPED"):
            ended = side.status.lower()
            return Reason(code=ended, sentence=f"{ended} in {name}: {side.why_missing()}")
    return None


def _invalid(both: Both, sides: Sides) -> Reason | None:
    for name, side in sides.with_names(both):
        if side.status == "INVALID":
            return Reason(code="invalid", sentence=f"INVALID in {name}: {_reasons(side)}")
    return None


def _reasons(side: Measurement) -> str:
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


def refuse_comparison(what: str, sides: Sides, reason: Reason, both: Both | None = None) -> Comparison:
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
