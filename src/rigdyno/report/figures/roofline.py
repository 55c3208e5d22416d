"""Draw a roofline: the limits of memory and arithmetic as measured on this machine, and the workloads below them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rigdyno.report.drawing import layers
from rigdyno.report.drawing.rows import ChartRow, log_ticks, make_rows, x_unit, y_unit
from rigdyno.report.drawing.style import HEIGHT, INK, WIDTH, choose_styles, is_doubtful
from rigdyno.schema.figure import Figure

if TYPE_CHECKING:
    import altair as alt


def chart(figure: Figure) -> alt.LayerChart:
    import altair as alt

    panel, x = figure.panels[0], x_unit(figure)
    unit, styles = y_unit(panel), choose_styles(panel.series, doubtful=is_doubtful(figure))
    by_series = [(series, _keep_positive(make_rows(series, unit, x))) for series in panel.series]
    every = [row for _, found in by_series for row in found]
    log = alt.Scale(type="log", nice=False, padding=10)
    x_encoding = alt.X(
        "x:Q",
        axis=alt.Axis(title=x.title(figure.x), format="~g", values=log_ticks(row["x"] for row in every)),
        scale=log,
    )
    y = alt.Y(
        "y:Q",
        axis=alt.Axis(title=unit.title(panel.y), format="~g", values=log_ticks(row["y"] for row in every)),
        scale=alt.Scale(type="log"),
    )
    rows = [row for series, found in by_series if series.role == "limit" for row in found]
    dots = [row for series, found in by_series if series.role != "limit" for row in found]
    labels = layers.plot_rows(dots).mark_text(align="left", dx=9, dy=-7, fontSize=11, color=INK, aria=False)
    all_layers = [
        layers.draw_lines(rows, panel.series, styles, x_encoding, y),
        *layers.draw_intervals(dots, across=False, position={"x": x_encoding}),
        layers.draw_points(dots, panel.series, styles, x_encoding, y, size=90),
        labels.encode(x=x_encoding, y=y, text=alt.Text("label:N")),
        *layers.draw_verdicts(figure, dots, x_encoding, y, dy=12, dx=9, align="left"),
        *layers.draw_stamp(figure, WIDTH, HEIGHT),
    ]
    return alt.layer(*all_layers).properties(width=WIDTH, height=HEIGHT)


def _keep_positive(rows: Iterable[ChartRow]) -> list[ChartRow]:
    """Keep the rows with positive values: a log axis can't show others."""
    return [row for row in rows if row["y"] > 0 and row["x"] > 0]
