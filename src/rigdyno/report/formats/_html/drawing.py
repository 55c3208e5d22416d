"""A drawing as a part of the page: of an SVG only shapes and texts pass, each attribute by its own pattern.

Its colours are variables that the page's style sets, for light and for dark. Marks of data get the tips that their
labels hold: the script takes them from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from rigdyno.report.formats._html.markup import Child, Markup, spelled_out, tag

_SPACE = re.compile(r"\{[^}]*\}")
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
DATUM = "datum"  # the class of a mark that stands for data
_DEFAULT = re.compile(r", #[0-9a-fA-F]+(?=\))")  # of a variable, which the page sets in any case
_LONG_FRACTION = re.compile(r"(\.\d{2})\d+(?![\d]*e)")


@dataclass(frozen=True)
class Drawing:
    """How a drawing stands on the page: what its names begin with, and what it is called for a screen reader."""

    anchor: str
    labelled_by: str

    def markup(self, svg: str) -> Markup:
        root = ElementTree.fromstring(spelled_out(svg))  # XML can't hold all that a label may
        if _name(root) != "svg":
            raise ValueError("a drawing is an SVG document")
        width, height = (root.get(side, "0").removesuffix("px") for side in ("width", "height"))
        attributes = {**dict(self._attributes(root)), "viewBox": root.get("viewBox", f"0 0 {width} {height}")}
        return tag("svg", list(self._children(root)), role="group", aria_labelledby=self.labelled_by, **attributes)

    def _children(self, element: ElementTree.Element) -> Iterator[Child]:
        if element.text and _name(element) in ("text", "tspan"):
            yield element.text
        for child in element:
            if _name(child) in _ELEMENTS and not _is_nothing(child):
                yield self._element(child)
            if child.tail and _name(element) == "text":
                yield child.tail

    def _element(self, element: ElementTree.Element) -> Markup:
        label = element.get("aria-label") if element.get("class") == DATUM else None
        tip = {"role": "img", "aria-label": label} if label else {}
        return tag(_name(element), list(self._children(element)), **dict(self._attributes(element)), **tip)

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


def _name(element: ElementTree.Element) -> str:
    return _SPACE.sub("", element.tag) if isinstance(element.tag, str) else ""


def _is_nothing(element: ElementTree.Element) -> bool:
    """Empty frames that the drawing program leaves around every group."""
    return _name(element) == "path" and element.get("d", "") in ("", "M0,0h0v0h0Z")
