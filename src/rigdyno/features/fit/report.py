"""The tables, figures and sentences of `fit`: memory over the batch, the speed of each size, and the fastest one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigdyno.base.units import rate_unit, show_bytes, show_percent
from rigdyno.features.fit.curves import FitCurve, epoch_seconds, fit_curves, memory_of, pace
from rigdyno.report.generic import Section
from rigdyno.report.sections import find_verdict
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum, datum_of
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import COUNT, EPOCH_TIME, PEAK_MEMORY, THROUGHPUT, Metric
from rigdyno.schema.spec import BATCHES
from rigdyno.schema.view import Column, Entry, Row, Table, Text

TRIES = (
    Column(key="what", title="trained by", numeric=False),
    Column(key="try", title="try", identifies=True),
    Column(key="value", title="batch", metric=COUNT),
    Column(key="physical", title="at once", metric=COUNT),
    Column(key="memory", title="memory", metric=PEAK_MEMORY),
    Column(key="ended", title="ended", numeric=False),
)


def fit_section(measurements: Sequence[Measurement]) -> Section | None:
    """Return what a search for the largest batch adds to a report; None if there was no search."""
    curves = fit_curves(measurements)
    if not curves:
        return None
    return Section(
        before=(fit_table(curves),),
        after=(tries_table(curves),),
        figures=fit_figures(curves),
        sentences=tuple(fit_sentences(curves)),
        replaces_rates=True,
    )


def fit_figures(curves: Sequence[FitCurve]) -> tuple[Figure, ...]:
    drawn = (_memory_figure(curves), _pace_figure(curves))
    return tuple(figure for figure in drawn if figure is not None and not figure.is_empty)


def _memory_figure(curves: Sequence[FitCurve]) -> Figure | None:
    """Draw memory over the batch; None for searches with several memory limits, which have no common figure."""
    allowed = {curve.allowed_bytes for curve in curves}
    measured = [Series(name=curve.name, role="measured", data=_peaks(curve)) for curve in curves]
    values = [float(each.x) for series in measured for each in series.data]
    if len(allowed) != 1 or not values:
        return None
    wall = float(allowed.pop())
    ends = (min(values), max(values))
    limit = Series(name="the wall", role="limit", data=tuple(datum(x, wall) for x in dict.fromkeys(ends)))
    return Figure(
        key="memory-by-batch",
        kind="curve",
        title=f"Memory by {curves[0].option}",
        x=_axis(curves),
        panels=(Panel(y=Axis(quantity="memory", unit="B"), series=(*measured, limit, *_memory_lines(curves))),),
        caption=f"Peaks of the tries and of what was measured; the wall is at {show_bytes(int(wall))}",
        counted="processes",
    )


def _axis(curves: Sequence[FitCurve]) -> Axis:
    return Axis(quantity=curves[0].option, along="batch", scale="log")


def _peaks(curve: FitCurve) -> tuple[Datum, ...]:
    """Return the largest peak of each value."""
    peaks: dict[int, int] = {}
    sized = [(curve.value_of(each), memory_of(each)) for each in curve.sizes]
    for value, memory in [*((each.value, each.memory_bytes) for each in curve.attempts), *sized]:
        if value is not None and memory is not None:
            peaks[value] = max(memory, peaks.get(value, 0))
    return tuple(datum(value, float(peaks[value])) for value in sorted(peaks))


def _memory_lines(curves: Sequence[FitCurve]) -> list[Series]:
    """Return the fitted lines of memory, within the range of the tries."""
    found = []
    for curve in curves:
        line, values = curve.line, sorted({each.value for each in curve.attempts if each.memory_bytes is not None})
        if line is not None:
            data = tuple(datum(value, max(0.0, line.at(value))) for value in values)
            found.append(Series(name=f"{curve.name}, fitted", role="predicted", data=data))
    return found


def _pace_figure(curves: Sequence[FitCurve]) -> Figure | None:
    timed = [each for curve in curves for each in curve.sizes if each.kinds]
    if len(timed) < 2:
        return None
    epochs = all(epoch_seconds(each) is not None for each in timed)
    units = {rate_unit(each.facts.unit) for each in timed}
    if not epochs and len(units) != 1:
        return None
    series = tuple(Series(name=curve.name, role="measured", data=_paces(curve, epochs=epochs)) for curve in curves)
    y = Axis(quantity="epoch", unit="s") if epochs else Axis(quantity="rate", unit=units.pop())
    return Figure(
        key="epoch-by-batch" if epochs else "rate-by-batch",
        kind="curve",
        title=f"Time of an epoch by {curves[0].option}" if epochs else f"Rate by {curves[0].option}",
        x=_axis(curves),
        panels=(Panel(y=y, series=series),),
        caption="Parts of the largest that fits, each measured by itself",
        counted="steps",
    )


def _paces(curve: FitCurve, *, epochs: bool) -> tuple[Datum, ...]:
    known = [(value, each) for each in curve.sizes if (value := curve.value_of(each)) is not None]
    return tuple(_pace_datum(value, each, epochs=epochs) for value, each in sorted(known, key=lambda pair: pair[0]))


def _pace_datum(value: int, measurement: Measurement, *, epochs: bool) -> Datum:
    entry = pace(measurement) if epochs else measurement.throughput()
    return datum_of(value, entry, verdict=find_verdict(measurement))


def fit_table(curves: Sequence[FitCurve]) -> Table:
    """Return the table of the largest and the fastest batch of each search."""
    speed, title = _speed_metric(curves)
    columns = (
        Column(key="what", title="trained by", numeric=False),
        Column(key="largest", title=f"largest {_option_title(curves[0].option)}", metric=COUNT),
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


def _speed_metric(curves: Sequence[FitCurve]) -> tuple[Metric, str]:
    if all(each.facts.epoch_items for curve in curves for each in curve.sizes if each.kinds):
        return EPOCH_TIME, "an epoch"
    units = {rate_unit(each.facts.unit) for curve in curves for each in curve.sizes if each.kinds}
    return (THROUGHPUT.in_unit(units.pop()) if len(units) == 1 else THROUGHPUT), "rate"


def _option_title(option: str) -> str:
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
    entries["memory"] = _memory_entry(memory_of(largest))
    entries["pace"] = pace(largest)
    if curve.quickest is not None:
        entries["quickest"] = Number(value=curve.value_of(curve.quickest) or 0)
        entries["best"] = pace(curve.quickest)
    return Row(entries=entries, status=largest.status, facts=facts)


def _memory_entry(size: int | None) -> Entry:
    if size is None:
        return Missing(reason="peak memory can't be read here")
    return Estimate(value=float(size), n=1, unit="B", method="largest peak of the processes")


def _notes(curves: Sequence[FitCurve]) -> tuple[str, ...]:
    """Return notes about columns that aren't self-explanatory."""
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
                "ended": Text(text=_outcome_words(each.fits, each.thorough, each.why)),
            }
        )
        for curve in curves
        for number, each in enumerate(curve.attempts, start=1)
    ]
    return Table(title="The tries", columns=TRIES, rows=tuple(rows), notes=tuple(_line_notes(curves)))


def _line_notes(curves: Sequence[FitCurve]) -> Iterator[str]:
    """Yield the fitted lines in words."""
    for curve in curves:
        line, item = curve.line, "a sample" if curve.option in BATCHES else f"for each of {curve.option}"
        if line is not None:
            fixed, each = show_bytes(int(max(0.0, line.fixed_bytes))), show_bytes(int(line.each_bytes))
            yield f"{curve.name}: {fixed}, and {each} {item}, by the line through its tries"


def _outcome_words(fits: bool | None, thorough: bool, why: str) -> str:
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
    return f"{found}{why}. {_speed_sentence(curve)}".strip()


def _speed_sentence(curve: FitCurve) -> str:
    """Return a sentence about the fastest batch, which is seldom the largest."""
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
