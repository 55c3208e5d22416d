"""Draw horizontal bars with intervals; published and measured ones are side by side.

The axis of bars includes zero. If the range needs a log axis, which has no zero, values are drawn as dots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rigdyno.base.units import show_number
from rigdyno.report.drawing import layers
from rigdyno.report.drawing.rows import (
    ChartRow,
    Unit,
    list_values,
    log_ticks,
    make_rows,
    number_duplicates,
    wants_log,
    y_unit,
)
from rigdyno.report.drawing.style import (
    BAR,
    DOUBTFUL,
    HATCHED,
    INK,
    WIDTH,
    Style,
    choose_styles,
    colour_name,
    is_doubtful,
)
from rigdyno.schema.figure import Figure, Panel

if TYPE_CHECKING:
    import altair as alt

MOST_ROWS = 60  # more would be unreadable


def chart(figure: Figure) -> alt.LayerChart:
    return bar_chart(figure, figure.panels[0], ranked=False)


def bar_chart(figure: Figure, panel: Panel, *, ranked: bool) -> alt.LayerChart:
    import altair as alt

    unit, series = y_unit(panel), panel.series
    rows = number_duplicates([row for each in series for row in make_rows(each, unit)])
    order = list(dict.fromkeys(row["x"] for row in (_sort_by_value(rows) if ranked else rows)))
    kept = set(order[:MOST_ROWS])
    rows = [row for row in rows if row["x"] in kept]
    side_by_side = len(rows) > len(kept)
    height = BAR * max(1, len(rows) if side_by_side else len(kept))
    y = alt.Y("x:N", sort=order[:MOST_ROWS], axis=alt.Axis(title=None, ticks=False, domain=False))
    position: dict[str, Any] = {"y": y}
    if side_by_side:
        position["yOffset"] = alt.YOffset("series:N", sort=layers.list_labels(series))
    log = wants_log(panel.y, series)
    styles = choose_styles(series, doubtful=is_doubtful(figure))
    all_layers = [
        *layers.draw_bands(panel, unit, across=True),
        *(_dots if log else _bars)(rows, panel, unit, styles, position),
        *layers.draw_intervals(rows, across=True, position=position),
        *_value_labels(rows, position, log=log),
        *layers.draw_stamp(figure, WIDTH, height),
    ]
    return alt.layer(*all_layers, *_note_left_out(len(order), height)).properties(width=WIDTH, height=height)


def _sort_by_value(rows: Sequence[ChartRow]) -> list[ChartRow]:
    return sorted(rows, key=lambda row: -row["y"])


def _x_axis(panel: Panel, unit: Unit, *, log: bool) -> alt.X:
    import altair as alt

    ticks = log_ticks(value * unit.factor for value in list_values(panel.series))
    axis = alt.Axis(title=unit.title(panel.y), **({"format": "~g", "values": ticks} if log else {"tickCount": 8}))
    scale = alt.Scale(type="log", nice=True) if log else alt.Scale(zero=True, nice=True)
    return alt.X("y:Q", axis=axis, scale=scale)


def _bars(
    rows: Sequence[ChartRow], panel: Panel, unit: Unit, styles: Sequence[Style], position: dict[str, Any]
) -> list[alt.Chart]:
    import altair as alt

    scale = layers.make_scale(panel.series, [style.fill for style in styles])
    strokes = layers.make_scale(panel.series, [style.colour for style in styles])
    legend = layers.make_legend(panel.series, symbolType="square")
    doubtful = HATCHED.format(name=colour_name(DOUBTFUL))
    marks = layers.plot_rows(rows).mark_bar(strokeWidth=1.4, height={"band": 0.72})
    return [
        marks.encode(
            x=_x_axis(panel, unit, log=False),
            x2=alt.datum(0),
            fill=layers.if_doubtful(doubtful, alt.Fill("series:N", scale=scale, legend=legend)),
            stroke=layers.if_doubtful(DOUBTFUL, alt.Stroke("series:N", scale=strokes, legend=legend)),
            description=alt.Description("said:N"),
            **position,
        )
    ]


def _dots(
    rows: Sequence[ChartRow], panel: Panel, unit: Unit, styles: Sequence[Style], position: dict[str, Any]
) -> list[alt.Chart]:
    import altair as alt

    strokes = layers.make_scale(panel.series, [style.colour for style in styles])
    dots = layers.draw_points(rows, panel.series, styles, _x_axis(panel, unit, log=True), position["y"], size=80)
    legend = layers.make_legend(panel.series)
    shape = alt.Shape(
        "series:N", scale=layers.make_scale(panel.series, [style.shape for style in styles]), legend=legend
    )
    stroke = layers.if_doubtful(DOUBTFUL, alt.Stroke("series:N", scale=strokes, legend=legend))
    return [dots.encode(shape=shape, stroke=stroke, **position)]


def _value_labels(rows: Sequence[ChartRow], position: dict[str, Any], *, log: bool) -> list[alt.Chart]:
    """Draw the number after each bar, with the verdict if it is doubtful."""
    import altair as alt

    shown = [
        {
            **row,
            "end": max(row["y"], row.get("high", row["y"]), *(() if log else (0.0,))),
            "text": " ".join(filter(None, (show_number(row["y"]), row.get("verdict", "")))),
        }
        for row in rows
    ]
    text = layers.plot_rows(shown).mark_text(align="left", dx=8 if log else 6, fontSize=11, color=INK, aria=False)
    return [text.encode(x=alt.X("end:Q"), text=alt.Text("text:N"), **position)]


def _note_left_out(count: int, height: float) -> list[alt.Chart]:
    import altair as alt

    if count <= MOST_ROWS:
        return []
    text = f"and {count - MOST_ROWS:,} more that are not drawn"
    drawn = layers.plot_rows([{"text": text}]).mark_text(align="right", baseline="bottom", fontSize=11, color=INK)
    return [
        drawn.encode(
            x=alt.value(WIDTH), y=alt.value(height - 4), text=alt.Text("text:N"), description=alt.Description("text:N")
        )
    ]
