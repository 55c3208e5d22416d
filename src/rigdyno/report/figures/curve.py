"""A curve against its ideal, over devices, batches or sizes: points with intervals; no line crosses a gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rigdyno.report.figures import _layers
from rigdyno.report.figures._rows import Unit, log_ticks, rows_of, values_of, wants_log, x_unit, y_unit
from rigdyno.report.figures._style import HEIGHT, WIDTH, is_doubtful, styles_of
from rigdyno.schema.figure import Axis, Figure, Series

if TYPE_CHECKING:
    import altair as alt

MOST_COUNTS = 12  # that have a tick each
WIDE_ALONG = 16  # the largest x over the smallest from which on the axis is a logarithm's


def chart(figure: Figure) -> alt.LayerChart:
    import altair as alt

    panel, x = figure.panels[0], x_unit(figure)
    unit, styles = y_unit(panel), styles_of(panel.series, doubtful=is_doubtful(figure))
    place = x_axis(figure, x)
    y = y_axis(panel.y, unit, values_of(panel.series), log=wants_log(panel.y, panel.series))
    rows = [row for series in panel.series for row in rows_of(series, unit, x)]
    marked = [row for series in panel.series if has_points(series) for row in rows_of(series, unit, x)]
    layers = [
        *_layers.bands(panel, unit),
        _layers.lines(rows, panel.series, styles, place, y),
        *_layers.intervals(marked, across=False, place={"x": place}),
        _layers.points(marked, panel.series, styles, place, y),
        *_layers.words_on(figure, marked, place, y, dy=-14),
        *_layers.events(figure.events, x, middle(figure)),
        *_layers.stamp(figure, WIDTH, HEIGHT),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def middle(figure: Figure) -> float:
    """Of what the x axis shows: words of events behind it lie to their left."""
    xs = numbers_along(figure)
    if not xs:
        return math.inf
    return math.sqrt(xs[0] * xs[-1]) if _is_log(figure, xs) else (xs[0] + xs[-1]) / 2


def numbers_along(figure: Figure) -> list[float]:
    return sorted({datum.x for series in figure.series for datum in series.data if not isinstance(datum.x, str)})


def _is_log(figure: Figure, xs: Sequence[float]) -> bool:
    if figure.x.scale is not None or not xs or xs[0] <= 0:
        return figure.x.scale == "log" and bool(xs) and xs[0] > 0
    return xs[-1] >= WIDE_ALONG * xs[0]


def has_points(series: Series) -> bool:
    """What is only thought of has no values of its own."""
    return series.role not in ("ideal", "limit")


def x_axis(figure: Figure, unit: Unit) -> Any:
    import altair as alt

    counts = figure.x.along in ("devices", "nodes", "batch")
    xs = numbers_along(figure)
    log = _is_log(figure, xs)
    shown = [value * unit.factor for value in xs]
    few = shown if counts and len(xs) <= MOST_COUNTS else log_ticks(shown) if log and not counts else None
    axis = alt.Axis(title=unit.title(figure.x), format="~g", **({"values": few} if few else {}))
    scale = (
        alt.Scale(type="log", base=2, nice=False, padding=14) if log else alt.Scale(nice=False, padding=14, zero=False)
    )
    return alt.X("x:Q", axis=axis, scale=scale)


def y_axis(axis: Axis, unit: Unit, values: Sequence[float], *, log: bool) -> Any:
    import altair as alt

    scale = alt.Scale(type="log") if log else alt.Scale(zero=True)
    ticks = log_ticks(value * unit.factor for value in values)
    shown = alt.Axis(title=unit.title(axis), **({"format": "~g", "values": ticks} if log else {"tickCount": 6}))
    return alt.Y("y:Q", axis=shown, scale=scale)
