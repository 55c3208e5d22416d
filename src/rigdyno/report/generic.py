"""Present runs that belong to no suite: a single workload, a sweep, or a user's own step.

The tables show every configuration; the figures show the rates of a sweep and where the time of an inference went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rigdyno.base.units import rate_unit, show_bytes, show_percent
from rigdyno.report.sections import (
    SOAK_TITLE,
    choose_energy_columns,
    find_verdict,
    make_energy_entries,
    make_soak_columns,
    make_soak_entries,
    make_soak_figure,
)
from rigdyno.report.text import format_scaled, make_entry
from rigdyno.schema.estimate import Estimate, Missing, Number, Verdict
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum, datum_of
from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.metric import COUNT, DEVICE_MEMORY, PEAK_MEMORY, STEP_RATE, STEP_TIME, THROUGHPUT
from rigdyno.schema.record import Completed, Total, fullest
from rigdyno.schema.spec import Value
from rigdyno.schema.view import Column, Entry, Presentation, Row, Table, Text

ALONG = {"ranks": "devices", "nodes": "nodes", "batch": "batch", "batch_size": "batch"}

# Phases of `rigdyno infer`; they don't overlap.
SPENT = ("predicting", "waiting for input", "waiting for writers")

WHAT = Column(key="what", title="what", numeric=False)

KIND = Column(key="kind", title="kind", numeric=False, identifies=True)

FIGURES = (
    Column(key="steps", title="steps", metric=STEP_RATE),
    Column(key="step", title="step, median", metric=STEP_TIME),
    Column(key="memory", title="memory", metric=PEAK_MEMORY),
    Column(key="n", title="n", metric=COUNT),
)

ON_DEVICE = Column(key="device_memory", title="device memory", metric=DEVICE_MEMORY)

TOTALS_COLUMNS = (WHAT, Column(key="total", title="total"))


@dataclass(frozen=True)
class Section:
    """Tables, figures and sentences that a feature adds around the table of the cells."""

    before: tuple[Table, ...] = ()
    after: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    sentences: tuple[str, ...] = ()
    replaces_rates: bool = False  # its figures show the rates already


MakeSection = Callable[[Sequence[Measurement]], Section | None]


def presentation(measurements: Sequence[Measurement], sections: Sequence[MakeSection] = ()) -> Presentation:
    """Return the tables, figures and sentences of a run without a suite, and those of `sections`."""
    identifying = _find_identifying_columns(measurements)
    rows = [row for measurement in measurements for row in _make_rows(measurement, identifying)]
    columns = (
        *identifying,
        _make_rate_column(_common_unit(measurements)),
        *choose_energy_columns(measurements),
        *_choose_figure_columns(rows),
    )
    soaked = [measurement for measurement in measurements if measurement.soak is not None]
    notes = dict.fromkeys(note for measurement in measurements for note in measurement.facts.notes)
    workloads = list(dict.fromkeys(measurement.spec.workload for measurement in measurements))
    table = Table(title=_describe_settings(measurements), columns=columns, rows=tuple(rows), notes=tuple(notes))
    added = [section for make in sections if (section := make(measurements)) is not None]
    shows_rates = not any(section.replaces_rates for section in added)
    return Presentation(
        title=", ".join(workloads) or "no figures",
        tables=(
            *(each for section in added for each in section.before),
            table,
            *(each for section in added for each in section.after),
            *((_make_soak_table(soaked, identifying),) if soaked else ()),
            *(make_totals_table(found.facts.totals) for found in measurements if found.facts.totals),
        ),
        figures=(
            *(each for section in added for each in section.figures),
            *(_make_soak_figure(measurement, identifying) for measurement in soaked),
            *(rate_figures(table, _common_unit(measurements)) if shows_rates else ()),
            *(each for found in measurements for each in spent_figures(found.spec.workload, found.facts.totals)),
        ),
        closing=(
            *(each for section in added for each in section.sentences),
            *map(_describe_soak, soaked),
            *_privacy_sentences(measurements, identifying),
        ),
    )


def _choose_figure_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the columns of figures, with device memory if a device was measured."""
    *first, last = FIGURES
    on_device = any(ON_DEVICE.key in row.entries for row in rows)
    return (*first, ON_DEVICE, last) if on_device else FIGURES


def make_totals_table(totals: Mapping[str, Total]) -> Table:
    """Return a table of what was counted over the whole run, warm-up included."""
    rows = (
        Row(entries={"what": Text(text=name), "total": Number(value=total.value, unit=total.unit)})
        for name, total in totals.items()
    )
    return Table(title="Totals", columns=TOTALS_COLUMNS, rows=tuple(rows))


def _find_identifying_columns(measurements: Sequence[Measurement]) -> tuple[Column, ...]:
    """Return a column for each trait that differs between the measurements; the workload if none does."""
    traits = [_list_traits(measurement) for measurement in measurements]
    values = {key: {each.get(key) for each in traits} for key in dict.fromkeys(key for each in traits for key in each)}
    differing = tuple(_make_trait_column(key, found) for key, found in values.items() if len(found) > 1)
    several_kinds = any(len(measurement.kinds) > 1 for measurement in measurements)
    return (*(differing or (WHAT,)), *((KIND,) if several_kinds else ()))


