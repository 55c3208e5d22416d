"""What a comparison of two stored runs shows: the table, the answers in words, what differs beside the figures."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.analyse.answers import MANIFOLD
from rigdyno.schema.comparison import Comparison
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.metric import ENERGY_PER_ITEM, RATE_CHANGE, THROUGHPUT
from rigdyno.schema.view import Column, Entry, Headline, Row, Table, Text, View
from rigdyno.units import show_percent


def comparison_view(
    comparisons: Sequence[Comparison], runs: tuple[str, str], outcome: str | None = None, warnings: Sequence[str] = ()
) -> View:
    """`runs` says which two they are; `outcome` is what became of a demand on the candidate."""
    compared = [each for each in comparisons if each.answer != "NOT_COMPARABLE"]
    differing, weak = _in_all([each.differences for each in compared]), _in_all([_weaknesses(e) for e in compared])
    rows = tuple(_row(each, {*differing, *weak}) for each in comparisons)
    metered = any(each.metric.name == ENERGY_PER_ITEM.name for each in compared)
    answers = "faster, slower, less, more" if metered else "faster, slower"
    margin = f"{answers}: the whole interval lies beyond {show_percent(compared[0].margin)}" if compared else ""
    what = "rate and energy" if metered else "rate"
    title, columns = f"The candidate's {what} beside the baseline's", _columns(compared)
    return View(
        title="Two stored runs",
        rigs=(f"baseline: {runs[0]}", f"candidate: {runs[1]}"),
        tables=(Table(title=title, columns=columns, rows=rows, notes=(margin,) if margin else ()),),
        comparisons=tuple(comparisons),
        closing=(*_closing(compared, differing, weak), *((outcome,) if outcome else ())),
        warnings=tuple(warnings),
    )


def _columns(compared: Sequence[Comparison]) -> tuple[Column, ...]:
    metrics = {each.metric for each in compared}
    rate = metrics.pop() if len(metrics) == 1 else THROUGHPUT
    return (
        Column(key="what", title="what", numeric=False),
        Column(key="baseline", title="baseline", metric=rate),
        Column(key="candidate", title="candidate", metric=rate),
        Column(key="change", title="change", metric=RATE_CHANGE),
        Column(key="answer", title="answer", numeric=False),
    )


def _row(compared: Comparison, said_below: set[str]) -> Row:
    entries: dict[str, Entry] = {"what": Text(text=compared.what)}
    if compared.rates is not None:
        entries |= dict(zip(("baseline", "candidate"), compared.rates, strict=True))
    entries |= {"change": change(compared.ratio), "answer": Text(text=compared.answer)}
    remarks = () if compared.answer == "NOT_COMPARABLE" else (*compared.differences, *_weaknesses(compared))
    return Row(
        entries=entries,
        runs=(compared.baseline, compared.candidate),
        notes=tuple(remark for remark in remarks if remark not in said_below),
    )


def change(ratio: Estimate | Missing) -> Estimate | Missing:
    """In percent of the baseline: -3 is 3 % slower."""
    if isinstance(ratio, Missing):
        return ratio
    return ratio.mapped(lambda bound: 100 * (bound - 1), "%")


def headline_of(view: View) -> Headline | None:
    """Of a comparison its ratio, as a change where it is small."""
    if len(view.comparisons) != 1:
        return view.headline
    compared = view.comparisons[0]
    near = isinstance(compared.ratio, Estimate) and 1 / MANIFOLD < compared.ratio.value < MANIFOLD
    figure = change(compared.ratio) if near else compared.ratio
    return Headline(what=f"{compared.candidate} against {compared.baseline}: {compared.answer}", figure=figure)


def _weaknesses(compared: Comparison) -> tuple[str, ...]:
    return tuple(reason.sentence for reason in compared.reasons)


def _in_all(lists: Sequence[Sequence[str]]) -> list[str]:
    """What holds for every row is said once, below the table."""
    return [text for text in lists[0] if all(text in others for others in lists)] if lists else []


def _closing(compared: Sequence[Comparison], differing: Sequence[str], weak: Sequence[str]) -> list[str]:
    if not compared:
        return ["NOT_COMPARABLE: the two runs have no figure in common that can be compared."]
    lines = [f"{each.sentence}." for each in compared]
    if any(each.answer == "undecided" for each in compared):
        lines.append("Undecided doesn't mean the same. More processes narrow the interval; so does `rigdyno duel`.")
    alike = not any(each.differences for each in compared)
    lines += [f"What differs: {'; '.join(differing)}."] if differing else []
    lines += ["Nothing that was recorded differs beside the figures."] if alike else []
    return [*lines, *(f"Mind: {sentence}." for sentence in weak)]


def demand_sentence(comparisons: Sequence[Comparison], slower: Sequence[Comparison], share: float) -> str:
    """What became of 'not slower by more than that'."""
    demand = f"--fail-on slower={100 * share:g}%"
    if slower:
        return f"REGRESSION ({demand}): {', '.join(each.what for each in slower)}."
    left_open = {
        "undecided": sum(each.answer == "undecided" for each in comparisons),
        "not comparable": sum(each.answer == "NOT_COMPARABLE" for each in comparisons),
    }
    counts = ", ".join(f"{count} {what}" for what, count in left_open.items() if count)
    return f"No regression found ({demand})." + (f" But {counts}: no proof that there is none." if counts else "")
