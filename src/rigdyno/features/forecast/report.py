"""The view of a forecast: the given points, the expected throughput beyond them, and its assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from rigdyno.analyse.scaling import efficiency
from rigdyno.base.units import JOULES_PER_KWH, rate_unit, show_percent
from rigdyno.features.forecast.curve import REACH, ScalingCurve
from rigdyno.features.forecast.links import Crossing, doubts, rests_on_link
from rigdyno.schema.estimate import Estimate, Number
from rigdyno.schema.figure import Axis, Event, Figure, Panel, Series, datum_of
from rigdyno.schema.metric import EFFICIENCY, JOB_ENERGY, JOB_TIME, SPEEDUP, STEP_TIME, THROUGHPUT
from rigdyno.schema.scaling import Expected, ScalingPoint
from rigdyno.schema.view import Column, Entry, Row, Table, View

_FORMS = {
    "power": "every doubling costs the same share of the efficiency",
    "serial": "a part of the work gets no quicker (Amdahl)",
    "logarithm": "every doubling costs the same time",
}

_COUNTS = 0.05  # the least weight of a form that is mentioned

_DRAWN_POINTS = 120

DEVICES = Column(key="devices", title="devices", identifies=True)

Origin = Literal["measured", "forecast"]


class RateAt(NamedTuple):
    devices: int
    rate: Estimate
    origin: Origin


@dataclass(frozen=True, kw_only=True)
class Work:
    """The job whose time and energy are forecast."""

    items: float
    watts_per_device: float | None = None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A curve, the sizes to forecast, and what is known about the job and the link."""

    source: str
    runs: tuple[str, ...] = ()  # of the points; empty: they are not from runs
    curve: ScalingCurve
    sizes: Sequence[int]
    unit: str
    batch: int | None = None  # items of one device in a step
    crossing: Crossing | None = None  # None: no size rests on a given link

    def measured_rates(self) -> list[RateAt]:
        return [
            RateAt(point.devices, _given_estimate(point, rate_unit(self.unit)), "measured")
            for point in self.curve.points
        ]

    def expect(self, devices: int) -> Expected:
        alone = self.curve.at(devices)
        return self.crossing.slow_down(alone) if self.crossing is not None and self._crosses(devices) else alone

    def _crosses(self, devices: int) -> bool:
        return self.crossing is not None and self.crossing.crosses(devices)

    def at(self, devices: int) -> RateAt:
        link = " and the given link" if self._crosses(devices) else ""
        return self._as_rate(self.expect(devices), f"forecast from the points above{link}")

    def _as_rate(self, expected: Expected, method: str) -> RateAt:
        rate = Estimate(
            value=expected.value,
            low=expected.low,
            high=expected.high,
            confidence=expected.confidence,
            n=len(self.curve.points),
            unit=rate_unit(self.unit),
            method=method,
        )
        return RateAt(expected.devices, rate, "forecast")


def forecast_view(forecast: Forecast, work: Work | None, remarks: Sequence[str]) -> View:
    figures = [*forecast.measured_rates(), *map(forecast.at, forecast.sizes)]
    crossing = forecast.crossing
    return View(
        title="What a larger machine would give",
        rigs=(f"from {len(forecast.curve.points)} points of {forecast.source}",),
        doubts=tuple(doubts(forecast.curve.points, [forecast.expect(size) for size in forecast.sizes])),
        tables=(_rates_table(figures, forecast), *(() if work is None else (_job_table(figures, work, forecast),))),
        figures=(_fan_figure(forecast),),
        closing=(_forms_sentence(forecast.curve), *(rests_on_link(crossing, forecast.sizes) if crossing else ())),
        warnings=(*remarks, *_reach_warnings(forecast.curve, forecast.sizes)),
    )


def _given_estimate(point: ScalingPoint, unit: str) -> Estimate:
    """Return a given point as an estimate; a bare number has no interval."""
    if point.estimate is not None:
        return msgspec.structs.replace(point.estimate, unit=unit)
    return _bare_estimate(point.throughput, unit, "as given")


def _bare_estimate(value: float, unit: str, method: str) -> Estimate:
    return Estimate(value=value, n=1, unit=unit, method=method)


