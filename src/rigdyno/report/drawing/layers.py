"""Layers that charts of several kinds share. Altair is imported inside functions: only drawing needs it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rigdyno.report.drawing.rows import ChartRow, Unit, label_series
from rigdyno.report.drawing.style import DOUBTFUL, INK, MUTED, PAPER, WIDTH, Style, choose_stamp, config
from rigdyno.schema.figure import Event, Figure, Panel, Period, Series

if TYPE_CHECKING:
    import altair as alt

CAPTION_WIDTH = 104  # characters in a line of the caption

_MOST_EVENTS, _EVENT_PIXELS = 12, 330

_CHARACTER_PIXELS, _SIGN_PIXELS = 7, 34  # approximate width of a character and of a symbol in the legend

_LEAST_NAMED = 0.12  # share of the x axis; a shorter period has no room for its name


def plot_rows(rows: Iterable[ChartRow]) -> alt.Chart:
    """Return a chart with its rows as JSON text: Altair would check and copy each value of a list again and again."""
    import altair as alt

    text = msgspec.json.encode(list(rows)).decode()
    return alt.Chart(alt.Data(values=text, format=alt.DataFormat(type="json")))


def finish_chart(chart: alt.LayerChart | alt.VConcatChart, figure: Figure, captioned: bool = True) -> dict[str, Any]:
    """Return the whole specification, with title, caption and common configuration."""
    lines = textwrap.wrap(" ".join([figure.described(), *figure.notes]), CAPTION_WIDTH) if captioned else []
    spec: dict[str, Any] = chart.to_dict(validate=False)  # each part was checked when it was made
    title = {"text": figure.title, **({"subtitle": lines} if lines else {})}
    return {**spec, "title": title, "config": config(), "padding": 12}


def list_labels(series: Sequence[Series]) -> list[str]:
    return list(dict.fromkeys(map(label_series, series)))


def needs_legend(series: Sequence[Series]) -> bool:
    return len(series) > 1 or any(each.role != "measured" for each in series)


def make_scale(series: Sequence[Series], values: Sequence[Any]) -> alt.Scale:
    """Return a scale that maps the name of each series to one of `values`."""
    import altair as alt

    by_name = dict(zip(map(label_series, series), values, strict=True))
    return alt.Scale(domain=list(by_name), range=list(by_name.values()))


def make_legend(series: Sequence[Series], **settings: Any) -> alt.Legend | None:
    import altair as alt

    return alt.Legend(**_legend_columns(series), **settings) if needs_legend(series) else None


def _legend_columns(series: Sequence[Series]) -> dict[str, int]:
    """Return the number of legend columns such that it isn't wider than the drawing."""
    widest = max(map(len, list_labels(series))) * _CHARACTER_PIXELS + _SIGN_PIXELS
    fit = max(1, WIDTH // widest)
    return {"columns": fit} if fit < len(series) else {}


def draw_intervals(rows: Sequence[ChartRow], *, across: bool, position: dict[str, Any]) -> list[alt.Chart]:
    """Draw intervals from low to high with a tick at each end. `across`: values are along the x axis."""
    import altair as alt

    with_ends = [row for row in rows if "low" in row]
    if not with_ends:
        return []
    near, far = (alt.X, alt.X2) if across else (alt.Y, alt.Y2)
    along = "x" if across else "y"
    ends = {along: near("low:Q"), f"{along}2": far("high:Q")}
    drawn = [plot_rows(with_ends).mark_rule(color=INK, strokeWidth=1.4, aria=False).encode(**ends, **position)]
    for end in ("low", "high"):
        tick = plot_rows(with_ends).mark_tick(
            color=INK, thickness=1.4, size=8, orient="vertical" if across else "horizontal", aria=False
        )
        drawn.append(tick.encode(**{along: near(f"{end}:Q")}, **position))
    return drawn


def draw_lines(
    rows: Sequence[ChartRow], series: Sequence[Series], styles: Sequence[Style], x: Any, y: Any
) -> alt.Chart:
    """Draw straight lines from value to value within a segment; gaps stay open."""
    import altair as alt

    legend = make_legend(series, symbolType="stroke", symbolStrokeWidth=2, symbolSize=220)
    dashes = [list(style.dash) or [1, 0] for style in styles]
    return plot_rows(rows).mark_line(aria=False, strokeWidth=2).encode(
        x=x,
        y=y,
        color=alt.Color("series:N", scale=make_scale(series, [style.colour for style in styles]), legend=legend),
        strokeDash=alt.StrokeDash("series:N", scale=make_scale(series, dashes), legend=legend),
        detail=alt.Detail("segment:N"),
    )  # fmt: skip


def draw_points(
    rows: Sequence[ChartRow], series: Sequence[Series], styles: Sequence[Style], x: Any, y: Any, size: int = 60
) -> alt.Chart:
    """Draw points, filled if measured and hollow otherwise; each describes its value, interval and n."""
    import altair as alt

    fills = make_scale(series, [style.colour if style.filled else PAPER for style in styles])
    strokes = make_scale(series, [style.colour for style in styles])
    shapes = make_scale(series, [style.shape for style in styles])
    measured_last = sorted(rows, key=lambda row: row["series"] in _measured_labels(series))  # above the others
    return (
        plot_rows(measured_last)
        .mark_point(size=size, strokeWidth=1.8, opacity=1)
        .encode(
            x=x,
            y=y,
            stroke=if_doubtful(DOUBTFUL, alt.Stroke("series:N", scale=strokes, legend=None)),
            fill=if_doubtful(PAPER, alt.Fill("series:N", scale=fills, legend=None)),
            shape=alt.Shape("series:N", scale=shapes, legend=None),
            description=alt.Description("said:N"),
        )
    )


def _measured_labels(series: Sequence[Series]) -> set[str]:
    return {label_series(each) for each in series if each.role == "measured"}


def if_doubtful(colour: str, otherwise: Any) -> Any:
    """Use `colour` for values that are SUSPECT or INVALID, and `otherwise` for the others."""
    import altair as alt

    return alt.condition("datum.doubtful", alt.value(colour), otherwise)


def draw_verdicts(figure: Figure, rows: Sequence[ChartRow], x: Any, y: Any, **mark: Any) -> list[alt.Chart]:
    """Draw the verdict at each doubtful value, unless it is written across the whole drawing."""
    import altair as alt

    doubtful = [row for row in rows if "verdict" in row]
    if not doubtful or choose_stamp(figure) is not None:
        return []
    text = plot_rows(doubtful).mark_text(fontSize=10, fontWeight="bold", color=INK, aria=False, **mark)
    return [text.encode(x=x, y=y, text=alt.Text("verdict:N"))]


def draw_stamp(figure: Figure, width: float, height: float) -> list[alt.Chart]:
    """Draw the verdict across a figure that can't be relied on."""
    import altair as alt

    doubt = choose_stamp(figure)
    if doubt is None:
        return []
    text = plot_rows([{"text": doubt}]).mark_text(fontSize=54, fontWeight="bold", angle=340, opacity=0.22, color=INK)
    return [
        text.encode(
            x=alt.value(width / 2),
            y=alt.value(height / 2),
            text=alt.Text("text:N"),
            description=alt.Description("text:N"),
        )
    ]


def draw_periods(found: Sequence[Period], x: Unit, height: float) -> list[alt.Chart]:
    """Draw the phases of a run as backgrounds in two shades, each with its name at the top."""
    import altair as alt

    if not found:
        return []
    rows = [
        {
            "start": period.start * x.factor,
            "end": period.end * x.factor,
            "name": period.name,
            "shade": (0.10, 0.03)[i % 2],
        }
        for i, period in enumerate(found)
    ]
    whole = max(period.end for period in found) - min(period.start for period in found)
    pairs = zip(rows, found, strict=True)
    wide = [row for row, period in pairs if period.end - period.start >= _LEAST_NAMED * whole]
    ground = plot_rows(rows).mark_rect(color=MUTED, aria=False).encode(
        x=alt.X("start:Q"), x2=alt.X2("end:Q"), opacity=alt.Opacity("shade:Q", scale=None, legend=None)
    )  # fmt: skip
    names = plot_rows(wide).mark_text(align="left", baseline="top", dx=4, dy=3, color=MUTED, fontSize=11, aria=False)
    return [ground, names.encode(x=alt.X("start:Q"), y=alt.value(0), text=alt.Text("name:N"))]


def draw_events(
    found: Sequence[Event], x: Unit, right_of: float = math.inf, *, labelled: bool = True
) -> list[alt.Chart]:
    """Draw events as lines with their labels, which are to the left of the line if it is right of `right_of`."""
    import altair as alt

    if not found:
        return []
    rows = [
        {"at": event.x * x.factor, "label": event.label, "far": event.x > right_of} for event in found[:_MOST_EVENTS]
    ]
    rule = plot_rows(rows).mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1.3)
    drawn = [rule.encode(x=alt.X("at:Q"), description=alt.Description("label:N"))]
    for far, align, dx in ((False, "left", 4), (True, "right", -4)):
        near = [row for row in rows if row["far"] == far]
        if near and labelled:
            text = plot_rows(near).mark_text(
                align=align, baseline="bottom", dx=dx, color=INK, fontSize=11, limit=_EVENT_PIXELS, aria=False
            )
            drawn.append(text.encode(x=alt.X("at:Q"), y=alt.value(-2), text=alt.Text("label:N")))
    return drawn


def draw_bands(panel: Panel, unit: Unit, *, across: bool = False) -> list[alt.Chart]:
    """Draw named ranges of values. `across`: values are along the x axis."""
    import altair as alt

    if not panel.bands:
        return []
    rows = [{"low": b.low * unit.factor, "high": b.high * unit.factor, "name": b.name} for b in panel.bands]
    along, other = ("x", "y") if across else ("y", "x")
    ground = plot_rows(rows).mark_rect(color=MUTED, opacity=0.14)
    names = plot_rows(rows).mark_text(
        align="left", baseline="bottom", dx=2, dy=-3, color=MUTED, fontSize=11, aria=False
    )
    return [
        ground.encode(**{along: "low:Q", f"{along}2": "high:Q"}, description=alt.Description("name:N")),
        names.encode(**{along: "low:Q" if across else "high:Q", other: alt.value(0)}, text=alt.Text("name:N")),
    ]
