"""What a duel's report shows: the pairs, the ratio with its interval, the answer in words."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.analyse.answers import MANIFOLD
from rigdyno.analyse.duel import meaningless_below
from rigdyno.report.comparison import change
from rigdyno.schema.comparison import Duel
from rigdyno.schema.estimate import Estimate, Number
from rigdyno.schema.figure import Axis, Band, Figure, Panel, Series, datum_of
from rigdyno.schema.metric import COUNT, ENERGY_CHANGE, ENERGY_PER_ITEM, ENERGY_RATIO, RATE_CHANGE, RATE_RATIO, Metric
from rigdyno.schema.record import RunHead
from rigdyno.schema.view import Column, Entry, Row, Sentence, Table, Text, View
from rigdyno.units import show_percent, show_seconds


def duel_view(head: RunHead, duel: Duel, saved_in: str, warnings: tuple[str, ...] = ()) -> View:
    compared = duel.comparison
    label = f"{head.plan.label}: " if head.plan.label else ""
    return View(
        title=_title(duel),
        rigs=(label + head.system.line(),),
        tables=(_table(duel),),
        figures=_figures(duel),
        comparisons=(compared,),
        standing=(f"A: {compared.baseline}", f"B: {compared.candidate}"),
        closing=tuple(_closing(duel)),
        warnings=(*warnings, *duel.lost),
        saved_in=(saved_in,),
        next_commands=_next(head, duel, saved_in),
    )


def _title(duel: Duel) -> str:
    compared = duel.comparison
    arms = f"{compared.baseline} against {compared.candidate}"
    return f"Duel: {arms}" if not compared.what or compared.what in arms else f"Duel: {compared.what}, {arms}"


def noise_sentence(duel: Duel | None, missing: str | None) -> Sentence | None:
    """What a suite's report says about the machine's own noise."""
    if duel is None:
        return _no_noise(missing) if missing else None
    bound = meaningless_below(duel)
    if bound is None:
        only = f"only {len(duel.pairs)} of its pairs of processes finished"
        if not duel.pairs and not duel.lost:
            only = "there was no time left for it"
        return _no_noise("; ".join((*duel.lost, only)))
    fought = f"{duel.comparison.baseline} against itself, {len(duel.pairs)} pairs of processes"
    text = f"{fought}: differences below {show_percent(bound)} mean nothing here today."
    return Sentence(text=text, figure=Number(value=bound, unit="share"))


def _no_noise(reason: str) -> Sentence:
    return Sentence(text=f"The machine's own noise was not measured: {reason}.")


Compared = tuple[str, Estimate, int]  # the processes, B's rate over A's, rounds


def _compared(duel: Duel) -> list[Compared]:
    """Each pair, and all of them together."""
    found = [(f"pair {figure.pair}", figure.ratio, figure.ratio.n) for figure in duel.pairs]
    if isinstance(duel.comparison.ratio, Estimate) and len(duel.pairs) > 1:
        found.append(("all pairs", duel.comparison.ratio, sum(turns for _, _, turns in found)))
    return found


def _is_near(found: Sequence[Compared]) -> bool:
    return all(1 / MANIFOLD < ratio.value < MANIFOLD for _, ratio, _ in found)


def _table(duel: Duel) -> Table:
    figures = _compared(duel)
    near = _is_near(figures)
    note = "A duel gives ratios, never rates: arms that take turns are slower than either is alone."
    return Table(
        title="Turn by turn, in random order",
        columns=(
            Column(key="pair", title="processes", numeric=False),
            _ratio_column(duel.comparison.metric, near=near),
            Column(key="turns", title="rounds", metric=COUNT),
        ),
        rows=tuple(_row(name, change(ratio) if near else ratio, turns) for name, ratio, turns in figures),
        notes=(note,),
    )


def _figures(duel: Duel) -> tuple[Figure, ...]:
    """The pairs and all of them together, held against the margin."""
    found = _compared(duel)
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
    data = tuple(datum_of(name, change(ratio) if near else ratio) for name, ratio, _ in found)
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
    compared = duel.comparison
    if compared.answer == "NOT_COMPARABLE":
        return [f"NOT_COMPARABLE: {compared.sentence}"]
    margin = show_percent(compared.margin)
    meaning = {
        "faster": f"B is faster: the whole interval lies beyond the margin of {margin}.",
        "slower": f"A is faster: the whole interval lies beyond the margin of {margin}.",
        "less": f"B takes less energy: the whole interval lies beyond the margin of {margin}.",
        "more": f"A takes less energy: the whole interval lies beyond the margin of {margin}.",
        "same": f"The same: the whole interval lies within the margin of {margin}.",
        "undecided": f"Undecided at a margin of {margin}: {_more(duel)}.",
    }[compared.answer]
    differing = f"What differs: {'; '.join(compared.differences)}."
    return [f"{compared.sentence}.", meaning, *([differing] if compared.differences else [])]


def _more(duel: Duel) -> str:
    if len(duel.pairs) < 2:
        return "one pair of processes has no interval; a larger --budget has room for more"
    if duel.seconds_to_decide is None:
        return "the difference is too near to the margin for any number of processes to tell"
    return f"as things stand it takes about {show_seconds(duel.seconds_to_decide)} more; try a larger --budget"


def _next(head: RunHead, duel: Duel, saved_in: str) -> tuple[str, ...]:
    left = len(head.plan.cells) // 2 - len(duel.pairs) - len(duel.lost)
    more = duel.comparison.answer == "undecided" and left > 0
    return (f"rigdyno show {saved_in}", *((f"rigdyno run --resume {saved_in}",) if more else ()))
