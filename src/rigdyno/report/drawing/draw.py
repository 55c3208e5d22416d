"""Draw figures as SVG for pages and documents, and as PNG for the rest: offline, and without a browser.

The SVG of the renderer is made self-contained, can take its colours from a page, and can be read by a screen reader.
Marks of data have the class "datum" and an `aria-label` with value, interval, n and verdict, which a page can show as
a tooltip. Every id begins with the figure's key, so that several figures fit on one page.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import msgspec

from rigdyno import catalogue
from rigdyno.base.errors import UsageError
from rigdyno.base.files import disk_errors
from rigdyno.contracts import Requirement
from rigdyno.report.drawing import layers
from rigdyno.report.drawing.style import COLOURS, resize_chart
from rigdyno.schema.figure import Figure

Theme = Literal["light", "dark", "page"]  # "page": every colour is a CSS variable, --figure-NAME

REQUIRES = (Requirement("altair", extra="figures"), Requirement("vl_convert", extra="figures"))

PNG_SCALE = 2.0  # image pixels per pixel of the drawing: sharp on screens with a high resolution

_SVG = "http://www.w3.org/2000/svg"

_GROUP = f"{{{_SVG}}}g"

_PAINTS = ("fill", "stroke")

_DROPPED = {"pointer-events", "aria-roledescription"}

_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")

_REFERENCE = re.compile(r"url\(#([^)]*)\)")

_TRANSLATED = re.compile(r"translate\(([^,()]+),([^,()]+)\)")

_HATCHED = re.compile(r"url\(#hatched-(\w+)\)")

# Characters that XML forbids, which make the renderer abort the process, and line breaks within its expressions.
_NOT_XML = re.compile("[^\t\n\r\u0020-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_BY_COLOUR: Mapping[str, str] = {light: name for name, (light, _) in COLOURS.items()}

_PNG_HEAD = 33  # bytes of the signature and the first chunk

_MARK_BYTES = 4096  # searched for a mark at the beginning of a file

ElementTree.register_namespace("", _SVG)


def draw_svg(figure: Figure, *, theme: Theme = "light", captioned: bool = True) -> str:
    """Return one <svg> element without scripts, links or fonts.

    With the theme "page" its colours are CSS variables (--figure-ink, ...) that the page sets; their defaults are the
    light colours.
    """
    catalogue.require_installed(REQUIRES, "drawing figures")
    clean = _clean_figure(figure)
    return finish_svg(_render(make_specification(clean, captioned=captioned)), clean, theme)


def draw_svg_for_page(figure: Figure, width: int) -> str:
    """Return an SVG without title and caption, which the page shows as text. `width` is in pixels, without labels."""
    catalogue.require_installed(REQUIRES, "drawing figures")
    clean = _clean_figure(figure)
    return finish_svg(_render(resize_chart(make_specification(clean, captioned=False), width)), clean, "page")


def draw_png(figure: Figure, *, dark: bool = False, captioned: bool = True) -> bytes:
    """Return the drawing as PNG."""
    return svg_to_png(draw_svg(figure, theme="dark" if dark else "light", captioned=captioned))


def svg_to_png(svg: str) -> bytes:
    """Convert an SVG to PNG; its theme must not be "page"."""
    import vl_convert

    image: bytes = vl_convert.svg_to_png(svg, scale=PNG_SCALE)
    return image


def make_specification(figure: Figure, *, captioned: bool = True) -> dict[str, Any]:
    """Return the Vega-Lite specification of a figure."""
    return layers.finish_chart(catalogue.load("figure", figure.kind)(figure), figure, captioned)


def _render(spec: dict[str, Any]) -> str:
    import altair
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    svg: str = vl_convert.vegalite_to_svg(spec, vl_version=version, allowed_base_urls=[])
    return svg


def _clean_figure(figure: Figure) -> Figure:
    return msgspec.convert(_clean_text(msgspec.to_builtins(figure)), Figure)


def _clean_text(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {key: _clean_text(each) for key, each in value.items()}
    return [_clean_text(each) for each in value] if isinstance(value, list | tuple) else value


def write_figures(figures: Sequence[Figure], folder: Path, *, dark: bool = False) -> Iterator[Path]:
    """Write each figure as SVG and as PNG, named by its key. Existing files are replaced only if Rigdyno wrote them."""
    catalogue.require_installed(REQUIRES, "drawing figures")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        for path in _output_paths(figure, folder):
            _check_replaceable(path, figure)
    for figure in figures:
        svg = draw_svg(figure, theme="dark" if dark else "light")
        contents = (svg.encode(), _add_mark(svg_to_png(svg), figure))
        for path, content in zip(_output_paths(figure, folder), contents, strict=True):
            with disk_errors(path):
                path.write_bytes(content)
            yield path


def _output_paths(figure: Figure, folder: Path) -> tuple[Path, Path]:
    return folder / f"{figure.key}.svg", folder / f"{figure.key}.png"


def _file_mark(figure: Figure) -> str:
    return f"rigdyno figure {figure.key}"


def _check_replaceable(path: Path, figure: Figure) -> None:
    if not path.exists():
        return
    with disk_errors(path), path.open("rb") as file:
        beginning = file.read(_MARK_BYTES)
    marks = (_file_mark(figure).encode(), f'id="{figure.key}-title"'.encode())
    if not any(mark in beginning for mark in marks):
        raise UsageError(f"{path} exists and was not written by Rigdyno; move it, or choose another folder")


def _add_mark(png: bytes, figure: Figure) -> bytes:
    """Add a text chunk after the first, which marks the file as written by Rigdyno."""
    body = b"tEXt" + b"Comment\0" + _file_mark(figure).encode("latin-1")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:_PNG_HEAD] + chunk + png[_PNG_HEAD:]


def finish_svg(raw: str, figure: Figure, theme: Theme) -> str:
    """Clean the SVG of the renderer up; set its colours, title, description and ids."""
    root = ElementTree.fromstring(raw)  # from the renderer, whose input had no characters that XML forbids
    _drop_empty(root)
    hatched = sorted({name for element in root.iter() for name in _find_hatches(element)})
    for element in root.iter():
        _tidy(element, theme)
    _simplify(root)
    root.insert(0, _define_hatches(hatched, theme))
    _add_title(root, figure)
    _prefix_ids(root, figure.key)
    return ElementTree.tostring(root, encoding="unicode")


def _drop_empty(element: ElementTree.Element) -> None:
    for child in list(element):
        _drop_empty(child)
        empty_group = child.tag == _GROUP and len(child) == 0
        if empty_group or child.get("display") == "none" or child.get("d") in ("", "M0,0h0v0h0Z"):
            element.remove(child)


def _find_hatches(element: ElementTree.Element) -> Iterator[str]:
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
            element.set(name, _theme_colour(element.attrib[name], theme))
    if element.get("role") == "graphics-symbol" and element.tag != _GROUP:
        element.set("class", "datum")
        element.set("role", "img")
    elif "role" in element.attrib:
        del element.attrib["role"]  # a screen reader reads only the description of the figure and the marks of data
        element.attrib.pop("aria-label", None)


def _simplify(element: ElementTree.Element) -> None:
    """Replace groups without attributes by their content, and join the lines of a grid or an axis to one path.

    They would be half of a page's size.
    """
    found: list[ElementTree.Element] = []
    for child in element:
        _simplify(child)
        found += list(child) if child.tag == _GROUP and not child.attrib else [child]
    joined: list[ElementTree.Element] = []
    for child in found:
        stroke = _as_path(child)
        before = joined[-1] if joined else None
        if stroke is not None and before is not None and _looks_alike(before, stroke):
            before.set("d", before.attrib["d"] + stroke.attrib["d"])
        else:
            joined.append(child if stroke is None else stroke)
    element[:] = joined


def _as_path(element: ElementTree.Element) -> ElementTree.Element | None:
    """Convert a line that starts at its translation to a path; None for any other element."""
    moved = _TRANSLATED.fullmatch(element.get("transform", "translate(0,0)"))
    if element.tag != f"{{{_SVG}}}line" or moved is None or {"x1", "y1"} & set(element.attrib):
        return None
    kept = {name: value for name, value in element.items() if name not in ("transform", "x2", "y2")}
    to = f"{element.get('x2', '0')},{element.get('y2', '0')}"
    return ElementTree.Element(f"{{{_SVG}}}path", {"d": f"M{moved[1]},{moved[2]}l{to}", **kept})


def _looks_alike(one: ElementTree.Element, other: ElementTree.Element) -> bool:
    looks = [{name: value for name, value in each.items() if name != "d"} for each in (one, other)]
    return one.tag == other.tag and looks[0] == looks[1] and "class" not in looks[0]


def _theme_colour(colour: str, theme: Theme) -> str:
    name = _BY_COLOUR.get("#ffffff" if colour == "white" else colour)
    if name is None:
        return colour
    light, dark = COLOURS[name]
    return {"light": light, "dark": dark, "page": f"var(--figure-{name}, {light})"}[theme]


def _define_hatches(hatched: list[str], theme: Theme) -> ElementTree.Element:
    """Define a pattern of stripes for each colour that is used for hatching."""
    found = ElementTree.Element(f"{{{_SVG}}}defs")
    for name in hatched:
        light, _ = COLOURS[name]
        pattern = ElementTree.SubElement(
            found, f"{{{_SVG}}}pattern", id=f"hatched-{name}", width="6", height="6",
            patternUnits="userSpaceOnUse", patternTransform="rotate(45)",
        )  # fmt: skip
        colour = _theme_colour(light, theme)
        ElementTree.SubElement(pattern, f"{{{_SVG}}}path", {"d": "M1.5,0v6", "stroke": colour, "stroke-width": "2.2"})
    return found


def _add_title(root: ElementTree.Element, figure: Figure) -> None:
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


def _prefix_ids(root: ElementTree.Element, key: str) -> None:
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", f"{key}-{element.attrib['id']}")
        for name, value in element.attrib.items():
            if name != "aria-label" and "url(#" in value:
                element.set(name, _REFERENCE.sub(lambda match: f"url(#{key}-{match[1]})", value))
