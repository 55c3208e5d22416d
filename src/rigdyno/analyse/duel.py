"""From the turns of two arms to a verdict: the median of paired log-ratios for each pair of processes, Student's t
interval over the pairs.

Turns that follow each other share the machine's mood, so their ratio is steadier than either; processes of the same
code differ by where their memory came to lie, so the interval is over processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rigdyno.analyse.answers import answer_to, energy_answer, energy_words, in_words
from rigdyno.analyse.differences import differences
from rigdyno.analyse.joules import NotMetered, joules_per_item
from rigdyno.analyse.measure import CellData
from rigdyno.analyse.statistics import across_processes, median_estimate
from rigdyno.analyse.streams import Rows, check_rows, items, row_seconds
from rigdyno.analyse.student import student_quantile
from rigdyno.errors import DamagedRun
from rigdyno.schema.comparison import Answer, Comparison, Duel, PairFigure
from rigdyno.schema.estimate import Estimate, Missing, Reason, relative_half_width
from rigdyno.schema.metric import ENERGY_PER_ITEM, THROUGHPUT, Metric
from rigdyno.schema.record import Completed, Failed, Skipped
from rigdyno.schema.samples import WARM_UP
from rigdyno.schema.spec import DuelPlan

# An interval this narrow is as good as a margin of 1 % can use.
PRECISE = 0.01
# A verdict that is still open may be so because the interval is wide: half of the margin is narrow enough for 'same' in
# 97 of 100 duels of the same thing. What is open then lies at the margin itself, where no duel ends.
PRECISE_ENOUGH_TO_GIVE_UP = 0.005
FARTHEST = 1000  # pairs to look ahead: nobody waits for more
NOT_METERED = "not_metered"  # why a duel by joules has no ratio
FEWEST_FOR_NOISE = 4  # pairs: Student's t of fewer reaches so far that it would forbid every comparison


class Pair(NamedTuple):
    number: int
    a: CellData
    b: CellData


def pairs_of(cells: Sequence[CellData]) -> list[Pair]:
    """Those of which both cells are over, whatever became of them."""
    arms = {(cell.record.pair, cell.record.arm): cell for cell in cells if cell.record.pair is not None}
    numbers = sorted({number for number, _ in arms if number is not None})
    return [Pair(n, arms[n, "a"], arms[n, "b"]) for n in numbers if (n, "a") in arms and (n, "b") in arms]


def duel_of(cells: Sequence[CellData], plan: DuelPlan) -> Duel:
    pairs = pairs_of(cells)
    lost = tuple(text for pair in pairs if (text := _lost(pair)) is not None)
    refusal = _unlike(pairs)
    if refusal is not None:
        return Duel(comparison=_not_comparable(plan, refusal), lost=lost)
    figures: list[PairFigure] = []
    for pair in pairs:
        if _lost(pair) is None:
            try:
                figures.append(pair_figure(pair, plan.by))
            except NotMetered as error:
                reason = Reason(code=NOT_METERED, sentence=str(error))
                return Duel(comparison=_not_comparable(plan, reason), lost=lost)
            except DamagedRun as error:
                lost = (*lost, f"pair {pair.number}: {error}")
    duel = judged(plan, figures, lost)
    return replace(duel, comparison=replace(duel.comparison, differences=_differences(pairs)))


def _differences(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Between the arms, versions included: two environments may differ in more than what is asked about."""
    ran = [pair for pair in pairs if _lost(pair) is None]
    if not ran:
        return ()
    a, b = ran[0].a.record, ran[0].b.record
    arms_are_named_for = {*a.spec.options, *b.spec.options, "update", "arrangement"}
    return differences(a, b, known=arms_are_named_for)


def pair_figure(pair: Pair, by: str = "time") -> PairFigure:
    found = log_ratios(_turns(pair.a), _turns(pair.b)) if by == "time" else _energy_ratios(pair)
    ratios = median_estimate(found, "x", of="paired turns")
    return PairFigure(
        pair=pair.number,
        ratio=ratios.mapped(math.exp, "x"),
        seconds=max(pair.a.record.seconds, pair.b.record.seconds),
    )


def log_ratios(a: Rows, b: Rows) -> NDArray[np.float64]:
    """Of B's rate over A's, each the mean of two rounds in opposite order: whoever is second may be slower for that
    alone. Warm-up stays out, and so does a turn whose partner a crash has lost."""
    return _there_and_back(_round_ratios(a, b))


