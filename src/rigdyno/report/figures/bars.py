"""Bars with intervals, one below the other; published ones beside measured ones.

A bar's axis has zero in it. Where the range asks for a log axis, which has no zero, values are dots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rigdyno.report.figures import _layers
from rigdyno.report.figures._rows import ChartRow, Unit, distinct, log_ticks, rows_of, values_of, wants_log, y_unit
from rigdyno.report.figures._style import BAR, DOUBTFUL, HATCHED, INK, WIDTH, Style, colour_name, is_doubtful, styles_of
from rigdyno.schema.figure import Figure, Panel
from rigdyno.units import show_number

if TYPE_CHECKING:
    import altair as alt

MOST_ROWS = 60  # more of them nobody reads


def chart(figure: Figure) -> alt.LayerChart:
    return bar_chart(figure, figure.panels[0], ranked=False)


def bar_chart(figure: Figure, panel: Panel, *, ranked: bool) -> alt.LayerChart:
    import altair as alt

    unit, series = y_unit(panel), panel.series
    rows = distinct([row for each in series for row in rows_of(each, unit)])
    order = list(dict.fromkeys(row["x"] for row in (_by_value(rows) if ranked else rows)))
    kept = set(order[:MOST_ROWS])
    rows = [row for row in rows if row["x"] in kept]
    side_by_side = len(rows) > len(kept)
    height = BAR * max(1, len(rows) if side_by_side else len(kept))
    y = alt.Y("x:N", sort=order[:MOST_ROWS], axis=alt.Axis(title=None, ticks=False, domain=False))
    place: dict[str, Any] = {"y": y}
    if side_by_side:
        place["yOffset"] = alt.YOffset("series:N", sort=_layers.names_of(series))
    log = wants_log(panel.y, series)
    styles = styles_of(series, doubtful=is_doubtful(figure))
    layers = [
        *_layers.bands(panel, unit, across=True),
        *(_dots if log else _bars)(rows, panel, unit, styles, place),
        *_layers.intervals(rows, across=True, place=place),
        *_values(rows, place, log=log),
        *_layers.stamp(figure, WIDTH, height),
    ]
    return alt.layer(*layers, *_more(len(order), height)).properties(width=WIDTH, height=height)


def _by_value(rows: Sequence[ChartRow]) -> list[ChartRow]:
    return sorted(rows, key=lambda row: -row["y"])


def _x(panel: Panel, unit: Unit, *, log: bool) -> alt.X:
    import altair as alt

    ticks = log_ticks(value * unit.factor for value in values_of(panel.series))
    axis = alt.Axis(title=unit.title(panel.y), **({"format": "~g", "values": ticks} if log else {"tickCount": 8}))
    scale = alt.Scale(type="log", nice=True) if log else alt.Scale(zero=True, nice=True)
    return alt.X("y:Q", axis=axis, scale=scale)


def _bars(
    rows: Sequence[ChartRow], panel: Panel, unit: Unit, styles: Sequence[Style], place: dict[str, Any]
) -> list[alt.Chart]:
    import altair as alt

    scale = _layers.scale_of(panel.series, [style.fill for style in styles])
    strokes = _layers.scale_of(panel.series, [style.colour for style in styles])
    legend = _layers.legend_or_none(panel.series, symbolType="square")
    doubtful = HATCHED.format(name=colour_name(DOUBTFUL))
    marks = _layers.data(rows).mark_bar(strokeWidth=1.4, height={"band": 0.72})
    return [
        marks.encode(
            x=_x(panel, unit, log=False),
            x2=alt.datum(0),
            fill=_layers.if_doubtful(doubtful, alt.Fill("series:N", scale=scale, legend=legend)),
            stroke=_layers.if_doubtful(DOUBTFUL, alt.Stroke("series:N", scale=strokes, legend=legend)),
            description=alt.Description("said:N"),
            **place,
        )
    ]


def _dots(
    rows: Sequence[ChartRow], panel: Panel, unit: Unit, styles: Sequence[Style], place: dict[str, Any]
) -> list[alt.Chart]:
    import altair as alt

    strokes = _layers.scale_of(panel.series, [style.colour for style in styles])
    dots = _layers.points(rows, panel.series, styles, _x(panel, unit, log=True), place["y"], size=80)
    legend = _layers.legend_or_none(panel.series)
    shape = alt.Shape(
        "series:N", scale=_layers.scale_of(panel.series, [style.shape for style in styles]), legend=legend
    )
    stroke = _layers.if_doubtful(DOUBTFUL, alt.Stroke("series:N", scale=strokes, legend=legend))
    return [dots.encode(shape=shape, stroke=stroke, **place)]


def _values(rows: Sequence[ChartRow], place: dict[str, Any], *, log: bool) -> list[alt.Chart]:
    """The number behind each bar, with the verdict where it is doubtful."""
    import altair as alt

    shown = [
        {
            **row,
            "end": max(row["y"], row.get("high", row["y"]), *(() if log else (0.0,))),
            "text": " ".join(filter(None, (show_number(row["y"]), row.get("verdict", "")))),
        }
        for row in rows
    ]
    text = _layers.data(shown).mark_text(align="left", dx=8 if log else 6, fontSize=11, color=INK, aria=False)
    return [text.encode(x=alt.X("end:Q"), text=alt.Text("text:N"), **place)]


def _more(count: int, height: float) -> list[alt.Chart]:
    import altair as alt

    if count <= MOST_ROWS:
        return []
    text = f"and {count - MOST_ROWS:,} more that are not drawn"
    drawn = _layers.data([{"text": text}]).mark_text(align="right", baseline="bottom", fontSize=11, color=INK)
    return [
        drawn.encode(
            x=alt.value(WIDTH), y=alt.value(height - 4), text=alt.Text("text:N"), description=alt.Description("text:N")
        )
    ]
