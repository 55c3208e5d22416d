"""What a forecast shows: the points that were given, what is expected beyond them, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from rigdyno.analyse.forecast import REACH, Curve
from rigdyno.analyse.link import Crossing
from rigdyno.analyse.mechanisms import doubts
from rigdyno.report.link import rests_on_link
from rigdyno.schema.estimate import Estimate, Number
from rigdyno.schema.figure import Axis, Event, Figure, Panel, Series, datum_of
from rigdyno.schema.metric import EFFICIENCY, JOB_ENERGY, JOB_TIME, SPEEDUP, STEP_TIME, THROUGHPUT
from rigdyno.schema.scaling import Expected, Point
from rigdyno.schema.view import Column, Entry, Row, Share, Table, View
from rigdyno.units import JOULES_PER_KWH, rate_unit, show_percent

_FORMS = {
    "power": "every doubling costs the same share of the efficiency",
    "serial": "a part of the work gets no quicker (Amdahl)",
    "logarithm": "every doubling costs the same time",
}
_COUNTS = 0.05  # the least share of a form that is worth a word
_DRAWN_POINTS = 120
DEVICES = Column(key="devices", title="devices", identifies=True)


Origin = Literal["measured", "forecast"]


class RateAt(NamedTuple):
    devices: int
    rate: Estimate
    origin: Origin


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the devices shall do."""

    items: float
    watts_per_device: float | None = None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A curve, how far it is drawn, and what is known beside it."""

    source: str
    runs: tuple[str, ...] = ()  # that the points are from; empty: from elsewhere
    curve: Curve
    sizes: Sequence[int]
    unit: str
    batch: int | None = None  # items that one device does in a step
    crossing: Crossing | None = None  # None: no size rests on a given link

    def measured(self) -> list[RateAt]:
        return [
            RateAt(point.devices, _as_given(point, rate_unit(self.unit)), "measured") for point in self.curve.points
        ]

    def expected(self, devices: int) -> Expected:
        alone = self.curve.at(devices)
        return self.crossing.slowed(alone) if self.crossing is not None and self._crosses(devices) else alone

    def _crosses(self, devices: int) -> bool:
        return self.crossing is not None and self.crossing.crosses(devices)

    def at(self, devices: int) -> RateAt:
        link = " and the given link" if self._crosses(devices) else ""
        return self._predicted(self.expected(devices), f"forecast from the points above{link}")

    def _predicted(self, expected: Expected, method: str) -> RateAt:
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
    figures = [*forecast.measured(), *map(forecast.at, forecast.sizes)]
    crossing = forecast.crossing
    return View(
        title="What a larger rig would give",
        rigs=(f"from {len(forecast.curve.points)} points of {forecast.source}",),
        doubts=tuple(doubts(forecast.curve.points, [forecast.expected(size) for size in forecast.sizes])),
        tables=(_rates(figures, forecast), *(() if work is None else (_job(figures, work, forecast),))),
        figures=(_fan(forecast),),
        closing=(_rests_on(forecast.curve), *(rests_on_link(crossing, forecast.sizes) if crossing else ())),
        warnings=(*remarks, *_too_far(forecast.curve, forecast.sizes)),
    )


def _as_given(point: Point, unit: str) -> Estimate:
    """Of a bare number there is no interval."""
    if point.estimate is not None:
        return msgspec.structs.replace(point.estimate, unit=unit)
    return _bare(point.throughput, unit, "as given")


def _bare(value: float, unit: str, method: str) -> Estimate:
    return Estimate(value=value, n=1, unit=unit, method=method)


def _rates(figures: Sequence[RateAt], forecast: Forecast) -> Table:
    first = forecast.curve.points[0]
    one = first.throughput / first.devices
    rows = []
    for figure in figures:
        entries: dict[str, Entry] = {"rate": figure.rate}
        if forecast.batch is not None:
            entries["step"] = _step(figure, forecast.batch)
        entries["speedup"] = _speedup(figure, one)
        entries["efficiency"] = _efficiency(figure, one)
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
    """A ratio of two measurements doesn't get the interval of one of them."""
    if figure.origin == "measured":
        return _bare(figure.rate.value / one, "x", "ratio to a device of the smallest size")
    return figure.rate.scaled(1 / one, "x")


def _efficiency(figure: RateAt, one: float) -> Share:
    part = _speedup(figure, one).scaled(1 / figure.devices, "share")
    return Share(value=part.value, low=part.low, high=part.high, of="perfect scaling")


def _step(figure: RateAt, batch: int) -> Estimate:
    """How long one step takes: the more throughput, the shorter."""
    items = figure.devices * batch
    return figure.rate.mapped(lambda rate: items / rate, "s")


def _job(figures: Sequence[RateAt], work: Work, forecast: Forecast) -> Table:
    rows = []
    for figure in figures:
        entries: dict[str, Entry] = {"time": _for(figure, work.items, "s")}
        if work.watts_per_device is not None:
            watts = work.watts_per_device * figure.devices
            entries["energy"] = _for(figure, watts * work.items / JOULES_PER_KWH, "kWh")
        rows.append(_row(figure, entries, forecast))
    energy = () if work.watts_per_device is None else (Column(key="energy", title="energy", metric=JOB_ENERGY),)
    columns = (DEVICES, Column(key="time", title="time", metric=JOB_TIME), *energy)
    return Table(title=f"A job of {work.items:.4g} {forecast.unit}s", columns=columns, rows=tuple(rows))


def _row(figure: RateAt, entries: dict[str, Entry], forecast: Forecast) -> Row:
    known = {"devices": Number(value=figure.devices), **entries}
    return Row(entries=known, origin=figure.origin, runs=forecast.runs)


def _for(figure: RateAt, amount: float, unit: str) -> Number:
    """What takes less the more throughput there is."""
    whole = figure.rate.mapped(lambda rate: amount / rate, unit)
    return Number(value=whole.value, low=whole.low, high=whole.high, unit=unit)


def _fan(forecast: Forecast) -> Figure:
    """Through the given points, and on from there; the band is the forecast's own, of one kind of interval."""
    expected = [forecast.at(size) for size in _drawn_sizes(forecast.curve.largest, forecast.sizes)]
    measured = Series(
        name="measured", role="measured", data=tuple(datum_of(each.devices, each.rate) for each in forecast.measured())
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


def _rests_on(curve: Curve) -> str:
    shares = sorted(((weight, form) for form, weight in curve.weights.items() if weight >= _COUNTS), reverse=True)
    forms = "; ".join(f"{_FORMS[form]} ({show_percent(weight)})" for weight, form in shares)
    return f"Forms, weighted by how well they predict the later of these points from the earlier ones: {forms}."


def _too_far(curve: Curve, sizes: Sequence[int]) -> list[str]:
    far = [size for size in sizes if size > REACH * curve.largest]
    if not far:
        return []
    return [
        f"{', '.join(map(str, far))} devices are more than {REACH:g} times the largest that was measured "
        f"({curve.largest}): intervals are only known to hold up to there"
    ]
