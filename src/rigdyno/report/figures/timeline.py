"""Channels over time, one panel each, above one time axis with the phases of the run and what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rigdyno.report.figures import _layers
from rigdyno.report.figures._rows import Unit, rows_of, values_of, x_unit, y_unit
from rigdyno.report.figures._style import WIDTH, is_doubtful, styles_of
from rigdyno.schema.figure import Figure, Panel

if TYPE_CHECKING:
    import altair as alt

ALONE, STACKED = 260, 110  # height of one panel, and of each of several
FEW = 40  # values that get a sign each


def chart(figure: Figure) -> alt.VConcatChart:
    import altair as alt

    x = x_unit(figure)
    height = ALONE if len(figure.panels) == 1 else STACKED
    last = len(figure.panels) - 1
    drawn = [
        _panel(figure, panel, x, height, first=number == 0, last=number == last)
        for number, panel in enumerate(figure.panels)
    ]
    return alt.vconcat(*drawn, spacing=14).resolve_scale(color="independent", strokeDash="independent")


def _panel(figure: Figure, panel: Panel, x: Unit, height: int, *, first: bool, last: bool) -> alt.LayerChart:
    import altair as alt

    unit, styles = y_unit(panel), styles_of(panel.series, doubtful=is_doubtful(figure))
    axis = alt.Axis(title=x.title(figure.x) if last else None, labels=last, ticks=last)
    place = alt.X("x:Q", axis=axis, scale=alt.Scale(domain=_extent(figure, x), nice=False))
    y = alt.Y("y:Q", axis=alt.Axis(title=unit.title(panel.y), tickCount=4), scale=_with_room(panel, unit))
    rows = [row for series in panel.series for row in rows_of(series, unit, x)]
    marked = [row for series in panel.series if len(series.data) <= FEW for row in rows_of(series, unit, x)]
    layers = [
        *_layers.periods(figure.periods, x, height)[: 2 if first else 1],
        *_layers.bands(panel, unit),
        _layers.lines(rows, panel.series, styles, place, y),
        *_layers.intervals(marked, across=False, place={"x": place}),
        *([_layers.points(marked, panel.series, styles, place, y, size=30)] if marked else []),
        *_layers.events(figure.events, x, _extent(figure, x)[1] / x.factor / 2, labelled=first),
        *(_layers.stamp(figure, WIDTH, height) if first else []),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=height)


def _with_room(panel: Panel, unit: Unit) -> alt.Scale:
    """Zero is in it, and above the highest value there is room for the names of phases."""
    import altair as alt

    values = [value * unit.factor for value in values_of(panel.series)]
    return alt.Scale(domain=[min([0.0, *values]), max([0.0, *values]) * 1.18 or 1.0], nice=False)


def _extent(figure: Figure, x: Unit) -> list[float]:
    ends = [datum.x for series in figure.series for datum in series.data if not isinstance(datum.x, str)]
    ends += [end for period in figure.periods for end in (period.start, period.end)]
    first, last = min([0.0, *ends]), max([0.0, *ends])
    return [first * x.factor, (last if last > first else first + 1.0) * x.factor]
