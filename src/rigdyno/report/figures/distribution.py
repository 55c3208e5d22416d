"""Draw a histogram of step times, with the steps that were cut as warm-up marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rigdyno.report.drawing import layers
from rigdyno.report.drawing.rows import choose_unit, make_rows, x_unit, y_unit
from rigdyno.report.drawing.style import HEIGHT, WIDTH, choose_styles, is_doubtful
from rigdyno.schema.figure import Figure

if TYPE_CHECKING:
    import altair as alt


def chart(figure: Figure) -> alt.LayerChart:
    import altair as alt

    panel, x = figure.panels[0], x_unit(figure)
    unit, styles = y_unit(panel), choose_styles(panel.series, doubtful=is_doubtful(figure))
    ends = [datum.x_end for series in panel.series for datum in series.data if datum.x_end is not None]
    x = choose_unit(figure.x, ends) if ends else x
    # Without bars of no height: a screen reader would read them out.
    rows = [row for series in panel.series for row in make_rows(series, unit, x) if row["y"]]
    fills = layers.make_scale(panel.series, [style.fill for style in styles])
    strokes = layers.make_scale(panel.series, [style.colour for style in styles])
    legend = layers.make_legend(panel.series, symbolType="square")
    bars = layers.plot_rows(rows).mark_bar(strokeWidth=0.8).encode(
        x=alt.X("x:Q", axis=alt.Axis(title=x.title(figure.x)), scale=alt.Scale(zero=False, nice=True)),
        x2=alt.X2("x_end:Q"),
        y=alt.Y("y:Q", axis=alt.Axis(title=unit.title(panel.y)), scale=alt.Scale(zero=True)),
        y2=alt.datum(0),
        fill=alt.Fill("series:N", scale=fills, legend=legend),
        stroke=alt.Stroke("series:N", scale=strokes, legend=legend),
        description=alt.Description("said:N"),
    )  # fmt: skip
    all_layers = [
        bars,
        *layers.draw_events(figure.events, x, right_of=max(ends, default=0.0) * 0.75),
        *layers.draw_stamp(figure, WIDTH, HEIGHT),
    ]
    return alt.layer(*all_layers).properties(width=WIDTH, height=HEIGHT)
