"""What a forecast shows: the points that were given, what is expected beyond them, and what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rigdyno.analyse.forecast import REACH, Curve
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.scaling import Expected, Point
from rigdyno.schema.view import Column, Entry, Plot, Row, Table, Text, View
from rigdyno.units import rate_unit, show_number, show_percent, show_seconds

_FORMS = {
    "power": "every doubling costs the same share of the efficiency",
    "serial": "a part of the work gets no quicker (Amdahl)",
    "logarithm": "every doubling costs the same time",
}
_COUNTS = 0.05  # the least share of a form that is worth a word
_DRAWN_POINTS = 120


Origin = Literal["measured", "forecast"]
Figure = tuple[Expected, Origin]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the devices shall do."""

    items: float
    watts_per_device: float | None = None


def forecast_view(
    source: str, curve: Curve, sizes: Sequence[int], unit: str, work: Work | None, remarks: Sequence[str]
) -> View:
    figures: list[Figure] = [
        *((_as_given(point), "measured") for point in curve.points),
        *((curve.at(size), "forecast") for size in sizes),
    ]
    return View(
        title="What a larger rig would give",
        rigs=(f"from {len(curve.points)} points of {source}",),
        tables=(_rates(figures, curve, unit), *(() if work is None else (_job(figures, work, unit),))),
        plots=(_plot(curve, max([curve.largest, *sizes]), unit),),
        closing=(_rests_on(curve),),
        warnings=(*remarks, *_too_far(curve, sizes)),
    )


def _as_given(point: Point) -> Expected:
    rate = point.throughput
    return Expected(devices=point.devices, value=rate, low=rate, high=rate, confidence=0.0)


def _rates(figures: Sequence[Figure], curve: Curve, unit: str) -> Table:
    one = curve.points[0].throughput / curve.points[0].devices
    rows = []
    for figure, origin in figures:
        rate = _estimate(figure, len(curve.points) if origin == "forecast" else 1, rate_unit(unit))
        efficiency = Text(text=show_percent(figure.value / one / figure.devices))
        entries: dict[str, Entry] = {"rate": rate, "speedup": rate.scaled(1 / one, ""), "efficiency": efficiency}
        rows.append(_row(figure, entries, origin))
    columns = _columns(rate="throughput", speedup="speedup", efficiency="efficiency")
    return Table(title=f"{unit}s a second, of all devices together", columns=columns, rows=tuple(rows))


def _job(figures: Sequence[Figure], work: Work, unit: str) -> Table:
    rows = []
    for figure, origin in figures:
        entries: dict[str, Entry] = {"time": Text(text=_span(figure, lambda rate: show_seconds(work.items / rate)))}
        if work.watts_per_device is not None:
            watts = work.watts_per_device * figure.devices
            entries["energy"] = Text(text=_span(figure, partial(_energy, watts, work.items)))
        rows.append(_row(figure, entries, origin))
    columns = _columns(time="time") if work.watts_per_device is None else _columns(time="time", energy="energy")
    return Table(title=f"A job of {work.items:.4g} {unit}s", columns=columns, rows=tuple(rows))


def _columns(**titles: str) -> tuple[Column, ...]:
    return tuple(Column(key=key, title=title) for key, title in {"devices": "devices", **titles}.items())


def _row(figure: Expected, entries: dict[str, Entry], origin: Origin) -> Row:
    return Row(entries={"devices": Text(text=str(figure.devices)), **entries}, origin=origin)


def _estimate(figure: Expected, count: int, unit: str) -> Estimate:
    """Of one point there is no interval."""
    return Estimate(
        value=figure.value,
        low=figure.low,
        high=figure.high,
        confidence=figure.confidence,
        n=count,
        unit=unit,
        method="foretold from the points above",
    )


def _span(figure: Expected, shown: Callable[[float], str]) -> str:
    """From the quickest to the slowest."""
    interval = f" [{shown(figure.high)}, {shown(figure.low)}]" if figure.high > figure.low else ""
    return shown(figure.value) + interval


def _energy(watts: float, items: float, rate: float) -> str:
    return f"{show_number(watts * items / rate / 3.6e6)} kWh"


def _plot(curve: Curve, largest: int, unit: str) -> Plot:
    """Through the given points, and on from there."""
    beyond = range(curve.largest, largest + 1, max(1, (largest - curve.largest) // _DRAWN_POINTS))
    points = {point.devices: point.throughput for point in curve.points}
    points |= {size: curve.at(size).value for size in beyond if size not in points}
    return Plot(
        title="throughput by number of devices",
        unit=rate_unit(unit),
        over="devices",
        seconds=tuple(float(size) for size in points),
        values=tuple(points.values()),
        mark_seconds=float(curve.largest),
        mark_title="the largest that was measured; behind it a forecast",
    )


def _rests_on(curve: Curve) -> str:
    shares = sorted(((weight, form) for form, weight in curve.weights.items() if weight >= _COUNTS), reverse=True)
    forms = "; ".join(f"{_FORMS[form]} ({show_percent(weight)})" for weight, form in shares)
    return f"Forms, weighted by how well they foretell the later of these points from the earlier ones: {forms}."


def _too_far(curve: Curve, sizes: Sequence[int]) -> list[str]:
    far = [size for size in sizes if size > REACH * curve.largest]
    if not far:
        return []
    return [
        f"{', '.join(map(str, far))} devices are more than {REACH:g} times the largest that was measured "
        f"({curve.largest}): intervals are only known to hold up to there"
    ]
