"""What a soak shows: how the rate held over time."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.schema.measured import Measurement, Soak
from rigdyno.schema.view import Presentation, Row, Table, Text
from rigdyno.suites._device_tables import VARIANT_NAMES, WHAT, variant
from rigdyno.suites._soak import TITLE, soak_columns, soak_entries, soak_figure, verdict_of
from rigdyno.units import rate_unit, show_number, show_seconds

UNIT = rate_unit("iteration")


def presentation(measurements: Sequence[Measurement]) -> Presentation:
    soaked = [(measurement, measurement.soak) for measurement in measurements if measurement.soak is not None]
    return Presentation(
        title="device: soak, the tensor add over time",
        tables=(Table(title=TITLE, columns=(WHAT, *soak_columns(UNIT)), rows=tuple(_row(*pair) for pair in soaked)),),
        figures=tuple(soak_figure(soak, UNIT, verdict_of(measurement)) for measurement, soak in soaked),
        closing=tuple(_sentence(soak) for _, soak in soaked),
    )


def _row(measurement: Measurement, soak: Soak) -> Row:
    return Row(
        entries={
            "what": Text(text=VARIANT_NAMES.get(variant(measurement), variant(measurement))),
            **soak_entries(soak, UNIT),
        },
        status=measurement.status,
        facts=measurement.records[-1].columns(),
    )


def _sentence(soak: Soak) -> str:
    length = show_seconds(soak.seconds[-1] - soak.seconds[0]) if len(soak.seconds) > 1 else "no time"
    rates = f"{show_number(soak.burst)} it/s at first, {show_number(soak.sustained)} it/s at the end of {length}"
    if soak.throttled:
        return f"Throttled: {rates}. The published 'overheated' row fell the same way, from 300 to 55 it/s."
    if soak.fell:
        return f"It fell: {rates}. Other load or a short soak may be why: it isn't called throttled."
    return f"It held: {rates}."
