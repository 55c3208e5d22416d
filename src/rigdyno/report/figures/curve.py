"""Draw a curve and its ideal over devices, batches or sizes: points with intervals; no line crosses a gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rigdyno.report.drawing import layers
from rigdyno.report.drawing.rows import Unit, list_values, log_ticks, make_rows, wants_log, x_unit, y_unit
from rigdyno.report.drawing.style import HEIGHT, WIDTH, choose_styles, is_doubtful
from rigdyno.schema.figure import Axis, Figure, Series

if TYPE_CHECKING:
    import altair as alt

MOST_COUNTS = 12  # number of x values up to which each has a tick

WIDE_ALONG = 16  # ratio of the largest x to the smallest from which the x axis is logarithmic


def chart(figure: Figure) -> alt.LayerChart:
    import altair as alt

    panel, x = figure.panels[0], x_unit(figure)
    unit, styles = y_unit(panel), choose_styles(panel.series, doubtful=is_doubtful(figure))
    x_encoding = x_axis(figure, x)
    y = y_axis(panel.y, unit, list_values(panel.series), log=wants_log(panel.y, panel.series))
    rows = [row for series in panel.series for row in make_rows(series, unit, x)]
    marked = [row for series in panel.series if has_points(series) for row in make_rows(series, unit, x)]
    all_layers = [
        *layers.draw_bands(panel, unit),
        layers.draw_lines(rows, panel.series, styles, x_encoding, y),
        *layers.draw_intervals(marked, across=False, position={"x": x_encoding}),
        layers.draw_points(marked, panel.series, styles, x_encoding, y),
        *layers.draw_verdicts(figure, marked, x_encoding, y, dy=-14),
        *layers.draw_events(figure.events, x, middle_of_x(figure)),
        *layers.draw_stamp(figure, WIDTH, HEIGHT),
    ]
    return alt.layer(*all_layers).properties(width=WIDTH, height=HEIGHT)


def middle_of_x(figure: Figure) -> float:
    """Return the middle of the x axis: labels of events beyond it are drawn to their left."""
    xs = list_x_values(figure)
    if not xs:
        return math.inf
    return math.sqrt(xs[0] * xs[-1]) if _is_log(figure, xs) else (xs[0] + xs[-1]) / 2


def list_x_values(figure: Figure) -> list[float]:
    return sorted({datum.x for series in figure.series for datum in series.data if not isinstance(datum.x, str)})


def _is_log(figure: Figure, xs: Sequence[float]) -> bool:
    if figure.x.scale is not None or not xs or xs[0] <= 0:
        return figure.x.scale == "log" and bool(xs) and xs[0] > 0
    return xs[-1] >= WIDE_ALONG * xs[0]


def has_points(series: Series) -> bool:
    """Return whether a series has measured or predicted values: ideals and limits are only lines."""
    return series.role not in ("ideal", "limit")


def x_axis(figure: Figure, unit: Unit) -> Any:
    import altair as alt

    counts = figure.x.along in ("devices", "nodes", "batch")
    xs = list_x_values(figure)
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
