"""The view of a duel: the pairs, the ratio with its interval, and the answer in words."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.analyse.comparison import MANIFOLD
from rigdyno.base.units import show_percent, show_seconds
from rigdyno.report.comparison import to_percent_change
from rigdyno.schema.comparison import Duel
from rigdyno.schema.estimate import Estimate, Number
from rigdyno.schema.figure import Axis, Band, Figure, Panel, Series, datum_of
from rigdyno.schema.metric import COUNT, ENERGY_CHANGE, ENERGY_PER_ITEM, ENERGY_RATIO, RATE_CHANGE, RATE_RATIO, Metric
from rigdyno.schema.record import RunHead
from rigdyno.schema.view import Column, Entry, Row, Table, Text, View

NamedRatio = tuple[str, Estimate, int]  # the processes, B's rate over A's, rounds


def duel_view(head: RunHead, duel: Duel, saved_in: str, warnings: tuple[str, ...] = ()) -> View:
    comparison = duel.comparison
    label = f"{head.plan.label}: " if head.plan.label else ""
    return View(
        title=_title(duel),
        rigs=(label + head.system.line(),),
        tables=(_table(duel),),
        figures=_figures(duel),
        comparisons=(comparison,),
        standing=(f"A: {comparison.baseline}", f"B: {comparison.candidate}"),
        closing=tuple(_closing(duel)),
        warnings=(*warnings, *duel.lost),
        saved_in=(saved_in,),
        next_commands=_next_commands(head, duel, saved_in),
    )


def _title(duel: Duel) -> str:
    comparison = duel.comparison
    arms = f"{comparison.baseline} against {comparison.candidate}"
    return f"Duel: {arms}" if not comparison.what or comparison.what in arms else f"Duel: {comparison.what}, {arms}"


def _ratios(duel: Duel) -> list[NamedRatio]:
    """Return the ratio of each pair, and of all pairs together."""
    found = [(f"pair {figure.pair}", figure.ratio, figure.ratio.n) for figure in duel.pairs]
    if isinstance(duel.comparison.ratio, Estimate) and len(duel.pairs) > 1:
        found.append(("all pairs", duel.comparison.ratio, sum(turns for _, _, turns in found)))
    return found


def _is_near(found: Sequence[NamedRatio]) -> bool:
    return all(1 / MANIFOLD < ratio.value < MANIFOLD for _, ratio, _ in found)


def _table(duel: Duel) -> Table:
    figures = _ratios(duel)
    near = _is_near(figures)
    note = "A duel gives ratios, never rates: arms that take turns are slower than either is alone."
    return Table(
        title="Turn by turn, in random order",
        columns=(
            Column(key="pair", title="processes", numeric=False),
            _ratio_column(duel.comparison.metric, near=near),
            Column(key="turns", title="rounds", metric=COUNT),
        ),
        rows=tuple(_row(name, to_percent_change(ratio) if near else ratio, turns) for name, ratio, turns in figures),
        notes=(note,),
    )


def _figures(duel: Duel) -> tuple[Figure, ...]:
    """Draw the ratios of the pairs and of all together, with the margin as a band."""
    found = _ratios(duel)
    if not found:
        return ()
    margin, near = duel.comparison.margin, _is_near(found)
    same = f"within {show_percent(margin)}: the same"
    if near:
        axis, band = (
            Axis(quantity="change from A to B", unit="%"),
            Band(name=same, low=-100 * margin, high=100 * margin),
        )
    else:
        axis, band = Axis(quantity="B's rate over A's", unit="x"), Band(name=same, low=1 - margin, high=1 + margin)
    data = tuple(datum_of(name, to_percent_change(ratio) if near else ratio) for name, ratio, _ in found)
    panel = Panel(y=axis, series=(Series(name="B against A", role="measured", data=data),), bands=(band,))
    return (
        Figure(
            key="duel",
            kind="bars",
            title=f"A against B: {duel.comparison.answer}",
            x=Axis(quantity="processes", along="category"),
            panels=(panel,),
            caption=duel.comparison.sentence,
            counted="rounds or pairs",
        ),
    )


def _ratio_column(metric: Metric, *, near: bool) -> Column:
    if metric.name == ENERGY_PER_ITEM.name:
        change_of, ratio_of, title = ENERGY_CHANGE, ENERGY_RATIO, "B's joules an item over A's"
    else:
        change_of, ratio_of, title = RATE_CHANGE, RATE_RATIO, "B's rate over A's"
    if near:
        return Column(key="ratio", title="change from A to B", metric=change_of)
    return Column(key="ratio", title=title, metric=ratio_of)


def _row(name: str, ratio: Entry, turns: int) -> Row:
    return Row(entries={"pair": Text(text=name), "ratio": ratio, "turns": Number(value=turns)})


def _closing(duel: Duel) -> list[str]:
    comparison = duel.comparison
    if comparison.answer == "NOT_COMPARABLE":
        return [f"NOT_COMPARABLE: {comparison.sentence}"]
    margin = show_percent(comparison.margin)
    meaning = {
        "faster": f"B is faster: the whole interval lies beyond the margin of {margin}.",
        "slower": f"A is faster: the whole interval lies beyond the margin of {margin}.",
        "less": f"B takes less energy: the whole interval lies beyond the margin of {margin}.",
        "more": f"A takes less energy: the whole interval lies beyond the margin of {margin}.",
        "same": f"The same: the whole interval lies within the margin of {margin}.",
        "undecided": f"Undecided at a margin of {margin}: {_what_would_decide(duel)}.",
    }[comparison.answer]
    differing = f"What differs: {'; '.join(comparison.differences)}."
    return [f"{comparison.sentence}.", meaning, *([differing] if comparison.differences else [])]


def _what_would_decide(duel: Duel) -> str:
    if len(duel.pairs) < 2:
        return "one pair of processes has no interval; a larger --budget has room for more"
    if duel.seconds_to_decide is None:
        return "the difference is too near to the margin for any number of processes to tell"
    return f"as things stand it takes about {show_seconds(duel.seconds_to_decide)} more; try a larger --budget"


def _next_commands(head: RunHead, duel: Duel, saved_in: str) -> tuple[str, ...]:
    left = len(head.plan.cells) // 2 - len(duel.pairs) - len(duel.lost)
    more = duel.comparison.answer == "undecided" and left > 0
    return (f"rigdyno show {saved_in}", *((f"rigdyno run --resume {saved_in}",) if more else ()))
