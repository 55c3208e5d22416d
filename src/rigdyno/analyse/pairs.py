"""Judge a duel: the median of paired log-ratios for each pair of processes, and Student's t interval over the pairs.

Consecutive turns share the state of the machine, so their ratio varies less than either rate. Processes of the same
code differ by how their memory is laid out, so the interval is over processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rigdyno.analyse.comparison import answer_to, differences, energy_answer, energy_words, in_words
from rigdyno.analyse.energy_figures import NotMetered, joules_per_item
from rigdyno.analyse.process import CellData
from rigdyno.analyse.statistics import across_processes, median_estimate
from rigdyno.analyse.streams import Rows, check_rows, items, row_seconds
from rigdyno.analyse.student import student_quantile
from rigdyno.base.errors import DamagedRun
from rigdyno.schema.comparison import Answer, Comparison, Duel, PairFigure
from rigdyno.schema.estimate import Estimate, Missing, Reason, relative_half_width
from rigdyno.schema.metric import ENERGY_PER_ITEM, THROUGHPUT, Metric
from rigdyno.schema.record import Completed, Failed, Skipped
from rigdyno.schema.samples import WARM_UP
from rigdyno.schema.spec import DuelPlan

# Half-width of an interval that is narrow enough for a margin of 1 %.
PRECISE = 0.01

# Undecided duels go on down to half of the margin, which gives 'same' in 97 of 100 duels of identical arms. What is
# still undecided then is close to the margin itself, and more pairs wouldn't decide it.
PRECISE_ENOUGH_TO_GIVE_UP = 0.005

FARTHEST = 1000  # pairs to look ahead

NOT_METERED = "not_metered"  # code of the reason why a duel by joules has no ratio

FEWEST_FOR_NOISE = 4  # pairs: with fewer, Student's t is so wide that it would forbid every comparison


class ProcessPair(NamedTuple):
    number: int
    a: CellData
    b: CellData


def analyse_pairs(cells: Sequence[CellData], plan: DuelPlan) -> Duel:
    pairs = pairs_of(cells)
    lost = tuple(text for pair in pairs if (text := _reason_lost(pair)) is not None)
    refusal = _unit_mismatch(pairs)
    if refusal is not None:
        return Duel(comparison=_not_comparable(plan, refusal), lost=lost)
    figures: list[PairFigure] = []
    for pair in pairs:
        if _reason_lost(pair) is None:
            try:
                figures.append(pair_figure(pair, plan.by))
            except NotMetered as error:
                reason = Reason(code=NOT_METERED, sentence=str(error))
                return Duel(comparison=_not_comparable(plan, reason), lost=lost)
            except DamagedRun as error:
                lost = (*lost, f"pair {pair.number}: {error}")
    duel = judge_duel(plan, figures, lost)
    return replace(duel, comparison=replace(duel.comparison, differences=_differences(pairs)))


def pairs_of(cells: Sequence[CellData]) -> list[ProcessPair]:
    """Return the pairs of which both cells have a record, whatever their outcome."""
    arms = {(cell.record.pair, cell.record.arm): cell for cell in cells if cell.record.pair is not None}
    numbers = sorted({number for number, _ in arms if number is not None})
    return [ProcessPair(n, arms[n, "a"], arms[n, "b"]) for n in numbers if (n, "a") in arms and (n, "b") in arms]


def judge_duel(plan: DuelPlan, figures: Sequence[PairFigure], lost: tuple[str, ...]) -> Duel:
    if not figures:
        return Duel(
            comparison=_not_comparable(plan, Reason(code="no_pair", sentence="no pair of processes finished")),
            lost=lost,
        )
    ratio = _ratio_over_pairs(figures)
    answer: Answer = "undecided"
    if len(figures) > 1:
        answer = answer_to(ratio, plan.margin) if plan.by == "time" else energy_answer(ratio, plan.margin)
    to_decide = _seconds_to_decide(figures, plan.margin) if answer == "undecided" else None
    comparison = Comparison(
        what=plan.what,
        metric=_metric(plan),
        baseline=plan.names[0],
        candidate=plan.names[1],
        ratio=ratio,
        margin=plan.margin,
        answer=answer,
        sentence=(in_words if plan.by == "time" else energy_words)("B", ratio, answer),
    )
    half = relative_half_width(ratio)
    return Duel(comparison=comparison, pairs=tuple(figures), lost=lost, half_width=half, seconds_to_decide=to_decide)


def _ratio_over_pairs(figures: Sequence[PairFigure]) -> Estimate:
    """Return the mean ratio over pairs; one pair has no interval, because it says nothing about other processes."""
    if len(figures) < 2:
        return figures[0].ratio.without_interval("one pair: no interval")
    of = "process pairs' medians of paired turns"
    return across_processes([figure.ratio.value for figure in figures], "x", of=of)


def _seconds_to_decide(figures: Sequence[PairFigure], margin: float) -> float | None:
    """Return the time of the pairs that would narrow the interval to the nearest bound if the mean stays the same."""
    if len(figures) < 2:
        return None
    logs = np.log([figure.ratio.value for figure in figures])
    spread, have = float(logs.std(ddof=1)), len(figures)
    room = abs(abs(float(logs.mean())) - math.log1p(margin))
    for count in range(have + 1, FARTHEST):
        if student_quantile(0.975, count - 1) * spread / math.sqrt(count) <= room:
            return (count - have) * float(np.mean([figure.seconds for figure in figures]))
    return None


def is_enough(duel: Duel, plan: DuelPlan) -> bool:
    """Tell whether the interval is as narrow as was fixed beforehand; significance alone never ends a duel."""
    if len(duel.pairs) < plan.least_pairs or duel.half_width is None:
        return False
    if plan.self_duel:
        return True
    precise = duel.half_width < PRECISE
    return precise and (duel.comparison.answer != "undecided" or duel.half_width < PRECISE_ENOUGH_TO_GIVE_UP)


def meaningless_below(duel: Duel) -> float | None:
    """Return the noise floor of ratios on this machine, from a duel of a configuration against itself."""
    ratio = duel.comparison.ratio
    if isinstance(ratio, Missing) or len(duel.pairs) < FEWEST_FOR_NOISE:
        return None
    return max(abs(end - 1) for end in ratio.ends)


def pair_figure(pair: ProcessPair, by: str = "time") -> PairFigure:
    found = log_ratios(_turns(pair.a), _turns(pair.b)) if by == "time" else _energy_ratios(pair)
    ratios = median_estimate(found, "x", of="paired turns")
    return PairFigure(
        pair=pair.number,
        ratio=ratios.mapped(math.exp, "x"),
        seconds=max(pair.a.record.seconds, pair.b.record.seconds),
    )


def log_ratios(a: Rows, b: Rows) -> NDArray[np.float64]:
    """Return log-ratios of B's rate to A's, each the mean of two rounds in opposite order.

    The second arm of a round may be slower for that alone. Warm-up is left out, and so are turns without a partner.
    """
    return _average_opposite_rounds(_round_ratios(a, b))


def _average_opposite_rounds(rounds: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(rounds) < 2:
        return rounds
    there, back = rounds[: len(rounds) // 2 * 2].reshape(-1, 2).T
    both: NDArray[np.float64] = (there + back) / 2
    return both


def _round_ratios(a: Rows, b: Rows) -> NDArray[np.float64]:
    a, b = _drop_warm_up(a, b)
    logs: NDArray[np.float64] = np.log(items(b) / row_seconds(b)) - np.log(items(a) / row_seconds(a))
    return logs


def _drop_warm_up(a: Rows, b: Rows) -> tuple[Rows, Rows]:
    """Return the turns of both arms without warm-up, and without turns that have no partner."""
    both = min(len(a), len(b))
    counted = ((a["flags"][:both] | b["flags"][:both]) & WARM_UP) == 0
    a, b = a[:both][counted], b[:both][counted]
    if len(a) == 0:
        raise DamagedRun("no turns but warm-up were recorded")
    if np.any(items(a) <= 0) or np.any(items(b) <= 0):
        raise DamagedRun("a turn counts no items, so there is no rate")
    return a, b


def _energy_ratios(pair: ProcessPair) -> NDArray[np.float64]:
    """Return log-ratios of B's energy per item to A's, as `log_ratios` does for rates."""
    a, b = _drop_warm_up(_turns(pair.a), _turns(pair.b))
    telemetry = pair.a.telemetry or pair.b.telemetry
    if not telemetry:
        raise NotMetered("there is no telemetry of its turns")
    logs = np.log(joules_per_item(*telemetry[0], b)) - np.log(joules_per_item(*telemetry[0], a))
    return _average_opposite_rounds(logs)


def _turns(cell: CellData) -> Rows:
    if not cell.steps:
        raise DamagedRun(f"{cell.record.cell} has no recorded turns")
    header, rows = min(cell.steps, key=lambda each: each[0].participant.rank or 0)  # all ranks take the same turns
    check_rows(header, rows)
    return rows


def _differences(pairs: Sequence[ProcessPair]) -> tuple[str, ...]:
    """List what differs between the arms, versions included, except for what the arms are named for."""
    ran = [pair for pair in pairs if _reason_lost(pair) is None]
    if not ran:
        return ()
    a, b = ran[0].a.record, ran[0].b.record
    arms_are_named_for = {*a.spec.options, *b.spec.options, "update", "arrangement"}
    return differences(a, b, known=arms_are_named_for)


def _reason_lost(pair: ProcessPair) -> str | None:
    for name, cell in (("A", pair.a), ("B", pair.b)):
        outcome = cell.record.outcome
        if isinstance(outcome, Failed):
            return f"pair {pair.number}: {name} failed ({outcome.kind}, {outcome.phase}): {outcome.message}"
        if isinstance(outcome, Skipped):
            return f"pair {pair.number}: {name} was skipped: {outcome.reason}"
    return None


def _unit_mismatch(pairs: Sequence[ProcessPair]) -> Reason | None:
    """Return a reason if the arms count in different units, which is only known once the workloads are built."""
    for pair in pairs:
        a, b = pair.a.record, pair.b.record
        both_ran = isinstance(a.outcome, Completed) and isinstance(b.outcome, Completed)
        one, two = pair.a.facts.unit, pair.b.facts.unit
        if both_ran and one != two:
            sentence = f"A counts in {one}s and B in {two}s: there is no ratio of the two"
            return Reason(code="different_units", sentence=sentence)
    return None


def _metric(plan: DuelPlan) -> Metric:
    return THROUGHPUT if plan.by == "time" else ENERGY_PER_ITEM


def _not_comparable(plan: DuelPlan, reason: Reason) -> Comparison:
    return Comparison(
        what=plan.what,
        metric=_metric(plan),
        baseline=plan.names[0],
        candidate=plan.names[1],
        ratio=Missing(reason=reason.sentence),
        margin=plan.margin,
        answer="NOT_COMPARABLE",
        sentence=reason.sentence,
        reasons=(reason,),
    )
