"""What a soak shows, whatever it soaked."""

from __future__ import annotations

from rigdyno.schema.estimate import Number, Verdict
from rigdyno.schema.figure import Axis, Figure, Panel, Series, datum, figure_key
from rigdyno.schema.measured import Measurement, Soak
from rigdyno.schema.metric import KEPT_SHARE, THROUGHPUT
from rigdyno.schema.view import Column, Entry, Share, Text

TITLE = "Burst against sustained"


def soak_columns(unit: str | None) -> tuple[Column, ...]:
    """`unit`: of the rates; None: they have several."""
    rate = THROUGHPUT if unit is None else THROUGHPUT.in_unit(unit)
    return (
        Column(key="burst", title="burst", metric=rate),
        Column(key="sustained", title="sustained", metric=rate),
        Column(key="kept", title="kept", metric=KEPT_SHARE),
        Column(key="held", title="held", numeric=False),
    )


def soak_entries(soak: Soak, unit: str) -> dict[str, Entry]:
    kept: dict[str, Entry] = {"kept": Share(value=soak.sustained / soak.burst, of="burst")} if soak.burst else {}
    return {
        "burst": Number(value=soak.burst, unit=unit),
        "sustained": Number(value=soak.sustained, unit=unit),
        **kept,
        "held": Text(text="THROTTLED" if soak.throttled else "no" if soak.fell else "yes"),
    }


def soak_figure(soak: Soak, unit: str, verdict: Verdict | None = None, name: str = "") -> Figure:
    """The rate over time, with the clock and the temperature where they can be read."""
    curves = [("rate over time", "rate", unit, soak.rates), ("clock", "clock", "MHz", soak.clock_mhz)]
    curves += [("temperature", "temperature", "°C", soak.temperature_c)]
    return Figure(
        key=figure_key("soak", name),
        kind="timeline",
        title=f"How the rate held{f': {name}' if name else ''}",
        x=Axis(quantity="time", unit="s", along="time"),
        panels=tuple(
            Panel(title=title, y=Axis(quantity=quantity, unit=its_unit), series=(_over_time(title, soak, values),))
            for title, quantity, its_unit, values in curves
            if values
        ),
        verdict=verdict,
    )


def _over_time(name: str, soak: Soak, values: tuple[float, ...]) -> Series:
    return Series(name=name, role="measured", data=tuple(map(datum, soak.seconds, values)))


def verdict_of(measurement: Measurement) -> Verdict | None:
    return None if measurement.validity is None else measurement.validity.verdict
