"""A forecast: measured points, and beyond them what is expected: a dashed line in the band of its interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rigdyno.report.figures import _layers
from rigdyno.report.figures._rows import ChartRow, rows_of, values_of, wants_log, x_unit, y_unit
from rigdyno.report.figures._style import HEIGHT, WIDTH, is_doubtful, styles_of
from rigdyno.report.figures.curve import has_points, middle, x_axis, y_axis
from rigdyno.schema.figure import Figure, Series

if TYPE_CHECKING:
    import altair as alt

FEW = 10  # predicted values that get a sign each


def chart(figure: Figure) -> alt.LayerChart:
    import altair as alt

    panel, x = figure.panels[0], x_unit(figure)
    unit, styles = y_unit(panel), styles_of(panel.series, doubtful=is_doubtful(figure))
    place, y = x_axis(figure, x), y_axis(panel.y, unit, values_of(panel.series), log=wants_log(panel.y, panel.series))
    by_series = [(series, list(rows_of(series, unit, x))) for series in panel.series]
    rows = [row for _, found in by_series for row in found]
    measured = [row for series, found in by_series if series.role == "measured" for row in found]
    signs = [row for series, found in by_series if _is_marked(series) for row in found]
    layers = [
        *(
            _band(found, style.colour, place)
            for (series, found), style in zip(by_series, styles, strict=True)
            if series.role == "predicted"
        ),
        _layers.lines(rows, panel.series, styles, place, y),
        *_layers.intervals(measured, across=False, place={"x": place}),
        _layers.points(signs, panel.series, styles, place, y),
        *_layers.events(figure.events, x, middle(figure)),
        *_layers.stamp(figure, WIDTH, HEIGHT),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def _band(rows: Sequence[ChartRow], colour: str, place: Any) -> alt.Chart:
    """From the low to the high ends of the intervals; without any it is empty."""
    import altair as alt

    inside = [row for row in rows if "low" in row]
    area = _layers.data(inside).mark_area(color=colour, opacity=0.22, aria=False)
    return area.encode(x=place, y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), detail=alt.Detail("segment:N"))


def _is_marked(series: Series) -> bool:
    return has_points(series) and (series.role != "predicted" or len(series.data) <= FEW)
