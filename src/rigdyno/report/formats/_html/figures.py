"""A figure of a view: its drawing with the caption below, or a line that says what adds it."""

from __future__ import annotations

from rigdyno import catalogue
from rigdyno.report.drawing import REQUIRES, svg_for_page
from rigdyno.report.formats._html.drawing import Drawing
from rigdyno.report.formats._html.markup import Markup, tag
from rigdyno.schema.figure import Figure

UNDRAWN = "undrawn"  # the class of the line that stands where a drawing would
WIDTHS = {"wide": 720, "narrow": 220}  # of a plot, in pixels


def figure_block(figure: Figure, anchor: str) -> Markup | None:
    if figure.is_empty:
        return None
    anchor = f"{anchor}-{figure.key}"
    return tag(
        "figure",
        tag("p", figure.title, id=f"{anchor}-name", class_="figure-title"),
        _drawing(figure, anchor),
        tag("figcaption", figure.described(), [tag("p", note) for note in figure.notes]),
        id=anchor,
    )


def _drawing(figure: Figure, anchor: str) -> list[Markup]:
    """Twice: a drawing for a desk that is shrunk to a phone's width can't be read any more."""
    lacking = undrawn()
    if lacking is not None:
        return [tag("p", f"Not drawn: {lacking}.", class_=UNDRAWN)]
    return [
        tag("div", Drawing(f"{anchor}-{name}", f"{anchor}-name").markup(svg_for_page(figure, width)), class_=name)
        for name, width in WIDTHS.items()
    ]


def undrawn() -> str | None:
    """Why no figure can be drawn here, and what changes that."""
    lacking = catalogue.missing(REQUIRES)
    return None if lacking is None else f"{lacking.reason}; try {lacking.fix}"
