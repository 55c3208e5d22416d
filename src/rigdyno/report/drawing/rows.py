"""Convert the numbers of a figure to the rows of a chart, in the unit that its axis names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rigdyno.base.units import show_number
from rigdyno.report.text import choose_prefix
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series

ChartRow = dict[str, Any]

WIDE_RANGE = 50.0  # ratio of the largest value to the smallest above which only a log axis shows both


@dataclass(frozen=True)
class Unit:
    """The unit of an axis, with a prefix such that its largest value has few digits before the decimal point."""

    name: str
    factor: float  # from the base unit to this one

    def title(self, axis: Axis) -> str:
        return f"{axis.quantity} ({self.name})" if self.name else axis.quantity

    def format(self, value: float) -> str:
        return f"{show_number(value * self.factor)} {self.name}".rstrip()


def choose_unit(axis: Axis, values: Iterable[float]) -> Unit:
    if axis.unit == "share":
        return Unit("%", 100.0)
    largest = max((abs(value) for value in values), default=0.0)
    if largest == 0.0:
        return Unit(axis.unit, 1.0)
    _, prefix, factor = choose_prefix(largest, axis.unit)
    return Unit(prefix + axis.unit, factor)


def list_values(series: Iterable[Series]) -> list[float]:
    """Return every value that is drawn, including the ends of intervals."""
    data = [datum for each in series for datum in each.data if datum.value is not None]
    return [each for datum in data for each in (datum.value, datum.low, datum.high) if each is not None]


def y_unit(panel: Panel) -> Unit:
    return choose_unit(panel.y, list_values(panel.series))


def x_unit(figure: Figure) -> Unit:
    xs = [datum.x for series in figure.series for datum in series.data if not isinstance(datum.x, str)]
    if figure.x.along == "time":
        longest = max(xs, default=0.0)
        return Unit("h", 1 / 3600) if longest > 7200 else Unit("min", 1 / 60) if longest > 300 else Unit("s", 1.0)
    return choose_unit(figure.x, xs)


def wants_log(axis: Axis, series: Iterable[Series]) -> bool:
    """Return whether the axis is logarithmic.

    It is if the figure asks for it, or if the smallest value would vanish next to the largest; never with values that
    aren't above zero.
    """
    shown = list_values(series)
    if axis.scale == "linear" or not shown or min(shown) <= 0:
        return False
    return axis.scale == "log" or max(shown) > WIDE_RANGE * min(shown)


def log_ticks(values: Iterable[float]) -> list[float]:
    """Return powers of ten as ticks, and 2 and 5 times each if there are few of them."""
    shown = [value for value in values if value > 0]
    if not shown:
        return [1.0]
    first, last = math.floor(math.log10(min(shown))), math.ceil(math.log10(max(shown)))
    every = max(1, (last - first) // 8)
    factors = (1.0, 2.0, 5.0) if last - first <= 3 else (1.0,)
    return [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]


def label_series(series: Series) -> str:
    """Return the name of a series, with its role unless it was measured or the name says it."""
    is_known = series.role == "measured" or series.role in series.name.lower()
    return series.name if is_known else f"{series.name} ({series.role})"


def make_rows(series: Series, unit: Unit, x: Unit | None = None) -> Iterator[ChartRow]:
    """Yield a row for each value. A gap begins a new segment: lines are drawn within segments and never cross a gap."""
    segment = 0
    for datum in series.data:
        if datum.value is None:
            segment += 1
            continue
        yield {
            "x": datum.x if isinstance(datum.x, str) or x is None else datum.x * x.factor,
            "y": datum.value * unit.factor,
            "series": label_series(series),
            "segment": f"{label_series(series)}/{segment}",
            "said": describe_mark(series, datum, unit, x),
            **_optional_fields(datum, unit, x),
        }


def _optional_fields(datum: Datum, unit: Unit, x: Unit | None) -> ChartRow:
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


def describe_mark(series: Series, datum: Datum, unit: Unit, x: Unit | None) -> str:
    """Describe a mark for a tooltip and for a screen reader: name, value, interval, n, verdict."""
    place = datum.label or (datum.x if isinstance(datum.x, str) else "" if x is None else x.format(datum.x))
    name = label_series(series) if label_series(series) != place else ""
    parts = [f"{', '.join(filter(None, (place, name)))}: {unit.format(datum.value or 0.0)}"]
    if datum.interval is not None:
        kind = "interval" if datum.confidence is None else f"{100 * datum.confidence:.0f} % interval"
        parts.append(f"{kind} {unit.format(datum.interval[0])} to {unit.format(datum.interval[1])}")
    if datum.n is not None:
        parts.append(f"n = {datum.n:,}")
    return "; ".join([*parts, *filter(None, (datum.verdict, datum.note))])


def number_duplicates(rows: Sequence[ChartRow]) -> list[ChartRow]:
    """Number categories of the same name in one series: else one bar would cover the other."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for row in rows:
        seen[row["series"], row["x"]] += 1
        times = seen[row["series"], row["x"]]
        found.append(row if times == 1 else {**row, "x": f"{row['x']} ({times})"})
    return found
