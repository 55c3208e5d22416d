"""The table for what belongs to no suite: a single workload, a sweep, a user's own step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rigdyno.report.format_entry import entry_of, scaled_text
from rigdyno.report.generic_figures import rate_figures, spent_figures
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.figure import Figure
from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.metric import COUNT, DEVICE_MEMORY, PEAK_MEMORY, STEP_RATE, STEP_TIME, THROUGHPUT
from rigdyno.schema.record import Completed, Total, fullest
from rigdyno.schema.spec import Value
from rigdyno.schema.view import Column, Entry, Presentation, Row, Table, Text
from rigdyno.suites._energy import energy_columns, energy_entries
from rigdyno.suites._fit_curves import fit_curves
from rigdyno.suites._fit_figures import fit_figures
from rigdyno.suites._fit_tables import fit_sentences, fit_table, tries_table
from rigdyno.suites._soak import TITLE, soak_columns, soak_entries, soak_figure, verdict_of
from rigdyno.units import rate_unit, show_bytes, show_percent

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


def presentation(measurements: Sequence[Measurement]) -> Presentation:
    identifying = _identifying(measurements)
    rows = [row for measurement in measurements for row in _rows(measurement, identifying)]
    columns = (
        *identifying,
        _rate_column(_one_unit(measurements)),
        *energy_columns(measurements),
        *_figure_columns(rows),
    )
    soaked = [measurement for measurement in measurements if measurement.soak is not None]
    notes = dict.fromkeys(note for measurement in measurements for note in measurement.facts.notes)
    workloads = list(dict.fromkeys(measurement.spec.workload for measurement in measurements))
    table = Table(title=_settings(measurements), columns=columns, rows=tuple(rows), notes=tuple(notes))
    fits = fit_curves(measurements)
    return Presentation(
        title=", ".join(workloads) or "no figures",
        tables=(
            *((fit_table(fits),) if fits else ()),
            table,
            *((tries_table(fits),) if fits else ()),
            *((_soak_table(soaked, identifying),) if soaked else ()),
            *(totals_table(found.facts.totals) for found in measurements if found.facts.totals),
        ),
        figures=(
            *(fit_figures(fits) if fits else ()),
            *(_soak_figure(measurement, identifying) for measurement in soaked),
            *(rate_figures(table, _one_unit(measurements)) if not fits else ()),
            *(each for found in measurements for each in spent_figures(found.spec.workload, found.facts.totals)),
        ),
        closing=(*fit_sentences(fits), *map(_held, soaked), *_epsilons(measurements, identifying)),
    )


def _figure_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Memory of a device where one was measured on."""
    *first, last = FIGURES
    on_device = any(ON_DEVICE.key in row.entries for row in rows)
    return (*first, ON_DEVICE, last) if on_device else FIGURES


def totals_table(totals: Mapping[str, Total]) -> Table:
    """What was counted over the whole run, warm-up included."""
    rows = (
        Row(entries={"what": Text(text=name), "total": Number(value=total.value, unit=total.unit)})
        for name, total in totals.items()
    )
    return Table(title="Totals", columns=TOTALS_COLUMNS, rows=tuple(rows))


def _identifying(measurements: Sequence[Measurement]) -> tuple[Column, ...]:
    """What differs between them, each in a column of its own; the workload where nothing does."""
    traits = [_traits(measurement) for measurement in measurements]
    values = {key: {each.get(key) for each in traits} for key in dict.fromkeys(key for each in traits for key in each)}
    differing = tuple(_trait_column(key, found) for key, found in values.items() if len(found) > 1)
    several_kinds = any(len(measurement.kinds) > 1 for measurement in measurements)
    return (*(differing or (WHAT,)), *((KIND,) if several_kinds else ()))


def _trait_column(name: str, values: Iterable[Value | None]) -> Column:
    numeric = not any(isinstance(value, bool | str) for value in values)
    return Column(key=f"by_{name}", title=name, numeric=numeric, identifies=True)  # no figure has a key like that


def _identity(measurement: Measurement, identifying: Sequence[Column]) -> dict[str, Entry]:
    values = {f"by_{name}": value for name, value in _traits(measurement).items()}
    values["what"] = measurement.spec.workload
    return {column.key: entry_of(value) for column in identifying if (value := values.get(column.key)) is not None}


def _one_unit(measurements: Sequence[Measurement]) -> str | None:
    """Of all their rates; None: they have several. What gave no figure doesn't know its unit."""
    units = {rate_unit(measurement.facts.unit) for measurement in measurements if measurement.kinds}
    return units.pop() if len(units) == 1 else None


def _rate_column(unit: str | None) -> Column:
    return Column(key="rate", title="rate", metric=THROUGHPUT if unit is None else THROUGHPUT.in_unit(unit))


def _traits(measurement: Measurement) -> dict[str, Value | None]:
    spec = measurement.spec
    how = {"ranks": spec.world_size, "nodes": spec.nodes, "threads": spec.threads, "device": spec.device}
    usual = {"workload": spec.workload, **how, "update": spec.update, "arrangement": spec.arrangement}
    return {**usual, **spec.options}  # a user's function may have arguments of these names


