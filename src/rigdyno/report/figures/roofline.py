"""A roofline: the most that memory and arithmetic allow, as measured on this machine, and the workloads below it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rigdyno.report.figures import _layers
from rigdyno.report.figures._rows import ChartRow, log_ticks, rows_of, x_unit, y_unit
from rigdyno.report.figures._style import HEIGHT, INK, WIDTH, is_doubtful, styles_of
from rigdyno.schema.figure import Figure

if TYPE_CHECKING:
    import altair as alt


def chart(figure: Figure) -> alt.LayerChart:
    import altair as alt

    panel, x = figure.panels[0], x_unit(figure)
    unit, styles = y_unit(panel), styles_of(panel.series, doubtful=is_doubtful(figure))
    by_series = [(series, _above_zero(rows_of(series, unit, x))) for series in panel.series]
    every = [row for _, found in by_series for row in found]
    log = alt.Scale(type="log", nice=False, padding=10)
    place = alt.X(
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
    labels = _layers.data(dots).mark_text(align="left", dx=9, dy=-7, fontSize=11, color=INK, aria=False)
    layers = [
        _layers.lines(rows, panel.series, styles, place, y),
        *_layers.intervals(dots, across=False, place={"x": place}),
        _layers.points(dots, panel.series, styles, place, y, size=90),
        labels.encode(x=place, y=y, text=alt.Text("label:N")),
        *_layers.words_on(figure, dots, place, y, dy=12, dx=9, align="left"),
        *_layers.stamp(figure, WIDTH, HEIGHT),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def _above_zero(rows: Iterable[ChartRow]) -> list[ChartRow]:
    """A log axis has no place for anything else."""
    return [row for row in rows if row["y"] > 0 and row["x"] > 0]
