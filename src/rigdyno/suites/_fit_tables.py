"""What fits: a row for each way of training, the tries behind it, and a sentence about the batch that is quickest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.metric import COUNT, EPOCH_TIME, PEAK_MEMORY, THROUGHPUT, Metric
from rigdyno.schema.spec import BATCHES
from rigdyno.schema.view import Column, Entry, Row, Table, Text
from rigdyno.suites._fit_curves import FitCurve, epoch_seconds, memory_of, pace
from rigdyno.units import rate_unit, show_bytes, show_percent

TRIES = (
    Column(key="what", title="trained by", numeric=False),
    Column(key="try", title="try", identifies=True),
    Column(key="value", title="batch", metric=COUNT),
    Column(key="physical", title="at once", metric=COUNT),
    Column(key="memory", title="memory", metric=PEAK_MEMORY),
    Column(key="ended", title="ended", numeric=False),
)


def fit_table(curves: Sequence[FitCurve]) -> Table:
    """The answer."""
    speed, title = _speed(curves)
    columns = (
        Column(key="what", title="trained by", numeric=False),
        Column(key="largest", title=f"largest {_word(curves[0].option)}", metric=COUNT),
        Column(key="physical", title="at once", metric=COUNT),
        Column(key="memory", title="memory", metric=PEAK_MEMORY),
        Column(key="pace", title=title, metric=speed),
        Column(key="quickest", title="quickest", metric=COUNT),
        Column(key="best", title=f"{title} there", metric=speed),
    )
    title = " and ".join(dict.fromkeys(show_bytes(curve.allowed_bytes) for curve in curves))
    return Table(
        title=f"What fits into {title}, {curves[0].largest.spec.device}",
        columns=columns,
        rows=tuple(_row(curve) for curve in curves),
        notes=_notes(curves),
    )


def _speed(curves: Sequence[FitCurve]) -> tuple[Metric, str]:
    if all(each.facts.epoch_items for curve in curves for each in curve.sizes if each.kinds):
        return EPOCH_TIME, "an epoch"
    units = {rate_unit(each.facts.unit) for curve in curves for each in curve.sizes if each.kinds}
    return (THROUGHPUT.in_unit(units.pop()) if len(units) == 1 else THROUGHPUT), "rate"


def _word(option: str) -> str:
    return "batch" if option in ("batch_size", "batch") else option


def _row(curve: FitCurve) -> Row:
    largest, value = curve.largest, curve.value_of(curve.largest)
    entries: dict[str, Entry] = {"what": Text(text=curve.name)}
    facts = largest.records[-1].columns()
    if value is None:
        entries["largest"] = Missing(reason=largest.why_missing())
        return Row(entries=entries, status=largest.status, facts=facts)
    entries["largest"] = Number(value=value)
    entries["physical"] = Number(value=curve.physical or value)
    entries["memory"] = _bytes(memory_of(largest))
    entries["pace"] = pace(largest)
    if curve.quickest is not None:
        entries["quickest"] = Number(value=curve.value_of(curve.quickest) or 0)
        entries["best"] = pace(curve.quickest)
    return Row(entries=entries, status=largest.status, facts=facts)


def _bytes(size: int | None) -> Entry:
    if size is None:
        return Missing(reason="peak memory can't be read here")
    return Estimate(value=float(size), n=1, unit="B", method="largest peak of the processes")


def _notes(curves: Sequence[FitCurve]) -> tuple[str, ...]:
    """What the columns mean, where that isn't plain."""
    notes = ["memory: the peak over all processes of the cell"]
    if any(curve.physical != curve.value_of(curve.largest) for curve in curves):
        notes.append(
            "at once: samples that go through the network together. Batches that are drawn at random vary in size: so "
            "many fit, and 1 batch of 10,000 is larger; the batch itself is their mean, by which privacy is counted"
        )
    if any(epoch_seconds(each) for curve in curves for each in curve.sizes):
        notes.append("an epoch: all samples at the rate that was measured, extrapolated from the steps")
    return tuple(notes)


def tries_table(curves: Sequence[FitCurve]) -> Table:
    rows = [
        Row(
            entries={
                "what": Text(text=curve.name),
                "try": Number(value=number),
                "value": Number(value=each.value),
                "physical": Number(value=each.physical or each.value),
                **({"memory": Number(value=each.memory_bytes, unit="B")} if each.memory_bytes is not None else {}),
                "ended": Text(text=_ended(each.fits, each.thorough, each.why)),
            }
        )
        for curve in curves
        for number, each in enumerate(curve.attempts, start=1)
    ]
    return Table(title="The tries", columns=TRIES, rows=tuple(rows), notes=tuple(_lines(curves)))


def _lines(curves: Sequence[FitCurve]) -> Iterator[str]:
    """What the fitted line says, in words."""
    for curve in curves:
        line, item = curve.line, "a sample" if curve.option in BATCHES else f"for each of {curve.option}"
        if line is not None:
            fixed, each = show_bytes(int(max(0.0, line.fixed_bytes))), show_bytes(int(line.each_bytes))
            yield f"{curve.name}: {fixed}, and {each} {item}, by the line through its tries"


def _ended(fits: bool | None, thorough: bool, why: str) -> str:
    if fits:
        return "fits, with more steps" if thorough else "fits"
    return why or "too large"


def fit_sentences(curves: Sequence[FitCurve]) -> tuple[str, ...]:
    return tuple(_sentence(curve) for curve in curves if curve.value_of(curve.largest) is not None)


def _sentence(curve: FitCurve) -> str:
    value, tries = curve.value_of(curve.largest), len(curve.attempts)
    ended = curve.what_ended_it()
    why = f"; what ended it was not memory: {ended}" if ended else ""
    where = show_bytes(curve.allowed_bytes)
    found = f"{curve.name}: {curve.option} {value:,} fits into {where}, found in {tries} tries"
    return f"{found}{why}. {_about_speed(curve)}".strip()


def _about_speed(curve: FitCurve) -> str:
    """The batch that is quickest is seldom the largest."""
    largest, quickest = curve.largest, curve.quickest
    measured = [each for each in curve.sizes if each.kinds]
    if quickest is None or len(measured) < 2:
        return ""
    if quickest is largest:
        return f"It is also the quickest of the {len(measured)} sizes that were measured."
    before, best = largest.throughput(), quickest.throughput()
    where = f"{curve.option} {curve.value_of(quickest):,}"
    if not isinstance(before, Estimate) or not isinstance(best, Estimate):
        return f"Of the sizes that were measured {where} is the quickest."
    if best.ends[0] <= before.ends[1]:
        return f"No size is clearly quicker: {where} was the quickest, and the intervals overlap."
    return f"The quickest is {where}: {show_percent(1 - before.value / best.value)} less time than the largest takes."
