"""What a soak shows: how the rate held over time."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.schema.measured import Measurement, Soak
from rigdyno.schema.view import Column, Number, Plot, Presentation, Row, Share, Table, Text
from rigdyno.suites._device_tables import VARIANT_NAMES, variant
from rigdyno.units import show_number, show_seconds


def presentation(measurements: Sequence[Measurement]) -> Presentation:
    soaked = [(measurement, measurement.soak) for measurement in measurements if measurement.soak is not None]
    return Presentation(
        title="device: soak, the tensor add over time",
        tables=(Table(title="Burst against sustained", columns=_COLUMNS, rows=tuple(_row(*pair) for pair in soaked)),),
        plots=tuple(plot for _, soak in soaked for plot in _plots(soak)),
        closing=tuple(_sentence(soak) for _, soak in soaked),
    )


_COLUMNS = (
    Column(key="what", title="what", numeric=False),
    Column(key="burst", title="burst"),
    Column(key="sustained", title="sustained"),
    Column(key="kept", title="kept"),
    Column(key="held", title="held", numeric=False),
)


def _row(measurement: Measurement, soak: Soak) -> Row:
    return Row(
        entries={
            "what": Text(text=VARIANT_NAMES.get(variant(measurement), variant(measurement))),
            "burst": Number(value=soak.burst, unit="it/s"),
            "sustained": Number(value=soak.sustained, unit="it/s"),
            **({"kept": Share(value=soak.sustained / soak.burst, of="burst")} if soak.burst else {}),
            "held": Text(text="THROTTLED" if soak.throttled else "no" if soak.fell else "yes"),
        },
        status=measurement.status,
        facts=measurement.records[-1].columns(),
    )


def _plots(soak: Soak) -> list[Plot]:
    curves = [("rate over time", "it/s", soak.rates), ("clock", "MHz", soak.clock_mhz)]
    curves += [("temperature", "°C", soak.temperature_c)]
    return [
        Plot(title=title, unit=unit, seconds=soak.seconds, values=values) for title, unit, values in curves if values
    ]


def _sentence(soak: Soak) -> str:
    length = show_seconds(soak.seconds[-1] - soak.seconds[0]) if len(soak.seconds) > 1 else "no time"
    rates = f"{show_number(soak.burst)} it/s at first, {show_number(soak.sustained)} it/s at the end of {length}"
    if soak.throttled:
        return f"Throttled: {rates}. The published 'overheated' row fell the same way, from 300 to 55 it/s."
    if soak.fell:
        return f"It fell: {rates}. Other load or a short soak may be why: it isn't called throttled."
    return f"It held: {rates}."
