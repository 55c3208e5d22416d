"""A drawing as a part of the page: of an SVG only shapes and texts pass, each attribute by its own pattern.

Greys become the page's own colours, so that a drawing is readable on a dark page too. Marks get the tips that the
drawing's own labels hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from rigdyno.report.formats._html.markup import Child, Markup, spelled_out, tag

_SPACE = re.compile(r"\{[^}]*\}")
_ELEMENTS = frozenset(
    ("svg", "g", "path", "line", "rect", "circle", "text", "tspan", "defs", "clipPath", "linearGradient", "stop")
)
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?"
_REFERENCE = r"url\(#[\w-]+\)"
_PATTERNS = {
    "number": re.compile(rf"{_NUMBER}(?:px|em|%)?"),
    "numbers": re.compile(rf"(?:{_NUMBER}|[\s,MLHVCSQTAZmlhvcsqtaz])*"),
    "transform": re.compile(rf"(?:(?:translate|rotate|scale|matrix)\((?:{_NUMBER}|[\s,])*\)\s*)*"),
    "word": re.compile(r"[A-Za-z0-9 ,\"'-]*"),
    "paint": re.compile(rf"[a-z]+|#[0-9a-fA-F]{{3,8}}|(?:rgb|hsl)a?\([\d.,%\s]+\)|{_REFERENCE}"),
    "reference": re.compile(_REFERENCE),
    "name": re.compile(r"[\w-]+"),
}
_ATTRIBUTES = {
    name: pattern
    for pattern, names in {
        "number": "x y x1 y1 x2 y2 dx dy cx cy r rx ry width height opacity fill-opacity stroke-opacity stop-opacity "
        "stroke-width offset font-size stroke-miterlimit stroke-dashoffset",
        "numbers": "d viewBox stroke-dasharray",
        "paint": "fill stroke stop-color",
        "word": "text-anchor font-weight font-style stroke-linecap stroke-linejoin display pointer-events "
        "gradientUnits",
        "transform": "transform",
        "reference": "clip-path",
        "name": "id",
    }.items()
    for name in names.split()
}
_LONG_FRACTION = re.compile(r"(\.\d{2})\d+(?![\d]*e)")
_ONE_COLOUR = re.compile(r"#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})")
_NAMED_GREYS = {"black": 0, "white": 255, "gray": 128, "grey": 128, "lightgray": 211, "lightgrey": 211}
_GREY_SPREAD = 12  # between the channels of what counts as grey
# Lightness up to which a grey is meant as ink, as quiet text, as a strong line, as a line; what is lighter is paper.
_GREYS = ((60, "ink"), (115, "soft"), (165, "strong-line"), (235, "line"), (255, "paper"))


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

    def _children(self, element: ElementTree.Element, in_marks: bool = False) -> Iterator[Child]:
        if element.text and _name(element) in ("text", "tspan"):
            yield element.text
        for child in element:
            if _name(child) in _ELEMENTS and not _is_nothing(child):
                yield self._element(child, in_marks or "role-mark" in child.get("class", "").split())
            if child.tail and _name(element) == "text":
                yield child.tail

    def _element(self, element: ElementTree.Element, in_marks: bool) -> Markup:
        label = element.get("aria-label")
        is_mark = in_marks and element.get("role") == "graphics-symbol" and bool(label)
        tip = {"data-tip": label, "aria-label": label, "role": "img"} if is_mark else {}
        return tag(_name(element), list(self._children(element, in_marks)), **dict(self._attributes(element)), **tip)

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
        return paint(value) if pattern == "paint" else _LONG_FRACTION.sub(r"\1", value)


def _name(element: ElementTree.Element) -> str:
    return _SPACE.sub("", element.tag) if isinstance(element.tag, str) else ""


def _is_nothing(element: ElementTree.Element) -> bool:
    """Empty frames that the drawing program leaves around every group."""
    return _name(element) == "path" and element.get("d", "") in ("", "M0,0h0v0h0Z")


def paint(value: str) -> str:
    """A grey as the page's own colour of that weight; all other colours as they are."""
    level = _grey_level(value)
    if level is None:
        return value
    return next(f"var(--{name})" for most, name in _GREYS if level <= most)


def _grey_level(value: str) -> int | None:
    if value in _NAMED_GREYS:
        return _NAMED_GREYS[value]
    found = _ONE_COLOUR.fullmatch(value)
    if found is None:
        return None
    digits = found[1] if len(found[1]) == 6 else "".join(2 * digit for digit in found[1])
    channels = [int(digits[at : at + 2], 16) for at in (0, 2, 4)]
    return None if max(channels) - min(channels) > _GREY_SPREAD else sum(channels) // 3