def _rates_table(figures: Sequence[RateAt], forecast: Forecast) -> Table:
    first = forecast.curve.points[0]
    one = first.throughput / first.devices
    rows = []
    for figure in figures:
        entries: dict[str, Entry] = {"rate": figure.rate}
        if forecast.batch is not None:
            entries["step"] = _step_seconds(figure, forecast.batch)
        entries["speedup"] = speedup = _speedup(figure, one)
        entries["efficiency"] = efficiency(speedup, figure.devices)
        rows.append(_row(figure, entries, forecast))
    columns = (
        DEVICES,
        Column(key="rate", title="throughput", metric=THROUGHPUT.of(forecast.unit)),
        *(() if forecast.batch is None else (Column(key="step", title="step", metric=STEP_TIME),)),
        Column(key="speedup", title="speedup", metric=SPEEDUP, bare=True),
        Column(key="efficiency", title="efficiency", metric=EFFICIENCY),
    )
    return Table(title=f"{forecast.unit}s a second, of all devices together", columns=columns, rows=tuple(rows))


def _speedup(figure: RateAt, one: float) -> Estimate:
    """Return the ratio to one device of the smallest size.

    For a forecast, that device counts as exact, and the interval stays. A ratio of two measurements can't have the
    interval of one of them.
    """
    if figure.origin == "measured":
        return _bare_estimate(figure.rate.value / one, "x", "ratio to a device of the smallest size")
    return figure.rate.scaled(1 / one, "x")


def _step_seconds(figure: RateAt, batch: int) -> Estimate:
    """Return the time of one step at this throughput."""
    items = figure.devices * batch
    return figure.rate.mapped(lambda rate: items / rate, "s")


def _job_table(figures: Sequence[RateAt], work: Work, forecast: Forecast) -> Table:
    rows = []
    for figure in figures:
        entries: dict[str, Entry] = {"time": _amount_over_rate(figure, work.items, "s")}
        if work.watts_per_device is not None:
            watts = work.watts_per_device * figure.devices
            entries["energy"] = _amount_over_rate(figure, watts * work.items / JOULES_PER_KWH, "kWh")
        rows.append(_row(figure, entries, forecast))
    energy = () if work.watts_per_device is None else (Column(key="energy", title="energy", metric=JOB_ENERGY),)
    columns = (DEVICES, Column(key="time", title="time", metric=JOB_TIME), *energy)
    return Table(title=f"A job of {work.items:.4g} {forecast.unit}s", columns=columns, rows=tuple(rows))


def _row(figure: RateAt, entries: dict[str, Entry], forecast: Forecast) -> Row:
    known = {"devices": Number(value=figure.devices), **entries}
    return Row(entries=known, origin=figure.origin, runs=forecast.runs)


def _amount_over_rate(figure: RateAt, amount: float, unit: str) -> Number:
    """Return an amount divided by the throughput, such as the time of a job."""
    whole = figure.rate.mapped(lambda rate: amount / rate, unit)
    return Number(value=whole.value, low=whole.low, high=whole.high, unit=unit)


def _fan_figure(forecast: Forecast) -> Figure:
    """Draw the given points and the forecast; the band is the interval of the forecast only."""
    expected = [forecast.at(size) for size in _drawn_sizes(forecast.curve.largest, forecast.sizes)]
    measured = Series(
        name="measured",
        role="measured",
        data=tuple(datum_of(each.devices, each.rate) for each in forecast.measured_rates()),
    )
    predicted = Series(
        name="forecast", role="predicted", data=tuple(datum_of(each.devices, each.rate) for each in expected)
    )
    return Figure(
        key="forecast",
        kind="fan",
        title="throughput by number of devices",
        x=Axis(quantity="devices", along="devices"),
        panels=(Panel(y=Axis(quantity="throughput", unit=rate_unit(forecast.unit)), series=(measured, predicted)),),
        events=(
            Event(
                x=float(forecast.curve.largest),
                label="the largest that was measured; behind it a forecast",
                kind="end_of_measured",
            ),
        ),
        caption=f"From {len(forecast.curve.points)} points of {forecast.source}",
    )


def _drawn_sizes(measured: int, asked: Sequence[int]) -> list[int]:
    beyond = [size for size in asked if size > measured]
    largest = max([measured, *beyond])
    return sorted({*range(measured + 1, largest, max(1, (largest - measured) // _DRAWN_POINTS)), *beyond})


def _forms_sentence(curve: ScalingCurve) -> str:
    shares = sorted(((weight, form) for form, weight in curve.weights.items() if weight >= _COUNTS), reverse=True)
    forms = "; ".join(f"{_FORMS[form]} ({show_percent(weight)})" for weight, form in shares)
    return f"Forms, weighted by how well they predict the later of these points from the earlier ones: {forms}."


def _reach_warnings(curve: ScalingCurve, sizes: Sequence[int]) -> list[str]:
    far = [size for size in sizes if size > REACH * curve.largest]
    if not far:
        return []
    return [
        f"{', '.join(map(str, far))} devices are more than {REACH:g} times the largest that was measured "
        f"({curve.largest}): intervals are only known to hold up to there"
    ]
