"""Energy in tables, whatever was measured: a column beside the rates, and a table of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rigdyno.schema.energy import EnergyFigures
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import COVERAGE, ENERGY_PER_ITEM, POWER
from rigdyno.schema.view import Column, Entry, Row, Share, Table, Text
from rigdyno.units import show_scaled

PER_ITEM = Column(key="energy", title="energy", metric=ENERGY_PER_ITEM)
_COLUMNS = (
    Column(key="what", title="what", numeric=False),
    Column(key="energy", title="gross", metric=ENERGY_PER_ITEM),
    Column(key="net_energy", title="net of idle", metric=ENERGY_PER_ITEM),
    Column(key="power", title="power", metric=POWER),
    Column(key="peak", title="peak", metric=POWER),
    Column(key="covered", title="covered", metric=COVERAGE),
)


def metered(measurements: Sequence[Measurement]) -> list[tuple[Measurement, EnergyFigures]]:
    return [(each, each.energy) for each in measurements if isinstance(each.energy, EnergyFigures)]


def energy_columns(measurements: Sequence[Measurement]) -> tuple[Column, ...]:
    """A column where a meter tells what an item takes."""
    return (PER_ITEM,) if any(isinstance(energy.per_item, Estimate) for _, energy in metered(measurements)) else ()


def energy_entries(measurement: Measurement) -> dict[str, Entry]:
    """Why a row has none, the table of energy says."""
    energy = measurement.energy
    if not isinstance(energy, EnergyFigures) or isinstance(energy.per_item, Missing):
        return {}
    return {PER_ITEM.key: energy.per_item}


def energy_table(measurements: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Table | None:
    """Over the steady windows; None where no meter could be read."""
    found = metered(measurements)
    if not found:
        return None
    sources = "; ".join(dict.fromkeys(energy.source for _, energy in found))
    return Table(
        title=f"Energy over the steady steps, by {sources}",
        columns=_COLUMNS,
        rows=tuple(_row(each, energy, name_of(each)) for each, energy in found),
        notes=tuple(_notes([energy for _, energy in found])),
    )


def _row(measurement: Measurement, energy: EnergyFigures, name: str) -> Row:
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
            "covered": Share(value=energy.coverage, of="steady window"),
        },
        status=measurement.status,
        runs=measurement.runs,
        facts=measurement.records[-1].columns(),
    )


_LESS_THAN_ALL = "what these meters see is less than the whole machine takes: no memory, disks, fans, power supply"


def _notes(found: Sequence[EnergyFigures]) -> list[str]:
    idle = {show_scaled(each.idle_watts.value, "W") for each in found if isinstance(each.idle_watts, Estimate)}
    said = [f"net of idle: without the {', '.join(sorted(idle))} that the idle rig draws"] if idle else []
    return said + ([_LESS_THAN_ALL] if any(each.whole == "chips" for each in found) else [])


def no_meter(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """One sentence where telemetry was taken and no meter is among it."""
    reasons = [each.energy.reason for each in measurements if isinstance(each.energy, Missing)]
    if not reasons or metered(measurements):
        return ()
    return (f"No joules: {reasons[0]}. `rigdyno doctor` says what would add a meter.",)
