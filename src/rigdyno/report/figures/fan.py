"""Draw a forecast: measured points, and beyond them a dashed line in the band of its prediction interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rigdyno.report.drawing import layers
from rigdyno.report.drawing.rows import ChartRow, list_values, make_rows, wants_log, x_unit, y_unit
from rigdyno.report.drawing.style import HEIGHT, WIDTH, choose_styles, is_doubtful
from rigdyno.report.figures.curve import has_points, middle_of_x, x_axis, y_axis
from rigdyno.schema.figure import Figure, Series

if TYPE_CHECKING:
    import altair as alt

FEW = 10  # number of predicted values up to which each gets a marker


def chart(figure: Figure) -> alt.LayerChart:
    import altair as alt

    panel, x = figure.panels[0], x_unit(figure)
    unit, styles = y_unit(panel), choose_styles(panel.series, doubtful=is_doubtful(figure))
    x_encoding, y = (
        x_axis(figure, x),
        y_axis(panel.y, unit, list_values(panel.series), log=wants_log(panel.y, panel.series)),
    )
    by_series = [(series, list(make_rows(series, unit, x))) for series in panel.series]
    rows = [row for _, found in by_series for row in found]
    measured = [row for series, found in by_series if series.role == "measured" for row in found]
    signs = [row for series, found in by_series if _is_marked(series) for row in found]
    all_layers = [
        *(
            _band(found, style.colour, x_encoding)
            for (series, found), style in zip(by_series, styles, strict=True)
            if series.role == "predicted"
        ),
        layers.draw_lines(rows, panel.series, styles, x_encoding, y),
        *layers.draw_intervals(measured, across=False, position={"x": x_encoding}),
        layers.draw_points(signs, panel.series, styles, x_encoding, y),
        *layers.draw_events(figure.events, x, middle_of_x(figure)),
        *layers.draw_stamp(figure, WIDTH, HEIGHT),
    ]
    return alt.layer(*all_layers).properties(width=WIDTH, height=HEIGHT)


def _band(rows: Sequence[ChartRow], colour: str, x_encoding: Any) -> alt.Chart:
    """Draw the band between the ends of the intervals; empty without any."""
    import altair as alt

    inside = [row for row in rows if "low" in row]
    area = layers.plot_rows(inside).mark_area(color=colour, opacity=0.22, aria=False)
    return area.encode(x=x_encoding, y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), detail=alt.Detail("segment:N"))


def _is_marked(series: Series) -> bool:
    return has_points(series) and (series.role != "predicted" or len(series.data) <= FEW)