def _make_trait_column(name: str, values: Iterable[Value | None]) -> Column:
    numeric = not any(isinstance(value, bool | str) for value in values)
    # The prefix avoids a clash with the keys of figures.
    return Column(key=f"by_{name}", title=name, numeric=numeric, identifies=True)


def _identity_entries(measurement: Measurement, identifying: Sequence[Column]) -> dict[str, Entry]:
    values = {f"by_{name}": value for name, value in _list_traits(measurement).items()}
    values["what"] = measurement.spec.workload
    return {column.key: make_entry(value) for column in identifying if (value := values.get(column.key)) is not None}


def _common_unit(measurements: Sequence[Measurement]) -> str | None:
    """Return the common unit of all rates; None if they have several. Measurements without figures have no unit."""
    units = {rate_unit(measurement.facts.unit) for measurement in measurements if measurement.kinds}
    return units.pop() if len(units) == 1 else None


def _make_rate_column(unit: str | None) -> Column:
    return Column(key="rate", title="rate", metric=THROUGHPUT if unit is None else THROUGHPUT.in_unit(unit))


def _list_traits(measurement: Measurement) -> dict[str, Value | None]:
    spec = measurement.spec
    how = {"ranks": spec.world_size, "nodes": spec.nodes, "threads": spec.threads, "device": spec.device}
    usual = {"workload": spec.workload, **how, "update": spec.update, "arrangement": spec.arrangement}
    return {**usual, **spec.options}  # options come last: a user's function may have arguments of these names


def _describe_settings(measurements: Sequence[Measurement]) -> str:
    """Describe the settings that all rows share."""
    if not measurements:
        return "nothing was measured"
    first = measurements[0].spec
    same = [key for key in _option_names(measurements) if len({m.spec.options.get(key) for m in measurements}) == 1]
    words = first.named_options()
    parts = [f"{key}={words[key]}" for key in same]
    if first.update != "plain" and all(m.spec.update == first.update for m in measurements):
        parts.insert(0, f"update {first.update}")
    parts += [f"device {first.device}"]
    if first.threads is not None:
        parts.append(f"{first.threads} thread{'s' if first.threads != 1 else ''}")
    return ", ".join(parts)


def _option_names(measurements: Sequence[Measurement]) -> list[str]:
    return list(dict.fromkeys(key for measurement in measurements for key in measurement.spec.options))


def _make_rows(measurement: Measurement, identifying: Sequence[Column]) -> list[Row]:
    identity, facts = _identity_entries(measurement, identifying), measurement.records[-1].columns()
    if not measurement.kinds:
        reason = measurement.throughput()
        entries: dict[str, Entry] = {**identity, "rate": reason, "steps": reason, "step": reason}
        return [Row(entries=entries, status=measurement.status, facts=facts)]
    return [
        Row(
            entries={**identity, **_kind_entry(kind, identifying), **_figure_entries(measurement, figures)},
            status=measurement.status_of(kind),
            facts=facts,
        )
        for kind, figures in measurement.kinds.items()
    ]


def _kind_entry(name: str, identifying: Sequence[Column]) -> dict[str, Entry]:
    return {KIND.key: Text(text=name)} if KIND in identifying else {}


def _figure_entries(measurement: Measurement, figures: KindFigures) -> dict[str, Entry]:
    return {
        "rate": figures.throughput,
        **make_energy_entries(measurement),
        "steps": figures.steps if figures.steps is not None else Missing(reason="the steps were not counted"),
        "step": figures.step_seconds,
        "memory": _peak_memory(measurement),
        **_device_memory_entry(measurement),
        "n": Number(value=figures.throughput.n),
    }


def _peak_memory(measurement: Measurement) -> Entry:
    peaks = [record.peak_memory_bytes for record in measurement.records if record.peak_memory_bytes is not None]
    if not peaks:
        return Missing(reason="peak memory can't be read here")
    return Estimate(value=float(max(peaks)), n=1, unit="B", method="largest peak of the processes")


def _device_memory_entry(measurement: Measurement) -> dict[str, Entry]:
    memory = fullest(record.device_memory for record in measurement.records)
    if memory is None:
        return {}
    if memory.peak_bytes is None:
        return {ON_DEVICE.key: Missing(reason="the framework doesn't count the peak of this device")}
    limit = f", out of {show_bytes(memory.limit_bytes)}" if memory.limit_bytes is not None else ""
    method = f"largest peak of a device{limit}"
    return {ON_DEVICE.key: Estimate(value=float(memory.peak_bytes), n=1, unit="B", method=method)}


def _make_soak_table(soaked: Sequence[Measurement], identifying: Sequence[Column]) -> Table:
    named = tuple(column for column in identifying if column != KIND)  # only the first kind of steps is soaked
    return Table(
        title=SOAK_TITLE,
        columns=(*named, *make_soak_columns(_common_unit(soaked))),
        rows=tuple(_make_soak_row(measurement, named) for measurement in soaked),
    )


