"""A figure's numbers as the rows that a chart takes, in the unit that its axis names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rigdyno.report.format_entry import prefixed
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series
from rigdyno.units import show_number

ChartRow = dict[str, Any]
WIDE_RANGE = 50.0  # the largest value over the smallest from which on only a log axis shows both


@dataclass(frozen=True)
class Unit:
    """The prefix that an axis is drawn with: the largest value has few digits before its point."""

    name: str
    factor: float

    def title(self, axis: Axis) -> str:
        return f"{axis.quantity} ({self.name})" if self.name else axis.quantity

    def shown(self, value: float) -> str:
        return f"{show_number(value * self.factor)} {self.name}".rstrip()


def unit_of(axis: Axis, values: Iterable[float]) -> Unit:
    if axis.unit == "share":
        return Unit("%", 100.0)
    largest = max((abs(value) for value in values), default=0.0)
    if largest == 0.0:
        return Unit(axis.unit, 1.0)
    _, prefix, factor = prefixed(largest, axis.unit)
    return Unit(prefix + axis.unit, factor)


def values_of(series: Iterable[Series]) -> list[float]:
    """Every height that is drawn, ends of intervals among them."""
    data = [datum for each in series for datum in each.data if datum.value is not None]
    return [each for datum in data for each in (datum.value, datum.low, datum.high) if each is not None]


def y_unit(panel: Panel) -> Unit:
    return unit_of(panel.y, values_of(panel.series))


def x_unit(figure: Figure) -> Unit:
    xs = [datum.x for series in figure.series for datum in series.data if not isinstance(datum.x, str)]
    if figure.x.along == "time":  # minutes and hours as a person says them
        longest = max(xs, default=0.0)
        return Unit("h", 1 / 3600) if longest > 7200 else Unit("min", 1 / 60) if longest > 300 else Unit("s", 1.0)
    return unit_of(figure.x, xs)


def wants_log(axis: Axis, series: Iterable[Series]) -> bool:
    """Asked for, or needed to see the smallest beside the largest; impossible where a value isn't above zero."""
    shown = values_of(series)
    if axis.scale == "linear" or not shown or min(shown) <= 0:
        return False
    return axis.scale == "log" or max(shown) > WIDE_RANGE * min(shown)


def log_ticks(values: Iterable[float]) -> list[float]:
    """Powers of ten, with 2 and 5 times each where there are few of them."""
    shown = [value for value in values if value > 0]
    if not shown:
        return [1.0]
    first, last = math.floor(math.log10(min(shown))), math.ceil(math.log10(max(shown)))
    every = max(1, (last - first) // 8)
    factors = (1.0, 2.0, 5.0) if last - first <= 3 else (1.0,)
    return [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]


def label_of(series: Series) -> str:
    """Its name, with what it is where that isn't a measurement."""
    said = series.role == "measured" or series.role in series.name.lower()
    return series.name if said else f"{series.name} ({series.role})"


def rows_of(series: Series, unit: Unit, x: Unit | None = None) -> Iterator[ChartRow]:
    """A row for each value. Lines are drawn within one segment: a gap begins the next, and nothing crosses it."""
    segment = 0
    for datum in series.data:
        if datum.value is None:
            segment += 1
            continue
        yield {
            "x": datum.x if isinstance(datum.x, str) or x is None else datum.x * x.factor,
            "y": datum.value * unit.factor,
            "series": label_of(series),
            "segment": f"{label_of(series)}/{segment}",
            "said": said(series, datum, unit, x),
            **_ends(datum, unit, x),
        }


def _ends(datum: Datum, unit: Unit, x: Unit | None) -> ChartRow:
    found: ChartRow = {}
    if datum.interval is not None:
        found |= {"low": datum.interval[0] * unit.factor, "high": datum.interval[1] * unit.factor}
    if datum.x_end is not None:
        found["x_end"] = datum.x_end * (1.0 if x is None else x.factor)
    if datum.label:
        found["label"] = datum.label
    if datum.verdict in ("SUSPECT", "INVALID"):
        found["verdict"] = datum.verdict
    return {**found, "doubtful": "verdict" in found}


def said(series: Series, datum: Datum, unit: Unit, x: Unit | None) -> str:
    """What a reader sees at this mark, and hears: name, value, interval, n, verdict."""
    place = datum.label or (datum.x if isinstance(datum.x, str) else "" if x is None else x.shown(datum.x))
    name = label_of(series) if label_of(series) != place else ""
    parts = [f"{', '.join(filter(None, (place, name)))}: {unit.shown(datum.value or 0.0)}"]
    if datum.interval is not None:
        kind = "interval" if datum.confidence is None else f"{100 * datum.confidence:.0f} % interval"
        parts.append(f"{kind} {unit.shown(datum.interval[0])} to {unit.shown(datum.interval[1])}")
    if datum.n is not None:
        parts.append(f"n = {datum.n:,}")
    return "; ".join([*parts, *filter(None, (datum.verdict, datum.note))])


def distinct(rows: Sequence[ChartRow]) -> list[ChartRow]:
    """Categories of one name in one series become two: else one bar would lie on the other."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for row in rows:
        seen[row["series"], row["x"]] += 1
        times = seen[row["series"], row["x"]]
        found.append(row if times == 1 else {**row, "x": f"{row['x']} ({times})"})
    return found
