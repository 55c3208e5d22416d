"""Draw channels over time, one panel each, above a common time axis with the phases and events of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rigdyno.report.drawing import layers
from rigdyno.report.drawing.rows import Unit, list_values, make_rows, x_unit, y_unit
from rigdyno.report.drawing.style import WIDTH, choose_styles, is_doubtful
from rigdyno.schema.figure import Figure, Panel

if TYPE_CHECKING:
    import altair as alt

ALONE, STACKED = 260, 110  # height in pixels of a single panel, and of each of several

FEW = 40  # number of values up to which each gets a marker


def chart(figure: Figure) -> alt.VConcatChart:
    import altair as alt

    x = x_unit(figure)
    height = ALONE if len(figure.panels) == 1 else STACKED
    last = len(figure.panels) - 1
    drawn = [
        _draw_panel(figure, panel, x, height, first=number == 0, last=number == last)
        for number, panel in enumerate(figure.panels)
    ]
    return alt.vconcat(*drawn, spacing=14).resolve_scale(color="independent", strokeDash="independent")


def _draw_panel(figure: Figure, panel: Panel, x: Unit, height: int, *, first: bool, last: bool) -> alt.LayerChart:
    import altair as alt

    unit, styles = y_unit(panel), choose_styles(panel.series, doubtful=is_doubtful(figure))
    axis = alt.Axis(title=x.title(figure.x) if last else None, labels=last, ticks=last)
    x_encoding = alt.X("x:Q", axis=axis, scale=alt.Scale(domain=_x_extent(figure, x), nice=False))
    y = alt.Y("y:Q", axis=alt.Axis(title=unit.title(panel.y), tickCount=4), scale=_y_scale(panel, unit))
    rows = [row for series in panel.series for row in make_rows(series, unit, x)]
    marked = [row for series in panel.series if len(series.data) <= FEW for row in make_rows(series, unit, x)]
    all_layers = [
        *layers.draw_periods(figure.periods, x, height)[: 2 if first else 1],
        *layers.draw_bands(panel, unit),
        layers.draw_lines(rows, panel.series, styles, x_encoding, y),
        *layers.draw_intervals(marked, across=False, position={"x": x_encoding}),
        *([layers.draw_points(marked, panel.series, styles, x_encoding, y, size=30)] if marked else []),
        *layers.draw_events(figure.events, x, _x_extent(figure, x)[1] / x.factor / 2, labelled=first),
        *(layers.draw_stamp(figure, WIDTH, height) if first else []),
    ]
    return alt.layer(*all_layers).properties(width=WIDTH, height=height)


def _y_scale(panel: Panel, unit: Unit) -> alt.Scale:
    """Return a y scale that includes zero and leaves room for the names of phases above the highest value."""
    import altair as alt

    values = [value * unit.factor for value in list_values(panel.series)]
    return alt.Scale(domain=[min([0.0, *values]), max([0.0, *values]) * 1.18 or 1.0], nice=False)


def _x_extent(figure: Figure, x: Unit) -> list[float]:
    ends = [datum.x for series in figure.series for datum in series.data if not isinstance(datum.x, str)]
    ends += [end for period in figure.periods for end in (period.start, period.end)]
    first, last = min([0.0, *ends]), max([0.0, *ends])
    return [first * x.factor, (last if last > first else first + 1.0) * x.factor]