def _make_soak_row(measurement: Measurement, identifying: Sequence[Column]) -> Row:
    assert measurement.soak is not None
    figures = make_soak_entries(measurement.soak, rate_unit(measurement.facts.unit))
    return Row(
        entries={**_identity_entries(measurement, identifying), **figures}, facts=measurement.records[-1].columns()
    )


def _make_soak_figure(measurement: Measurement, identifying: Sequence[Column]) -> Figure:
    assert measurement.soak is not None
    name = _differing_name(measurement, identifying)
    return make_soak_figure(measurement.soak, rate_unit(measurement.facts.unit), find_verdict(measurement), name)


def _describe_soak(measurement: Measurement) -> str:
    assert measurement.soak is not None
    burst, sustained = measurement.soak.burst, measurement.soak.sustained
    unit = rate_unit(measurement.facts.unit)
    rates = f"{format_scaled(burst, unit)} at first, {format_scaled(sustained, unit)} at the end"
    kept = f" ({show_percent(sustained / burst)})" if burst else ""
    if measurement.soak.throttled:
        return f"Throttled: {rates}{kept}."
    if measurement.soak.fell:
        return f"Slower at the end: {rates}{kept}, but other load or a short soak may be why."
    return f"No throttling: {rates}{kept}."


def _differing_name(measurement: Measurement, identifying: Sequence[Column]) -> str:
    """Name a measurement by the traits that differ from the others; empty if none does."""
    differing = [column.title for column in identifying if column not in (WHAT, KIND)]
    traits = _list_traits(measurement)
    return ", ".join(f"{key} {traits[key]}" for key in differing if key in traits)


def _privacy_sentences(measurements: Sequence[Measurement], identifying: Sequence[Column]) -> Iterator[str]:
    """Say how much privacy budget each measurement spent, by the process that took the most steps."""
    for measurement in measurements:
        name = _differing_name(measurement, identifying) or measurement.spec.workload
        outcomes = [record.outcome for record in measurement.records]
        found = [each.quality.epsilon for each in outcomes if isinstance(each, Completed)]
        spent = [epsilon for epsilon in found if epsilon is not None]
        if spent:
            delta = measurement.spec.resolved.get("update.delta")
            yield f"{name}: epsilon {max(spent):.3g} at delta {delta}, for all steps of a process, warm-up included."


def rate_figures(table: Table, unit: str | None) -> tuple[Figure, ...]:
    """Return a figure of the rates of a table's rows: a curve over the only number that differs, else a bar per row.

    Rates of different units (`unit` is None) share no axis, and get no figure.
    """
    rows = [row for row in table.rows if isinstance(row.entries.get("rate"), Estimate | Missing)]
    if unit is None or len(rows) < 2:
        return ()
    swept = _find_swept_column(table, rows)
    data = tuple(_make_datum(table, row, swept) for row in rows)
    axis = Axis(quantity="configuration", along="category")
    if swept is not None:
        data = tuple(sorted(data, key=lambda each: float(each.x)))
        axis = Axis(quantity=swept.title, along=ALONG.get(swept.title, "value"))  # type: ignore[arg-type]
    return (
        Figure(
            key="rate",
            kind="bars" if swept is None else "curve",
            title="Rate" if swept is None else f"Rate by {swept.title}",
            x=axis,
            panels=(
                Panel(y=Axis(quantity="rate", unit=unit), series=(Series(name="rate", role="measured", data=data),)),
            ),
            caption=table.title,
            counted="steps",
        ),
    )


def _find_swept_column(table: Table, rows: Sequence[Row]) -> Column | None:
    """Return the only identifying column, if it has a different number in each row."""
    if len(table.identifying) != 1:
        return None
    column = table.identifying[0]
    found = [entry.value for row in rows if isinstance(entry := row.entries.get(column.key), Number)]
    return column if len(found) == len(rows) == len(set(found)) else None


def _make_datum(table: Table, row: Row, swept: Column | None) -> Datum:
    rate = row.entries["rate"]
    assert isinstance(rate, Estimate | Missing)
    x: float | str = table.name_of(row)
    if swept is not None:
        entry = row.entries[swept.key]
        assert isinstance(entry, Number)
        x = float(entry.value)
    return datum_of(x, rate, verdict=_row_verdict(row))


def _row_verdict(row: Row) -> Verdict | None:
    return row.status if row.status in ("VALID", "SUSPECT", "INVALID") else None


def spent_figures(name: str, totals: Mapping[str, Total]) -> tuple[Figure, ...]:
    """Return a figure of where the time of an inference went; the unexplained rest is a separate part."""
    parts = {part: totals[part].value for part in SPENT if part in totals and totals[part].unit == "s"}
    if not parts or "time" not in totals:
        return ()
    parts["the rest"] = max(0.0, totals["time"].value - sum(parts.values()))
    series = tuple(Series(name=part, role="measured", data=(datum(name, value),)) for part, value in parts.items())
    return (
        Figure(
            key="where-time-goes",
            kind="stack",
            title="Where the time went",
            x=Axis(quantity="run", along="category"),
            panels=(Panel(y=Axis(quantity="time", unit="s"), series=series),),
            caption="Whole run, warm-up included",
        ),
    )