def _settings(measurements: Sequence[Measurement]) -> str:
    """What is the same for all rows."""
    if not measurements:
        return "nothing was measured"
    first = measurements[0].spec
    same = [key for key in _keys(measurements) if len({m.spec.options.get(key) for m in measurements}) == 1]
    words = first.named_options()
    parts = [f"{key}={words[key]}" for key in same]
    if first.update != "plain" and all(m.spec.update == first.update for m in measurements):
        parts.insert(0, f"update {first.update}")
    parts += [f"device {first.device}"]
    if first.threads is not None:
        parts.append(f"{first.threads} thread{'s' if first.threads != 1 else ''}")
    return ", ".join(parts)


def _keys(measurements: Sequence[Measurement]) -> list[str]:
    return list(dict.fromkeys(key for measurement in measurements for key in measurement.spec.options))


def _rows(measurement: Measurement, identifying: Sequence[Column]) -> list[Row]:
    identity, facts = _identity(measurement, identifying), measurement.records[-1].columns()
    if not measurement.kinds:
        reason = measurement.throughput()
        entries: dict[str, Entry] = {**identity, "rate": reason, "steps": reason, "step": reason}
        return [Row(entries=entries, status=measurement.status, facts=facts)]
    return [
        Row(
            entries={**identity, **_kind(kind, identifying), **_figures(measurement, figures)},
            status=measurement.status_of(kind),
            facts=facts,
        )
        for kind, figures in measurement.kinds.items()
    ]


def _kind(name: str, identifying: Sequence[Column]) -> dict[str, Entry]:
    return {KIND.key: Text(text=name)} if KIND in identifying else {}


def _figures(measurement: Measurement, figures: KindFigures) -> dict[str, Entry]:
    return {
        "rate": figures.throughput,
        **energy_entries(measurement),
        "steps": figures.steps if figures.steps is not None else Missing(reason="the steps were not counted"),
        "step": figures.step_seconds,
        "memory": _memory(measurement),
        **_device_memory(measurement),
        "n": Number(value=figures.throughput.n),
    }


def _memory(measurement: Measurement) -> Entry:
    peaks = [record.peak_memory_bytes for record in measurement.records if record.peak_memory_bytes is not None]
    if not peaks:
        return Missing(reason="peak memory can't be read here")
    return Estimate(value=float(max(peaks)), n=1, unit="B", method="largest peak of the processes")


def _soak_table(soaked: Sequence[Measurement], identifying: Sequence[Column]) -> Table:
    named = tuple(column for column in identifying if column != KIND)  # a soak is of the first kind
    return Table(
        title=TITLE,
        columns=(*named, *soak_columns(_one_unit(soaked))),
        rows=tuple(_soak_row(measurement, named) for measurement in soaked),
    )


def _soak_row(measurement: Measurement, identifying: Sequence[Column]) -> Row:
    assert measurement.soak is not None
    figures = soak_entries(measurement.soak, rate_unit(measurement.facts.unit))
    return Row(entries={**_identity(measurement, identifying), **figures}, facts=measurement.records[-1].columns())


def _device_memory(measurement: Measurement) -> dict[str, Entry]:
    memory = fullest(record.device_memory for record in measurement.records)
    if memory is None:
        return {}
    if memory.peak_bytes is None:
        return {ON_DEVICE.key: Missing(reason="the framework doesn't count the peak of this device")}
    limit = f", out of {show_bytes(memory.limit_bytes)}" if memory.limit_bytes is not None else ""
    method = f"largest peak of a device{limit}"
    return {ON_DEVICE.key: Estimate(value=float(memory.peak_bytes), n=1, unit="B", method=method)}


def _soak_figure(measurement: Measurement, identifying: Sequence[Column]) -> Figure:
    assert measurement.soak is not None
    name = _differing_name(measurement, identifying)
    return soak_figure(measurement.soak, rate_unit(measurement.facts.unit), verdict_of(measurement), name)


def _held(measurement: Measurement) -> str:
    assert measurement.soak is not None
    burst, sustained = measurement.soak.burst, measurement.soak.sustained
    unit = rate_unit(measurement.facts.unit)
    rates = f"{scaled_text(burst, unit)} at first, {scaled_text(sustained, unit)} at the end"
    kept = f" ({show_percent(sustained / burst)})" if burst else ""
    if measurement.soak.throttled:
        return f"Throttled: {rates}{kept}."
    if measurement.soak.fell:
        return f"It fell: {rates}{kept}, but other load or a short soak may be why."
    return f"It held: {rates}{kept}."


def _differing_name(measurement: Measurement, identifying: Sequence[Column]) -> str:
    """By what tells it from the others; empty where there are none."""
    differing = [column.title for column in identifying if column not in (WHAT, KIND)]
    traits = _traits(measurement)
    return ", ".join(f"{key} {traits[key]}" for key in differing if key in traits)


def _epsilons(measurements: Sequence[Measurement], identifying: Sequence[Column]) -> Iterator[str]:
    """What was spent of privacy, by the process that took the most steps."""
    for measurement in measurements:
        name = _differing_name(measurement, identifying) or measurement.spec.workload
        outcomes = [record.outcome for record in measurement.records]
        found = [each.quality.epsilon for each in outcomes if isinstance(each, Completed)]
        spent = [epsilon for epsilon in found if epsilon is not None]
        if spent:
            delta = measurement.spec.resolved.get("update.delta")
            yield f"{name}: epsilon {max(spent):.3g} at delta {delta}, for all steps of a process, warm-up included."