def _there_and_back(rounds: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(rounds) < 2:
        return rounds
    there, back = rounds[: len(rounds) // 2 * 2].reshape(-1, 2).T
    both: NDArray[np.float64] = (there + back) / 2
    return both


def _round_ratios(a: Rows, b: Rows) -> NDArray[np.float64]:
    a, b = _counted(a, b)
    logs: NDArray[np.float64] = np.log(items(b) / row_seconds(b)) - np.log(items(a) / row_seconds(a))
    return logs


def _counted(a: Rows, b: Rows) -> tuple[Rows, Rows]:
    """The turns of both, without warm-up."""
    both = min(len(a), len(b))
    counted = ((a["flags"][:both] | b["flags"][:both]) & WARM_UP) == 0
    a, b = a[:both][counted], b[:both][counted]
    if len(a) == 0:
        raise DamagedRun("no turns but warm-up were recorded")
    if np.any(items(a) <= 0) or np.any(items(b) <= 0):
        raise DamagedRun("a turn counts no items, so there is no rate")
    return a, b


def _energy_ratios(pair: Pair) -> NDArray[np.float64]:
    """Of what B takes for an item over what A does, as log_ratios."""
    a, b = _counted(_turns(pair.a), _turns(pair.b))
    telemetry = pair.a.telemetry or pair.b.telemetry
    if not telemetry:
        raise NotMetered("there is no telemetry of its turns")
    logs = np.log(joules_per_item(*telemetry[0], b)) - np.log(joules_per_item(*telemetry[0], a))
    return _there_and_back(logs)


def is_enough(duel: Duel, plan: DuelPlan) -> bool:
    """Never at the first significance: only once the interval is as narrow as was set beforehand."""
    if len(duel.pairs) < plan.least_pairs or duel.half_width is None:
        return False
    if plan.self_duel:
        return True
    precise = duel.half_width < PRECISE
    return precise and (duel.comparison.answer != "undecided" or duel.half_width < PRECISE_ENOUGH_TO_GIVE_UP)


def meaningless_below(duel: Duel) -> float | None:
    """Of an arm against itself: what the interval reaches to is how far the machine's mood alone can move a ratio."""
    ratio = duel.comparison.ratio
    if isinstance(ratio, Missing) or len(duel.pairs) < FEWEST_FOR_NOISE:
        return None
    return max(abs(end - 1) for end in ratio.ends)


def _turns(cell: CellData) -> Rows:
    if not cell.steps:
        raise DamagedRun(f"{cell.record.cell} has no recorded turns")
    header, rows = min(cell.steps, key=lambda each: each[0].participant.rank or 0)  # the others took the same turns
    check_rows(header, rows)
    return rows


def _lost(pair: Pair) -> str | None:
    for name, cell in (("A", pair.a), ("B", pair.b)):
        outcome = cell.record.outcome
        if isinstance(outcome, Failed):
            return f"pair {pair.number}: {name} failed ({outcome.kind}, {outcome.phase}): {outcome.message}"
        if isinstance(outcome, Skipped):
            return f"pair {pair.number}: {name} was skipped: {outcome.reason}"
    return None


def _unlike(pairs: Sequence[Pair]) -> Reason | None:
    """What only the built workloads could tell."""
    for pair in pairs:
        a, b = pair.a.record, pair.b.record
        both_ran = isinstance(a.outcome, Completed) and isinstance(b.outcome, Completed)
        one, two = pair.a.facts.unit, pair.b.facts.unit
        if both_ran and one != two:
            sentence = f"A counts in {one}s and B in {two}s: there is no ratio of the two"
            return Reason(code="different_units", sentence=sentence)
    return None


def judged(plan: DuelPlan, figures: Sequence[PairFigure], lost: tuple[str, ...]) -> Duel:
    if not figures:
        return Duel(
            comparison=_not_comparable(plan, Reason(code="no_pair", sentence="no pair of processes finished")),
            lost=lost,
        )
    ratio = _over_pairs(figures)
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


def _metric(plan: DuelPlan) -> Metric:
    return THROUGHPUT if plan.by == "time" else ENERGY_PER_ITEM


def _over_pairs(figures: Sequence[PairFigure]) -> Estimate:
    """One pair of processes may say how steady it was itself, and nothing about the code."""
    if len(figures) < 2:
        return figures[0].ratio.without_interval("one pair: no interval")
    of = "process pairs' medians of paired turns"
    return across_processes([figure.ratio.value for figure in figures], "x", of=of)


def _seconds_to_decide(figures: Sequence[PairFigure], margin: float) -> float | None:
    """As many pairs more as would narrow the interval to the nearest bound, if the mean stays where it is."""
    if len(figures) < 2:
        return None
    logs = np.log([figure.ratio.value for figure in figures])
    spread, have = float(logs.std(ddof=1)), len(figures)
    room = abs(abs(float(logs.mean())) - math.log1p(margin))
    for count in range(have + 1, FARTHEST):
        if student_quantile(0.975, count - 1) * spread / math.sqrt(count) <= room:
            return (count - have) * float(np.mean([figure.seconds for figure in figures]))
    return None


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
