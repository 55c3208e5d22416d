"""Parts that the reports of several suites share: energy columns and tables, and tables and figures of a soak.

A soak runs a workload for a long time, to compare its rate at first (burst) with the sustained one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rigdyno.base.units import show_scaled
from rigdyno.schema.estimate import Estimate, Missing, Number, Verdict
from rigdyno.schema.figure import Axis, Figure, Panel, Series, datum, figure_key
from rigdyno.schema.measured import EnergyFigures, Measurement, Soak
from rigdyno.schema.metric import (
    COVERAGE,
    ENERGY_PER_ITEM,
    KEPT_SHARE,
    POWER,
    THROUGHPUT,
)
from rigdyno.schema.view import Column, Entry, RatioEntry, Row, Table, Text

ENERGY_COLUMN = Column(key="energy", title="energy", metric=ENERGY_PER_ITEM)

SOAK_TITLE = "Burst against sustained"  # of the table of a soak

_LESS_THAN_ALL = "these meters don't cover the whole machine: memory, disks, fans and power supply are missing"

_COLUMNS = (
    Column(key="what", title="what", numeric=False),
    Column(key="energy", title="gross", metric=ENERGY_PER_ITEM),
    Column(key="net_energy", title="net of idle", metric=ENERGY_PER_ITEM),
    Column(key="power", title="power", metric=POWER),
    Column(key="peak", title="peak", metric=POWER),
    Column(key="covered", title="covered", metric=COVERAGE),
)


def with_energy(measurements: Sequence[Measurement]) -> list[tuple[Measurement, EnergyFigures]]:
    return [(each, each.energy) for each in measurements if isinstance(each.energy, EnergyFigures)]


def choose_energy_columns(measurements: Sequence[Measurement]) -> tuple[Column, ...]:
    """Return the column of energy per item, if a power meter measured it."""
    return (
        (ENERGY_COLUMN,)
        if any(isinstance(energy.per_item, Estimate) for _, energy in with_energy(measurements))
        else ()
    )


def make_energy_entries(measurement: Measurement) -> dict[str, Entry]:
    """Return the entry of energy per item; empty without a figure: the energy table gives the reason."""
    energy = measurement.energy
    if not isinstance(energy, EnergyFigures) or isinstance(energy.per_item, Missing):
        return {}
    return {ENERGY_COLUMN.key: energy.per_item}


def energy_table(measurements: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Table | None:
    """Return a table of the energy over the steady windows; None if no power meter could be read."""
    found = with_energy(measurements)
    if not found:
        return None
    sources = "; ".join(dict.fromkeys(energy.source for _, energy in found))
    return Table(
        title=f"Energy over the steady steps, by {sources}",
        columns=_COLUMNS,
        rows=tuple(_make_energy_row(each, energy, name_of(each)) for each, energy in found),
        notes=tuple(_energy_notes([energy for _, energy in found])),
    )


def _make_energy_row(measurement: Measurement, energy: EnergyFigures, name: str) -> Row:
    peak: dict[str, Entry] = {}
    if energy.peak_watts is not None:
        peak = {"peak": Number(value=energy.peak_watts, unit="W")}
    return Row(
        entries={
            "what": Text(text=name),
            "energy": energy.per_item,
            "net_energy": energy.net_per_item,
            "power": energy.watts,
            **peak,
            "covered": RatioEntry(value=energy.coverage, of="steady window"),
        },
        status=measurement.status,
        runs=measurement.runs,
        facts=measurement.records[-1].columns(),
    )


def _energy_notes(found: Sequence[EnergyFigures]) -> list[str]:
    idle = {show_scaled(each.idle_watts.value, "W") for each in found if isinstance(each.idle_watts, Estimate)}
    notes = [f"net of idle: without the {', '.join(sorted(idle))} that the idle machine draws"] if idle else []
    return notes + ([_LESS_THAN_ALL] if any(each.whole == "chips" for each in found) else [])


def explain_no_energy(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """Say why there is no energy, in one sentence, if telemetry was taken without a power meter."""
    reasons = [each.energy.reason for each in measurements if isinstance(each.energy, Missing)]
    if not reasons or with_energy(measurements):
        return ()
    return (f"No joules: {reasons[0]}. `rigdyno doctor` says what would add a meter.",)


def phase_title(name: str) -> str:
    """Return the title of a phase; only the exposed part of communication takes time."""
    return "exposed" if name == "communication" else name


def make_soak_columns(unit: str | None) -> tuple[Column, ...]:
    """Return the columns of a soak. `unit` is that of the rates; None if they have several."""
    rate = THROUGHPUT if unit is None else THROUGHPUT.in_unit(unit)
    return (
        Column(key="burst", title="burst", metric=rate),
        Column(key="sustained", title="sustained", metric=rate),
        Column(key="kept", title="kept", metric=KEPT_SHARE),
        Column(key="held", title="held", numeric=False),
    )


def make_soak_entries(soak: Soak, unit: str) -> dict[str, Entry]:
    kept: dict[str, Entry] = {"kept": RatioEntry(value=soak.sustained / soak.burst, of="burst")} if soak.burst else {}
    return {
        "burst": Number(value=soak.burst, unit=unit),
        "sustained": Number(value=soak.sustained, unit=unit),
        **kept,
        "held": Text(text="THROTTLED" if soak.throttled else "no" if soak.fell else "yes"),
    }


def make_soak_figure(soak: Soak, unit: str, verdict: Verdict | None = None, name: str = "") -> Figure:
    """Return a figure of the rate over time, with clock frequency and temperature if they can be read."""
    curves = [("rate over time", "rate", unit, soak.rates), ("clock", "clock", "MHz", soak.clock_mhz)]
    curves += [("temperature", "temperature", "°C", soak.temperature_c)]
    return Figure(
        key=figure_key("soak", name),
        kind="timeline",
        title=f"How the rate held{f': {name}' if name else ''}",
        x=Axis(quantity="time", unit="s", along="time"),
        panels=tuple(
            Panel(title=title, y=Axis(quantity=quantity, unit=its_unit), series=(_make_series(title, soak, values),))
            for title, quantity, its_unit, values in curves
            if values
        ),
        verdict=verdict,
    )


def _make_series(name: str, soak: Soak, values: tuple[float, ...]) -> Series:
    return Series(name=name, role="measured", data=tuple(map(datum, soak.seconds, values)))


def find_verdict(measurement: Measurement) -> Verdict | None:
    return None if measurement.validity is None else measurement.validity.verdict


def joules_of(measurement: Measurement) -> float | None:
    """Return the energy of a job's steps, at the power of the steady ones; None if it is unknown."""
    energy, job = measurement.energy, measurement.job
    return energy.watts.value * job.loop if isinstance(energy, EnergyFigures) and job is not None else None


def why_no_joules(measurement: Measurement) -> str:
    if isinstance(measurement.energy, Missing):
        return measurement.energy.reason
    return "nobody sampled it" if measurement.job is not None else measurement.why_missing()
