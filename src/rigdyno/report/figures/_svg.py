"""The renderer's SVG, made to stand on its own, to take its colours from a page, and to be read out.

Marks of data have the class "datum" and an `aria-label` with value, interval, n and verdict: whoever shows that on
hovering needs nothing else. Every id begins with the figure's key, so that many figures fit on one page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal
from xml.etree import ElementTree

from rigdyno.report.figures._style import NAMED
from rigdyno.schema.figure import Figure

Theme = Literal["light", "dark", "page"]  # page: every colour is a CSS variable, --figure-NAME

_SVG = "http://www.w3.org/2000/svg"
_GROUP = f"{{{_SVG}}}g"
_PAINTS = ("fill", "stroke")
_DROPPED = {"pointer-events", "aria-roledescription"}
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_MOVED = re.compile(r"translate\(([^,()]+),([^,()]+)\)")
_HATCHED = re.compile(r"url\(#hatched-(\w+)\)")

ElementTree.register_namespace("", _SVG)


def finished_svg(raw: str, figure: Figure, theme: Theme) -> str:
    root = ElementTree.fromstring(raw)  # made by the renderer, of text without what XML doesn't know
    _drop_what_draws_nothing(root)
    hatched = sorted({name for element in root.iter() for name in _hatches(element)})
    for element in root.iter():
        _tidy(element, theme)
    _join(root)
    root.insert(0, _definitions(hatched, theme))
    _named(root, figure)
    _with_own_ids(root, figure.key)
    return ElementTree.tostring(root, encoding="unicode")


def _drop_what_draws_nothing(element: ElementTree.Element) -> None:
    for child in list(element):
        _drop_what_draws_nothing(child)
        empty_group = child.tag == _GROUP and len(child) == 0
        if empty_group or child.get("display") == "none" or child.get("d") in ("", "M0,0h0v0h0Z"):
            element.remove(child)


def _hatches(element: ElementTree.Element) -> Iterator[str]:
    return (match[1] for paint in _PAINTS for match in _HATCHED.finditer(element.get(paint, "")))


def _tidy(element: ElementTree.Element, theme: Theme) -> None:
    for name in _DROPPED & set(element.attrib):
        del element.attrib[name]
    if element.get("opacity") == "1":
        del element.attrib["opacity"]
    for name in ("d", "transform", "x", "y", "x2", "y2"):
        if name in element.attrib:
            element.set(name, _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.2f}", element.attrib[name]))
    for name in _PAINTS:
        if name in element.attrib:
            element.set(name, _painted(element.attrib[name], theme))
    if element.get("role") == "graphics-symbol" and element.tag != _GROUP:
        element.set("class", "datum")
        element.set("role", "img")
    elif "role" in element.attrib:
        del element.attrib["role"]  # a screen reader has the figure's description, and the marks of data
        element.attrib.pop("aria-label", None)


def _join(element: ElementTree.Element) -> None:
    """Groups that say nothing give way to what is in them, and lines of a grid or of an axis become one path: half of
    a page's size would be these."""
    found: list[ElementTree.Element] = []
    for child in element:
        _join(child)
        found += list(child) if child.tag == _GROUP and not child.attrib else [child]
    joined: list[ElementTree.Element] = []
    for child in found:
        stroke = _as_path(child)
        before = joined[-1] if joined else None
        if stroke is not None and before is not None and _drawn_alike(before, stroke):
            before.set("d", before.attrib["d"] + stroke.attrib["d"])
        else:
            joined.append(child if stroke is None else stroke)
    element[:] = joined


def _as_path(element: ElementTree.Element) -> ElementTree.Element | None:
    """A line that begins where it is moved to."""
    moved = _MOVED.fullmatch(element.get("transform", "translate(0,0)"))
    if element.tag != f"{{{_SVG}}}line" or moved is None or {"x1", "y1"} & set(element.attrib):
        return None
    kept = {name: value for name, value in element.items() if name not in ("transform", "x2", "y2")}
    to = f"{element.get('x2', '0')},{element.get('y2', '0')}"
    return ElementTree.Element(f"{{{_SVG}}}path", {"d": f"M{moved[1]},{moved[2]}l{to}", **kept})


def _drawn_alike(one: ElementTree.Element, other: ElementTree.Element) -> bool:
    looks = [{name: value for name, value in each.items() if name != "d"} for each in (one, other)]
    return one.tag == other.tag and looks[0] == looks[1] and "class" not in looks[0]


_BY_COLOUR: Mapping[str, str] = {light: name for name, (light, _) in NAMED.items()}


def _painted(colour: str, theme: Theme) -> str:
    name = _BY_COLOUR.get("#ffffff" if colour == "white" else colour)
    if name is None:
        return colour
    light, dark = NAMED[name]
    return {"light": light, "dark": dark, "page": f"var(--figure-{name}, {light})"}[theme]


def _definitions(hatched: list[str], theme: Theme) -> ElementTree.Element:
    """Stripes of each colour that something is hatched with."""
    found = ElementTree.Element(f"{{{_SVG}}}defs")
    for name in hatched:
        light, _ = NAMED[name]
        pattern = ElementTree.SubElement(
            found, f"{{{_SVG}}}pattern", id=f"hatched-{name}", width="6", height="6",
            patternUnits="userSpaceOnUse", patternTransform="rotate(45)",
        )  # fmt: skip
        colour = _painted(light, theme)
        ElementTree.SubElement(pattern, f"{{{_SVG}}}path", {"d": "M1.5,0v6", "stroke": colour, "stroke-width": "2.2"})
    return found


def _named(root: ElementTree.Element, figure: Figure) -> None:
    title, words = (
        ElementTree.Element(f"{{{_SVG}}}title", id="title"),
        ElementTree.Element(f"{{{_SVG}}}desc", id="desc"),
    )
    title.text, words.text = figure.title, figure.described()
    root.insert(0, words)
    root.insert(0, title)
    root.set("role", "group")
    root.set("aria-labelledby", f"{figure.key}-title")
    root.set("aria-describedby", f"{figure.key}-desc")


def _with_own_ids(root: ElementTree.Element, key: str) -> None:
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", f"{key}-{element.attrib['id']}")
        for name, value in element.attrib.items():
            if name != "aria-label" and "url(#" in value:
                element.set(name, _REFERENCE.sub(lambda match: f"url(#{key}-{match[1]})", value))
