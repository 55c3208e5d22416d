"""What charts of several kinds are made of. Altair is imported inside functions: whoever draws nothing needs none."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rigdyno.report.figures import _style
from rigdyno.report.figures._rows import ChartRow, Unit, label_of
from rigdyno.report.figures._style import DOUBTFUL, INK, MUTED, PAPER, WIDTH, Style
from rigdyno.schema.figure import Event, Figure, Panel, Period, Series

if TYPE_CHECKING:
    import altair as alt

CAPTION_WIDTH = 104  # characters in a line of the caption
_MOST_EVENTS, _EVENT_PIXELS = 12, 330
_CHARACTER_PIXELS, _SIGN_PIXELS = 7, 34  # of a legend, about
_LEAST_NAMED = 0.12  # of the whole: a shorter period has no room for its name


def data(rows: Iterable[ChartRow]) -> alt.Chart:
    """Rows as one text: Altair would check and copy each value of a list again and again."""
    import altair as alt

    text = msgspec.json.encode(list(rows)).decode()
    return alt.Chart(alt.Data(values=text, format=alt.DataFormat(type="json")))


def finished(chart: alt.LayerChart | alt.VConcatChart, figure: Figure, captioned: bool = True) -> dict[str, Any]:
    """The whole specification: title, caption and what all charts have in common."""
    lines = textwrap.wrap(" ".join([figure.described(), *figure.notes]), CAPTION_WIDTH) if captioned else []
    spec: dict[str, Any] = chart.to_dict(validate=False)  # each part was checked when it was made
    title = {"text": figure.title, **({"subtitle": lines} if lines else {})}
    return {**spec, "title": title, "config": _style.config(), "padding": 12}


def names_of(series: Sequence[Series]) -> list[str]:
    return list(dict.fromkeys(map(label_of, series)))


def needs_legend(series: Sequence[Series]) -> bool:
    return len(series) > 1 or any(each.role != "measured" for each in series)


def scale_of(series: Sequence[Series], values: Sequence[Any]) -> alt.Scale:
    """One value for each name."""
    import altair as alt

    by_name = dict(zip(map(label_of, series), values, strict=True))
    return alt.Scale(domain=list(by_name), range=list(by_name.values()))


def legend_or_none(series: Sequence[Series], **settings: Any) -> alt.Legend | None:
    import altair as alt

    return alt.Legend(**_in_columns(series), **settings) if needs_legend(series) else None


def _in_columns(series: Sequence[Series]) -> dict[str, int]:
    """So many that the names, side by side, are no wider than the drawing."""
    widest = max(map(len, names_of(series))) * _CHARACTER_PIXELS + _SIGN_PIXELS
    fit = max(1, WIDTH // widest)
    return {"columns": fit} if fit < len(series) else {}


def intervals(rows: Sequence[ChartRow], *, across: bool, place: dict[str, Any]) -> list[alt.Chart]:
    """Rules from low to high with a tick at each end. `across`: values lie along the page's width."""
    import altair as alt

    with_ends = [row for row in rows if "low" in row]
    if not with_ends:
        return []
    near, far = (alt.X, alt.X2) if across else (alt.Y, alt.Y2)
    along = "x" if across else "y"
    ends = {along: near("low:Q"), f"{along}2": far("high:Q")}
    drawn = [data(with_ends).mark_rule(color=INK, strokeWidth=1.4, aria=False).encode(**ends, **place)]
    for end in ("low", "high"):
        tick = data(with_ends).mark_tick(
            color=INK, thickness=1.4, size=8, orient="vertical" if across else "horizontal", aria=False
        )
        drawn.append(tick.encode(**{along: near(f"{end}:Q")}, **place))
    return drawn


def lines(rows: Sequence[ChartRow], series: Sequence[Series], styles: Sequence[Style], x: Any, y: Any) -> alt.Chart:
    """Straight from value to value within a segment; a gap stays open."""
    import altair as alt

    legend = legend_or_none(series, symbolType="stroke", symbolStrokeWidth=2, symbolSize=220)
    dashes = [list(style.dash) or [1, 0] for style in styles]
    return data(rows).mark_line(aria=False, strokeWidth=2).encode(
        x=x,
        y=y,
        color=alt.Color("series:N", scale=scale_of(series, [style.colour for style in styles]), legend=legend),
        strokeDash=alt.StrokeDash("series:N", scale=scale_of(series, dashes), legend=legend),
        detail=alt.Detail("segment:N"),
    )  # fmt: skip


