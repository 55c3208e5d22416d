"""Test drawings in the page: only shapes and texts of an SVG pass."""

from html import escape
from xml.etree.ElementTree import ParseError

import pytest

from hostile_run import PAYLOADS
from reading_pages import read
from rigdyno.report.html.figures import Drawing

HERE = Drawing("run-figure1", "run-figure1-title")


def render_drawing(inside, **attributes):
    more = "".join(f' {name}="{value}"' for name, value in attributes.items())
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    svg = f'<svg {spaces} width="300" height="200"{more}>'
    return read(HERE.markup(f"{svg}{inside}</svg>")).one("svg")


def test_shapes_and_texts_pass():
    svg = render_drawing(
        '<g transform="translate(33,23)"><path d="M0.5,0.5h300v150h-300Z" stroke="#4477aa"/><text>a &lt; b</text></g>'
    )
    group = next(svg.all("g"))
    assert group.attributes == {"transform": "translate(33,23)"}
    assert svg.one("path").attributes == {"d": "M0.5,0.5h300v150h-300Z", "stroke": "#4477aa"}
    assert svg.one("text").text() == "a < b"
    assert svg.attributes["viewbox"] == "0 0 300 200"


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        "<style>*{display:none}</style>",
        "<foreignObject><p>x</p></foreignObject>",
        '<image href="https://example.org/x.png"/>',
        '<use xlink:href="https://example.org/x.svg#a"/>',
        '<a xlink:href="javascript:alert(1)"><text>x</text></a>',
        '<animate attributeName="href" to="javascript:alert(1)"/>',
        '<set attributeName="onload" to="alert(1)"/>',
    ],
)
def test_other_elements_are_dropped(inside):
    assert list(render_drawing(inside).all()) == []
    assert render_drawing(inside).text() == ""


@pytest.mark.parametrize(
    "attribute",
    [
        'onclick="alert(1)"', 'style="fill:red"', 'class="x"', 'href="#x"', 'fill="url(https://example.org/x)"',
        'fill="var(--x)"', 'clip-path="url(//example.org)"', 'd="M0,0 &quot;"', 'transform="translate(1) x(2)"',
        'width="calc(1px)"', 'id="a b"', 'font-family="x"',
    ],
)  # fmt: skip
def test_an_attribute_passes_only_if_it_matches_its_pattern(attribute):
    assert render_drawing(f"<rect {attribute}/>").one("rect").attributes == {}


def test_ids_of_two_drawings_differ():
    svg = render_drawing('<defs><clipPath id="clip0"><rect width="1"/></clipPath></defs><g clip-path="url(#clip0)"/>')
    assert next(svg.all("clippath")).attributes["id"] == "run-figure1-clip0"
    assert next(svg.all("g")).attributes["clip-path"] == "url(#run-figure1-clip0)"


def test_the_label_of_a_mark_is_its_tooltip():
    mark = '<path class="datum" aria-label="a: 3 it/s, n = 10" d="M0,0h1"/>'
    inside = f'<g class="role-mark">{mark}</g><g aria-label="X-axis titled x"><path d="M0,0h1"/></g>'
    tips = [path.attributes.get("aria-label") for path in render_drawing(inside).all("path")]
    assert tips == ["a: 3 it/s, n = 10", None]


@pytest.mark.parametrize("words", PAYLOADS)
def test_a_hostile_label_stays_text(words):
    mark = f'<path class="datum" aria-label="{escape(words)}" d="M0,0h1"/>'
    svg = render_drawing(f'<text>{escape(words)}</text><g class="role-mark">{mark}</g>')
    assert [element.name for element in svg.all()] == ["text", "g", "path"]


@pytest.mark.parametrize("colour", ["#4477aa", "none", "white", "rgb(1, 2, 3)", "var(--figure-ink, #1f2328)"])
def test_valid_colours_pass(colour):
    shown = colour.replace(", #1f2328", "")  # the page sets the variable, so the default is dropped
    assert render_drawing(f'<rect fill="{colour}"/>').one("rect").attributes == {"fill": shown}


def test_hatch_patterns_pass():
    how = 'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"'
    svg = render_drawing(
        f'<defs><pattern id="h" width="6" {how}><path d="M1,0v6"/></pattern></defs><rect fill="url(#h)"/>'
    )
    assert svg.one("pattern").attributes["id"] == "run-figure1-h"
    assert svg.one("rect").attributes["fill"] == "url(#run-figure1-h)"


def test_long_fractions_are_cut_but_small_numbers_kept():
    path = render_drawing('<path d="M1.23456,0.5L1.5e-7,2" transform="translate(150,161.7333984375)"/>').one("path")
    assert path.attributes == {"d": "M1.23,0.5L1.5e-7,2", "transform": "translate(150,161.73)"}


def test_empty_frames_are_left_out():
    assert list(render_drawing('<path d="M0,0h0v0h0Z"/><path d=""/>').all()) == []


def test_a_document_that_is_not_svg_is_rejected():
    with pytest.raises(ValueError, match="SVG"):
        HERE.markup("<html></html>")
    with pytest.raises(ParseError):
        HERE.markup("<svg")
