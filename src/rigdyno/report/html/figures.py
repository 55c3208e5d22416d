"""Render a figure on the page: its drawing with a caption, or a line that says what to install for it.

Of the SVG of a drawing only shapes and texts pass, and each attribute must match its pattern. Its colours are CSS
variables of the page, for light and dark. The script shows the labels of data marks as tooltips.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.report.drawing.draw import REQUIRES, draw_svg_for_page
from rigdyno.report.html.markup import Child, Markup, spell_invisible, tag
from rigdyno.schema.figure import Datum, Figure, Series

_NAMESPACE = re.compile(r"\{[^}]*\}")
_ELEMENTS = frozenset(("svg", "g", "path", "line", "rect", "circle", "text", "tspan", "defs", "clipPath", "pattern"))
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?"
_HEX = r"#[0-9a-fA-F]{3,8}"
_REFERENCE = r"url\(#[\w-]+\)"
_PATTERNS = {
    "number": re.compile(rf"{_NUMBER}(?:px|em|%)?"),
    "numbers": re.compile(rf"(?:{_NUMBER}|[\s,MLHVCSQTAZmlhvcsqtaz])*"),
    "transform": re.compile(rf"(?:(?:translate|rotate|scale|matrix)\((?:{_NUMBER}|[\s,])*\)\s*)*"),
    "word": re.compile(r"[A-Za-z0-9 ,\"'-]*"),
    "paint": re.compile(rf"[a-z]+|{_HEX}|rgba?\([\d.,%\s]+\)|var\(--figure-[a-z]+, {_HEX}\)|{_REFERENCE}"),
    "reference": re.compile(_REFERENCE),
    "name": re.compile(r"[\w-]+"),
}
_ATTRIBUTES = {
    name: pattern
    for pattern, names in {
        "number": "x y x1 y1 x2 y2 dx dy cx cy r rx ry width height opacity fill-opacity stroke-opacity "
        "stroke-width font-size stroke-miterlimit stroke-dashoffset",
        "numbers": "d viewBox stroke-dasharray",
        "paint": "fill stroke",
        "word": "text-anchor font-weight font-style stroke-linecap stroke-linejoin display pointer-events patternUnits",
        "transform": "transform patternTransform",
        "reference": "clip-path",
        "name": "id",
    }.items()
    for name in names.split()
}
DATUM = "datum"  # the class of a data mark
_DEFAULT = re.compile(r", #[0-9a-fA-F]+(?=\))")  # default of a CSS variable; the page always sets it
_LONG_FRACTION = re.compile(r"(\.\d{2})\d+(?![\d]*e)")
UNDRAWN = "undrawn"  # the class of the line that replaces a missing drawing
WIDTHS = {"wide": 720, "narrow": 220}  # pixels of a plot
SMALL = {"small": 220}
MOST_VALUES = 400  # of a series: more than a drawing has pixels for, and each tooltip adds to the size of the page


def render_figure(figure: Figure, anchor: str, *, small: bool = False) -> Markup | None:
    """Render a figure; None if it is empty. `small`: one of many side by side, with one width for every screen."""
    if figure.is_empty:
        return None
    anchor, figure = f"{anchor}-{figure.key}", reduce_figure(figure)
    return tag(
        "figure",
        tag("p", figure.title, id=f"{anchor}-name", class_="figure-title"),
        _render_drawings(figure, anchor, SMALL if small else WIDTHS),
        tag("figcaption", figure.described(), [tag("p", note) for note in figure.notes]),
        id=anchor,
    )


def _render_drawings(figure: Figure, anchor: str, widths: Mapping[str, int]) -> list[Markup]:
    """Draw a figure in each width: a wide drawing that is shrunk to the width of a phone is unreadable."""
    lacking = why_not_drawn()
    if lacking is not None:
        return [tag("p", f"Not drawn: {lacking}.", class_=UNDRAWN)]
    try:
        drawn = {name: draw_svg_for_page(figure, width) for name, width in widths.items()}
    except ValueError as error:  # raised by the renderer; a page without this figure is better than no page
        return [tag("p", f"Can't be drawn: {str(error).partition(chr(10))[0]}", class_=UNDRAWN)]
    return [
        tag("div", Drawing(f"{anchor}-{name}", f"{anchor}-name").markup(svg), class_=name)
        for name, svg in drawn.items()
    ]


def reduce_figure(figure: Figure) -> Figure:
    """Drop values that a page has no pixels for. The lowest and highest of each stretch stay, so no peak is lost."""
    panels = tuple(replace(panel, series=tuple(map(_reduce_series, panel.series))) for panel in figure.panels)
    whole, kept = (
        sum(len(series.data) for panel in each for series in panel.series) for each in (figure.panels, panels)
    )
    if kept == whole:
        return figure
    note = f"{kept:,} of {whole:,} values are drawn here: the lowest and the highest of each stretch."
    return replace(figure, panels=panels, notes=(*figure.notes, note))


def _reduce_series(series: Series) -> Series:
    data = series.data
    if len(data) <= MOST_VALUES or isinstance(data[0].x, str):  # bars of categories are cut by the chart
        return series
    size = math.ceil(len(data) / (MOST_VALUES // 2))
    return replace(
        series, data=tuple(each for at in range(0, len(data), size) for each in _find_extremes(data[at : at + size]))
    )


def _find_extremes(stretch: Sequence[Datum]) -> list[Datum]:
    """Return the lowest value, the highest value and the first gap, in order."""
    known = [(each.value, number) for number, each in enumerate(stretch) if each.value is not None]
    gap = next((number for number, each in enumerate(stretch) if each.value is None), None)
    kept = {number for _, number in (min(known), max(known))} if known else set()
    return [each for number, each in enumerate(stretch) if number in kept or number == gap]


def why_not_drawn() -> str | None:
    """Say why no figure can be drawn here and what to install; None if they can."""
    lacking = catalogue.find_missing(REQUIRES)
    return None if lacking is None else f"{lacking.reason}; try {lacking.fix}"


@dataclass(frozen=True)
class Drawing:
    """Converts an SVG to safe markup: `anchor` is the prefix of its ids, `labelled_by` the id of its title."""

    anchor: str
    labelled_by: str

    def markup(self, svg: str) -> Markup:
        root = ElementTree.fromstring(spell_invisible(svg))  # labels may have characters that XML forbids
        if _local_name(root) != "svg":
            raise ValueError("a drawing is an SVG document")
        width, height = (root.get(side, "0").removesuffix("px") for side in ("width", "height"))
        attributes = {**dict(self._attributes(root)), "viewBox": root.get("viewBox", f"0 0 {width} {height}")}
        return tag("svg", list(self._children(root)), role="group", aria_labelledby=self.labelled_by, **attributes)

    def _children(self, element: ElementTree.Element) -> Iterator[Child]:
        if element.text and _local_name(element) in ("text", "tspan"):
            yield element.text
        for child in element:
            if _local_name(child) in _ELEMENTS and not _is_empty_frame(child):
                yield self._element(child)
            if child.tail and _local_name(element) == "text":
                yield child.tail

    def _element(self, element: ElementTree.Element) -> Markup:
        label = element.get("aria-label") if element.get("class") == DATUM else None
        tip = {"role": "img", "aria-label": label} if label else {}
        return tag(_local_name(element), list(self._children(element)), **dict(self._attributes(element)), **tip)

    def _attributes(self, element: ElementTree.Element) -> Iterator[tuple[str, str]]:
        for name, value in element.attrib.items():
            pattern = _ATTRIBUTES.get(name)
            if pattern is not None and _PATTERNS[pattern].fullmatch(value):
                yield name, self._value(pattern, value)

    def _value(self, pattern: str, value: str) -> str:
        if pattern == "name":
            return f"{self.anchor}-{value}"
        if value.startswith("url(#"):
            return value.replace("url(#", f"url(#{self.anchor}-")
        return _DEFAULT.sub("", value) if pattern == "paint" else _LONG_FRACTION.sub(r"\1", value)


def _local_name(element: ElementTree.Element) -> str:
    return _NAMESPACE.sub("", element.tag) if isinstance(element.tag, str) else ""


def _is_empty_frame(element: ElementTree.Element) -> bool:
    """Return whether an element is one of the empty frames that the renderer puts around every group."""
    return _local_name(element) == "path" and element.get("d", "") in ("", "M0,0h0v0h0Z")
