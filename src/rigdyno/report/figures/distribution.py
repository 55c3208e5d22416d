"""How often steps took how long: a histogram from zero, with the part that was cut marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rigdyno.report.figures import _layers
from rigdyno.report.figures._rows import rows_of, unit_of, x_unit, y_unit
from rigdyno.report.figures._style import HEIGHT, WIDTH, is_doubtful, styles_of
from rigdyno.schema.figure import Figure

if TYPE_CHECKING:
    import altair as alt


def chart(figure: Figure) -> alt.LayerChart:
    import altair as alt

    panel, x = figure.panels[0], x_unit(figure)
    unit, styles = y_unit(panel), styles_of(panel.series, doubtful=is_doubtful(figure))
    ends = [datum.x_end for series in panel.series for datum in series.data if datum.x_end is not None]
    x = unit_of(figure.x, ends) if ends else x
    # A bar of no height would only be read out.
    rows = [row for series in panel.series for row in rows_of(series, unit, x) if row["y"]]
    fills = _layers.scale_of(panel.series, [style.fill for style in styles])
    strokes = _layers.scale_of(panel.series, [style.colour for style in styles])
    legend = _layers.legend_or_none(panel.series, symbolType="square")
    bars = _layers.data(rows).mark_bar(strokeWidth=0.8).encode(
        x=alt.X("x:Q", axis=alt.Axis(title=x.title(figure.x)), scale=alt.Scale(zero=False, nice=True)),
        x2=alt.X2("x_end:Q"),
        y=alt.Y("y:Q", axis=alt.Axis(title=unit.title(panel.y)), scale=alt.Scale(zero=True)),
        y2=alt.datum(0),
        fill=alt.Fill("series:N", scale=fills, legend=legend),
        stroke=alt.Stroke("series:N", scale=strokes, legend=legend),
        description=alt.Description("said:N"),
    )  # fmt: skip
    layers = [
        bars,
        *_layers.events(figure.events, x, right_of=max(ends, default=0.0) * 0.75),
        *_layers.stamp(figure, WIDTH, HEIGHT),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
