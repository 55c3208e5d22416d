"""Draw stacked bars of where time goes: one bar per case, its parts end to end from zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rigdyno.base.units import show_number
from rigdyno.report.drawing import layers
from rigdyno.report.drawing.rows import ChartRow, Unit, choose_unit, make_rows
from rigdyno.report.drawing.style import BAR, DOUBTFUL, HATCHED, INK, PALETTE, PAPER, WIDTH, colour_name, is_doubtful
from rigdyno.schema.figure import Figure, Panel

if TYPE_CHECKING:
    import altair as alt

_LETTER = 6.6  # pixels per letter of a part's name


def chart(figure: Figure) -> alt.LayerChart:
    import altair as alt

    panel = figure.panels[0]
    unit = choose_unit(panel.y, _sum_by_case(panel).values())
    rows = _stack_parts(panel, unit)
    most = max((row["end"] for row in rows), default=0.0)
    cases = list(dict.fromkeys(row["x"] for row in rows))
    height = (BAR + 10) * max(1, len(cases))
    y = alt.Y("x:N", sort=cases, axis=alt.Axis(title=None, ticks=False, domain=False))
    x = alt.X("start:Q", axis=alt.Axis(title=unit.title(panel.y)), scale=alt.Scale(zero=True))
    fills = layers.make_scale(panel.series, _choose_fills(panel, doubtful=is_doubtful(figure)))
    parts = layers.plot_rows(rows).mark_bar(stroke=PAPER, strokeWidth=1.5, height={"band": 0.78}).encode(
        x=x, x2=alt.X2("end:Q"), y=y, fill=alt.Fill("series:N", scale=fills, legend=alt.Legend(symbolType="square")),
        description=alt.Description("said:N"),
    )  # fmt: skip
    inside = layers.plot_rows(_find_wide_parts(rows, most)).mark_text(
        color=PAPER, fontSize=11, fontWeight=600, aria=False
    )
    ends = layers.plot_rows(_total_labels(rows)).mark_text(align="left", dx=6, fontSize=11, color=INK, aria=False)
    all_layers = [
        parts,
        inside.encode(x=alt.X("middle:Q"), y=y, text=alt.Text("series:N")),
        ends.encode(x=alt.X("end:Q"), y=y, text=alt.Text("text:N")),
        *layers.draw_stamp(figure, WIDTH, height),
    ]
    return alt.layer(*all_layers).properties(width=WIDTH, height=height)


def _sum_by_case(panel: Panel) -> dict[str, float]:
    found: dict[str, float] = {}
    for series in panel.series:
        for datum in series.data:
            found[str(datum.x)] = found.get(str(datum.x), 0.0) + max(0.0, datum.value or 0.0)
    return found


def _stack_parts(panel: Panel, unit: Unit) -> list[ChartRow]:
    """Compute start and end of each part, one after the other. Negative times have no length."""
    ends: dict[str, float] = {}
    rows = []
    for row in (row for series in panel.series for row in make_rows(series, unit)):
        start = ends.get(row["x"], 0.0)
        end = start + max(0.0, row["y"])
        ends[row["x"]] = end
        rows.append({**row, "start": start, "end": end, "middle": (start + end) / 2})
    return rows


def _choose_fills(panel: Panel, *, doubtful: bool) -> list[str]:
    """Return the fill of each part. If there are more parts than colours, the others are striped."""
    if doubtful:
        return [DOUBTFUL if i % 2 == 0 else HATCHED.format(name="doubtful") for i, _ in enumerate(panel.series)]
    whole, colours = len(PALETTE), [PALETTE[i % len(PALETTE)] for i, _ in enumerate(panel.series)]
    return [c if i < whole else HATCHED.format(name=colour_name(c)) for i, c in enumerate(colours)]


def _find_wide_parts(rows: Sequence[ChartRow], most: float) -> list[ChartRow]:
    """Return the parts that are wide enough for their name."""
    return [row for row in rows if (row["end"] - row["start"]) * WIDTH > most * (len(row["series"]) * _LETTER + 8)]


def _total_labels(rows: Sequence[ChartRow]) -> list[ChartRow]:
    ends: dict[str, float] = {}
    for row in rows:
        ends[row["x"]] = max(ends.get(row["x"], 0.0), row["end"])
    return [{"x": case, "end": end, "text": show_number(end)} for case, end in ends.items()]
