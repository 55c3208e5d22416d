"""A figure of a view: its drawing with the caption below, or a line that says what adds it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.report.drawing import REQUIRES, svg_for_page
from rigdyno.report.formats._html.drawing import Drawing
from rigdyno.report.formats._html.markup import Markup, tag
from rigdyno.schema.figure import Datum, Figure, Series

UNDRAWN = "undrawn"  # the class of the line that stands where a drawing would
WIDTHS = {"wide": 720, "narrow": 220}  # of a plot, in pixels
SMALL = {"small": 220}
MOST_VALUES = 400  # of a series: more than a drawing has pixels for, and each that is pointed at takes room on the page


def figure_block(figure: Figure, anchor: str, *, small: bool = False) -> Markup | None:
    """Small: one of many beside each other, in one width for every screen."""
    if figure.is_empty:
        return None
    anchor, figure = f"{anchor}-{figure.key}", lighter(figure)
    return tag(
        "figure",
        tag("p", figure.title, id=f"{anchor}-name", class_="figure-title"),
        _drawings(figure, anchor, SMALL if small else WIDTHS),
        tag("figcaption", figure.described(), [tag("p", note) for note in figure.notes]),
        id=anchor,
    )


def _drawings(figure: Figure, anchor: str, widths: Mapping[str, int]) -> list[Markup]:
    """A drawing for a desk that is shrunk to a phone's width can't be read any more: so there are two."""
    lacking = undrawn()
    if lacking is not None:
        return [tag("p", f"Not drawn: {lacking}.", class_=UNDRAWN)]
    try:
        drawn = {name: svg_for_page(figure, width) for name, width in widths.items()}
    except ValueError as error:  # the drawing program's own: a figure less is better than no page
        return [tag("p", f"Can't be drawn: {str(error).partition(chr(10))[0]}", class_=UNDRAWN)]
    return [
        tag("div", Drawing(f"{anchor}-{name}", f"{anchor}-name").markup(svg), class_=name)
        for name, svg in drawn.items()
    ]


def lighter(figure: Figure) -> Figure:
    """Without values that a page has no pixels for. Of each stretch the lowest and the highest stay, so every peak."""
    panels = tuple(replace(panel, series=tuple(map(_thinned, panel.series))) for panel in figure.panels)
    whole, kept = (
        sum(len(series.data) for panel in each for series in panel.series) for each in (figure.panels, panels)
    )
    if kept == whole:
        return figure
    note = f"{kept:,} of {whole:,} values are drawn here: the lowest and the highest of each stretch."
    return replace(figure, panels=panels, notes=(*figure.notes, note))


def _thinned(series: Series) -> Series:
    data = series.data
    if len(data) <= MOST_VALUES or isinstance(data[0].x, str):  # bars of categories are cut where they are drawn
        return series
    size = math.ceil(len(data) / (MOST_VALUES // 2))
    return replace(
        series, data=tuple(each for at in range(0, len(data), size) for each in _extremes(data[at : at + size]))
    )


def _extremes(stretch: Sequence[Datum]) -> list[Datum]:
    """The lowest, the highest and the first gap, in their order."""
    known = [(each.value, number) for number, each in enumerate(stretch) if each.value is not None]
    gap = next((number for number, each in enumerate(stretch) if each.value is None), None)
    kept = {number for _, number in (min(known), max(known))} if known else set()
    return [each for number, each in enumerate(stretch) if number in kept or number == gap]


def undrawn() -> str | None:
    """Why no figure can be drawn here, and what changes that."""
    lacking = catalogue.missing(REQUIRES)
    return None if lacking is None else f"{lacking.reason}; try {lacking.fix}"
