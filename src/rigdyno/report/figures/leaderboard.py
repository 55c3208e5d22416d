"""Draw a ranking with the best on top, and the user's own rows among the published ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from rigdyno.report.figures.bars import bar_chart
from rigdyno.schema.figure import Datum, Figure, Series

if TYPE_CHECKING:
    import altair as alt


def chart(figure: Figure) -> alt.LayerChart:
    panel = figure.panels[0]
    values = sorted(
        (each.value for series in panel.series for each in series.data if each.value is not None), reverse=True
    )
    ranked = tuple(_rank_series(series, values) for series in panel.series)
    return bar_chart(figure, replace(panel, series=ranked), ranked=True)


def _rank_series(series: Series, values: list[float]) -> Series:
    return replace(series, data=tuple(_add_rank(each, values) for each in series.data if each.value is not None))


def _add_rank(datum: Datum, values: list[float]) -> Datum:
    """Put the rank in front of the name; equal values share a rank."""
    assert datum.value is not None
    return replace(datum, x=f"{values.index(datum.value) + 1}. {datum.x}")
