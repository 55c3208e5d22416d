"""Figures as pictures: SVG for pages and documents, PNG for the rest. Offline, and without a browser."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rigdyno import catalogue
from rigdyno.contracts import Requirement
from rigdyno.report.figures import _layers
from rigdyno.report.figures._sizes import resized
from rigdyno.report.figures._svg import Theme, finished_svg
from rigdyno.schema.figure import Figure

REQUIRES = (Requirement("altair", extra="figures"), Requirement("vl_convert", extra="figures"))
PNG_SCALE = 2.0  # pixels for each of the drawing's: sharp on today's screens

# What XML can't hold, of which the renderer ends the whole process; and what breaks a line inside its expressions.
_NOT_XML = re.compile("[^\t\n\r\u0020-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg_of(figure: Figure, *, theme: Theme = "light", captioned: bool = True) -> str:
    """One <svg> without scripts, links or fonts of its own. With the theme "page" its colours are CSS variables
    (--figure-ink, ...; each with the light colour as its default) that the page around it sets."""
    catalogue.demand(REQUIRES, "drawing figures")
    clean = _without_what_xml_forbids(figure)
    return finished_svg(_rendered(specification(clean, captioned=captioned)), clean, theme)


def svg_for_page(figure: Figure, width: int) -> str:
    """Without title and caption, which the page sets in its own type. `width` is that of the plot, without labels."""
    catalogue.demand(REQUIRES, "drawing figures")
    clean = _without_what_xml_forbids(figure)
    return finished_svg(_rendered(resized(specification(clean, captioned=False), width)), clean, "page")


def png_of(figure: Figure, *, dark: bool = False, captioned: bool = True) -> bytes:
    """The same drawing as pixels."""
    return png_of_svg(svg_of(figure, theme="dark" if dark else "light", captioned=captioned))


def png_of_svg(svg: str) -> bytes:
    """Of a drawing whose colours are no page's."""
    import vl_convert

    image: bytes = vl_convert.svg_to_png(svg, scale=PNG_SCALE)
    return image


def specification(figure: Figure, *, captioned: bool = True) -> dict[str, Any]:
    """The Vega-Lite specification, before anything is rendered."""
    return _layers.finished(catalogue.load("figure", figure.kind)(figure), figure, captioned)


def _rendered(spec: dict[str, Any]) -> str:
    import altair
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    svg: str = vl_convert.vegalite_to_svg(spec, vl_version=version, allowed_base_urls=[])
    return svg


def _without_what_xml_forbids(figure: Figure) -> Figure:
    return msgspec.convert(_cleaned(msgspec.to_builtins(figure)), Figure)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {key: _cleaned(each) for key, each in value.items()}
    return [_cleaned(each) for each in value] if isinstance(value, list | tuple) else value
