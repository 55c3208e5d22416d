"""The table for what belongs to no suite: a single workload, a sweep, a user's own step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rigdyno.report.format_entry import scaled_text
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.record import Completed
from rigdyno.schema.spec import Value
from rigdyno.schema.view import Column, Entry, Number, Plot, Presentation, Row, Table, Text
from rigdyno.units import rate_unit, show_percent

COLUMNS = (
    Column(key="what", title="what", numeric=False),
    Column(key="rate", title="rate"),
    Column(key="steps", title="steps"),
    Column(key="step", title="step, median"),
    Column(key="memory", title="memory"),
    Column(key="n", title="n"),
)


def presentation(measurements: Sequence[Measurement]) -> Presentation:
    names = _names(measurements)
    rows = [row for name, found in zip(names, measurements, strict=True) for row in _rows(name, found)]
    notes = dict.fromkeys(note for measurement in measurements for note in measurement.facts.notes)
    workloads = list(dict.fromkeys(measurement.spec.workload for measurement in measurements))
    return Presentation(
        title=", ".join(workloads) or "no figures",
        tables=(Table(title=_settings(measurements), columns=COLUMNS, rows=tuple(rows), notes=tuple(notes)),),
        plots=tuple(_soak_plot(m) for m in measurements if m.soak is not None),
        closing=(
            *(_held(m) for m in measurements if m.soak is not None),
            *_epsilons(list(zip(names, measurements, strict=True))),
        ),
    )


def _names(measurements: Sequence[Measurement]) -> list[str]:
    """What differs between them; the workload where nothing does."""
    traits = [_traits(measurement) for measurement in measurements]
    keys = dict.fromkeys(key for each in traits for key in each)
    differing = [key for key in keys if len({each.get(key) for each in traits}) > 1]
    return [
        ", ".join(f"{key}={each[key]}" for key in differing if each.get(key) is not None) or measurement.spec.workload
        for measurement, each in zip(measurements, traits, strict=True)
    ]


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
    parts = [f"{key}={first.options[key]}" for key in same]
    if first.update != "plain" and all(m.spec.update == first.update for m in measurements):
        parts.insert(0, f"update {first.update}")
    parts += [f"device {first.device}"]
    if first.threads is not None:
        parts.append(f"{first.threads} thread{'s' if first.threads != 1 else ''}")
    return ", ".join(parts)


def _keys(measurements: Sequence[Measurement]) -> list[str]:
    return list(dict.fromkeys(key for measurement in measurements for key in measurement.spec.options))


def _rows(name: str, measurement: Measurement) -> list[Row]:
    if not measurement.kinds:
        reason = measurement.throughput()
        entries: dict[str, Entry] = {"what": Text(text=name), "rate": reason, "steps": reason, "step": reason}
        return [Row(entries=entries, status=measurement.status, facts=measurement.records[-1].columns())]
    only = len(measurement.kinds) == 1
    return [
        _row(name if only else f"{name}, {kind}", measurement, figures, kind)
        for kind, figures in measurement.kinds.items()
    ]


def _row(name: str, measurement: Measurement, figures: KindFigures, kind: str) -> Row:
    unit = rate_unit(measurement.facts.unit)
    return Row(
        entries={
            "what": Text(text=name),
            "rate": figures.throughput.scaled(1.0, unit),
            "steps": figures.steps if figures.steps is not None else Missing(reason="the steps were not counted"),
            "step": figures.step_seconds,
            "memory": _memory(measurement),
            "n": Number(value=figures.throughput.n),
        },
        status=measurement.status_of(kind),
        facts=measurement.records[-1].columns(),
    )


def _memory(measurement: Measurement) -> Entry:
    peaks = [record.peak_memory_bytes for record in measurement.records if record.peak_memory_bytes is not None]
    if not peaks:
        return Missing(reason="peak memory can't be read here")
    peak = float(max(peaks))
    method = "largest peak of the processes"
    return Estimate(value=peak, n=1, unit="B", method=method)


def _soak_plot(measurement: Measurement) -> Plot:
    assert measurement.soak is not None
    soak = measurement.soak
    return Plot(title="rate over time", unit=rate_unit(measurement.facts.unit), seconds=soak.seconds, values=soak.rates)


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


def _epsilons(named: Sequence[tuple[str, Measurement]]) -> Iterator[str]:
    """What was spent of privacy, by the process that took the most steps."""
    for name, measurement in named:
        outcomes = [record.outcome for record in measurement.records]
        found = [each.quality.epsilon for each in outcomes if isinstance(each, Completed)]
        spent = [epsilon for epsilon in found if epsilon is not None]
        if spent:
            delta = measurement.spec.resolved.get("update.delta")
            yield f"{name}: epsilon {max(spent):.3g} at delta {delta}, for all steps of a process, warm-up included."