def points(
    rows: Sequence[ChartRow], series: Sequence[Series], styles: Sequence[Style], x: Any, y: Any, size: int = 60
) -> alt.Chart:
    """What was measured is filled, everything else hollow; each says its value, interval and n."""
    import altair as alt

    fills = scale_of(series, [style.colour if style.filled else PAPER for style in styles])
    strokes = scale_of(series, [style.colour for style in styles])
    shapes = scale_of(series, [style.shape for style in styles])
    on_top = sorted(rows, key=lambda row: row["series"] in _measured(series))  # what is drawn last covers the others
    return (
        data(on_top)
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


def _measured(series: Sequence[Series]) -> set[str]:
    return {label_of(each) for each in series if each.role == "measured"}


def if_doubtful(colour: str, otherwise: Any) -> Any:
    """The colour of values that are SUSPECT or INVALID; others look as their series does."""
    import altair as alt

    return alt.condition("datum.doubtful", alt.value(colour), otherwise)


def words_on(figure: Figure, rows: Sequence[ChartRow], x: Any, y: Any, **mark: Any) -> list[alt.Chart]:
    """The verdict at each value that is doubtful, unless it stands across the whole."""
    import altair as alt

    doubtful = [row for row in rows if "verdict" in row]
    if not doubtful or _style.stamp_of(figure) is not None:
        return []
    text = data(doubtful).mark_text(fontSize=10, fontWeight="bold", color=INK, aria=False, **mark)
    return [text.encode(x=x, y=y, text=alt.Text("verdict:N"))]


def stamp(figure: Figure, width: float, height: float) -> list[alt.Chart]:
    """The verdict across a figure that can't be relied on."""
    import altair as alt

    doubt = _style.stamp_of(figure)
    if doubt is None:
        return []
    text = data([{"text": doubt}]).mark_text(fontSize=54, fontWeight="bold", angle=340, opacity=0.22, color=INK)
    return [
        text.encode(
            x=alt.value(width / 2),
            y=alt.value(height / 2),
            text=alt.Text("text:N"),
            description=alt.Description("text:N"),
        )
    ]


def periods(found: Sequence[Period], x: Unit, height: float) -> list[alt.Chart]:
    """The phases of a run as grounds of two shades, each with its name at the top."""
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
    ground = data(rows).mark_rect(color=MUTED, aria=False).encode(
        x=alt.X("start:Q"), x2=alt.X2("end:Q"), opacity=alt.Opacity("shade:Q", scale=None, legend=None)
    )  # fmt: skip
    names = data(wide).mark_text(align="left", baseline="top", dx=4, dy=3, color=MUTED, fontSize=11, aria=False)
    return [ground, names.encode(x=alt.X("start:Q"), y=alt.value(0), text=alt.Text("name:N"))]


def events(found: Sequence[Event], x: Unit, right_of: float = math.inf, *, labelled: bool = True) -> list[alt.Chart]:
    """What happened at a moment: a line with its words, which lie left of it where it is far to the right."""
    import altair as alt

    if not found:
        return []
    rows = [
        {"at": event.x * x.factor, "label": event.label, "far": event.x > right_of} for event in found[:_MOST_EVENTS]
    ]
    rule = data(rows).mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1.3)
    drawn = [rule.encode(x=alt.X("at:Q"), description=alt.Description("label:N"))]
    for far, align, dx in ((False, "left", 4), (True, "right", -4)):
        near = [row for row in rows if row["far"] == far]
        if near and labelled:
            text = data(near).mark_text(
                align=align, baseline="bottom", dx=dx, color=INK, fontSize=11, limit=_EVENT_PIXELS, aria=False
            )
            drawn.append(text.encode(x=alt.X("at:Q"), y=alt.value(-2), text=alt.Text("label:N")))
    return drawn


def bands(panel: Panel, unit: Unit, *, across: bool = False) -> list[alt.Chart]:
    """Ranges of values that mean something. `across`: values lie along the page's width."""
    import altair as alt

    if not panel.bands:
        return []
    rows = [{"low": b.low * unit.factor, "high": b.high * unit.factor, "name": b.name} for b in panel.bands]
    along, other = ("x", "y") if across else ("y", "x")
    ground = data(rows).mark_rect(color=MUTED, opacity=0.14)
    names = data(rows).mark_text(align="left", baseline="bottom", dx=2, dy=-3, color=MUTED, fontSize=11, aria=False)
    return [
        ground.encode(**{along: "low:Q", f"{along}2": "high:Q"}, description=alt.Description("name:N")),
        names.encode(**{along: "low:Q" if across else "high:Q", other: alt.value(0)}, text=alt.Text("name:N")),
    ]
