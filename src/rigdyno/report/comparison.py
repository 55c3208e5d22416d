"""Build the view of a comparison of two stored runs: the table, the answers in words, and what else differs."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.analyse.comparison import MANIFOLD
from rigdyno.base.units import show_percent
from rigdyno.schema.comparison import Comparison
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.metric import ENERGY_PER_ITEM, RATE_CHANGE, THROUGHPUT
from rigdyno.schema.view import Column, Entry, Headline, Row, Table, Text, View


def make_comparison_view(
    comparisons: Sequence[Comparison], runs: tuple[str, str], outcome: str | None = None, warnings: Sequence[str] = ()
) -> View:
    """Return the view of a comparison.

    `runs` describes the baseline and the candidate; `outcome` is the result of `--fail-on`, if it was given.
    """
    compared = [each for each in comparisons if each.answer != "NOT_COMPARABLE"]
    differing = _find_common([each.differences for each in compared])
    weak = _find_common([_reason_sentences(each) for each in compared])
    rows = tuple(_make_row(each, {*differing, *weak}) for each in comparisons)
    metered = any(each.metric.name == ENERGY_PER_ITEM.name for each in compared)
    answers = "faster, slower, less, more" if metered else "faster, slower"
    margin = f"{answers}: the whole interval is beyond {show_percent(compared[0].margin)}" if compared else ""
    what = "Rate and energy" if metered else "Rate"
    title, columns = f"{what} of the candidate compared with the baseline", _make_columns(compared)
    return View(
        title="Two stored runs",
        rigs=(f"baseline: {runs[0]}", f"candidate: {runs[1]}"),
        tables=(Table(title=title, columns=columns, rows=rows, notes=(margin,) if margin else ()),),
        comparisons=tuple(comparisons),
        closing=(*_closing_sentences(compared, differing, weak), *((outcome,) if outcome else ())),
        warnings=tuple(warnings),
    )


def _make_columns(compared: Sequence[Comparison]) -> tuple[Column, ...]:
    metrics = {each.metric for each in compared}
    rate = metrics.pop() if len(metrics) == 1 else THROUGHPUT
    return (
        Column(key="what", title="what", numeric=False),
        Column(key="baseline", title="baseline", metric=rate),
        Column(key="candidate", title="candidate", metric=rate),
        Column(key="change", title="change", metric=RATE_CHANGE),
        Column(key="answer", title="answer", numeric=False),
    )


def _make_row(compared: Comparison, shown_below: set[str]) -> Row:
    entries: dict[str, Entry] = {"what": Text(text=compared.what)}
    if compared.rates is not None:
        entries |= dict(zip(("baseline", "candidate"), compared.rates, strict=True))
    entries |= {"change": to_percent_change(compared.ratio), "answer": Text(text=compared.answer)}
    remarks = () if compared.answer == "NOT_COMPARABLE" else (*compared.differences, *_reason_sentences(compared))
    return Row(
        entries=entries,
        runs=(compared.baseline, compared.candidate),
        notes=tuple(remark for remark in remarks if remark not in shown_below),
    )


def to_percent_change(ratio: Estimate | Missing) -> Estimate | Missing:
    """Convert a ratio to a change in percent of the baseline: -3 means 3 % slower."""
    if isinstance(ratio, Missing):
        return ratio
    return ratio.mapped(lambda bound: 100 * (bound - 1), "%")


def choose_headline(view: View) -> Headline | None:
    """Return the headline of a view; a single comparison shows its ratio, or its change in percent if that is small."""
    if len(view.comparisons) != 1:
        return view.headline
    compared = view.comparisons[0]
    near = isinstance(compared.ratio, Estimate) and 1 / MANIFOLD < compared.ratio.value < MANIFOLD
    figure = to_percent_change(compared.ratio) if near else compared.ratio
    return Headline(what=f"{compared.candidate} against {compared.baseline}: {compared.answer}", figure=figure)


def _reason_sentences(compared: Comparison) -> tuple[str, ...]:
    return tuple(reason.sentence for reason in compared.reasons)


def _find_common(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return the texts that every list contains: they are shown once, below the table."""
    return [text for text in lists[0] if all(text in others for others in lists)] if lists else []


def _closing_sentences(compared: Sequence[Comparison], differing: Sequence[str], weak: Sequence[str]) -> list[str]:
    if not compared:
        return ["NOT_COMPARABLE: the two runs have no figure in common that can be compared."]
    lines = [f"{each.sentence}." for each in compared]
    if any(each.answer == "undecided" for each in compared):
        lines.append("Undecided doesn't mean the same. More processes narrow the interval; so does `rigdyno duel`.")
    alike = not any(each.differences for each in compared)
    lines += [f"What differs: {'; '.join(differing)}."] if differing else []
    lines += ["Nothing else that was recorded differs."] if alike else []
    return [*lines, *(f"Note: {sentence}." for sentence in weak)]


def describe_fail_on(comparisons: Sequence[Comparison], slower: Sequence[Comparison], share: float) -> str:
    """Say whether the demand of `--fail-on slower=...` was met."""
    demand = f"--fail-on slower={100 * share:g}%"
    if slower:
        return f"REGRESSION ({demand}): {', '.join(each.what for each in slower)}."
    open_counts = {
        "undecided": sum(each.answer == "undecided" for each in comparisons),
        "not comparable": sum(each.answer == "NOT_COMPARABLE" for each in comparisons),
    }
    counts = ", ".join(f"{count} {what}" for what, count in open_counts.items() if count)
    return f"No regression found ({demand})." + (f" But {counts}: a regression can't be excluded." if counts else "")
