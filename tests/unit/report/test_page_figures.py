"""Test figures on the page: drawn in two widths with a tooltip at every mark, or a line that says what to install."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driving import here
from figures_of_every_kind import bars, curve, stack, timeline
from hostile_run import PAYLOADS
from reading_pages import read
from rigdyno import catalogue
from rigdyno.contracts import Requirement
from rigdyno.report.drawing import draw
from rigdyno.report.drawing.style import PAPER, WIDTH, resize_chart
from rigdyno.report.formats.html import render
from rigdyno.report.html import figures
from rigdyno.report.html.figures import MOST_VALUES, WIDTHS, reduce_figure, render_figure
from rigdyno.report.text import Page
from rigdyno.schema.figure import Axis, Figure, Panel, Series, datum
from rigdyno.schema.spec import Budget, RunSpec
from rigdyno.schema.view import View
from support import a_stored_run


def test_a_figure_is_drawn_wide_and_narrow():
    block = read(render_figure(bars(), "run"))
    wide, narrow = block.all("svg")
    widths = [float(svg.attributes["width"]) for svg in (wide, narrow)]
    assert widths[0] > WIDTHS["wide"]
    assert WIDTHS["narrow"] < widths[1] < 420
    name = f"run-{bars().key}-name"
    assert {svg.attributes["aria-labelledby"] for svg in (wide, narrow)} == {name}
    assert block.one(id=name).text() == bars().title
    assert block.one("figcaption").text().startswith(bars().described())


def test_every_mark_has_a_tooltip_with_value_interval_and_n():
    wide = next(read(render_figure(bars(), "run")).all("svg"))
    tips = [mark.attributes["aria-label"] for mark in wide.all(role="img")]
    values = [each for series in bars().series for each in series.data if each.value is not None]
    assert len(tips) >= len(values)
    assert any(re.search(r"95 % interval .* to .*; n = \d+", tip) for tip in tips)


def test_colours_are_variables_of_the_page():
    svg = next(read(render_figure(curve(), "run")).all("svg"))
    paints = {each.attributes[name] for each in svg.all() for name in ("fill", "stroke") if name in each.attributes}
    assert {paint for paint in paints if paint.startswith("#")} == set()
    assert any(paint == "var(--figure-blue)" for paint in paints)
    text = render(View(title="t"), Page())
    for name in {found for paint in paints for found in re.findall(r"--figure-[a-z]+", paint)}:
        assert f"{name}: " in text


def test_ids_of_many_figures_are_unique():
    page = read(render(View(title="t", figures=(bars(), stack())), Page()))
    ids = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(set(ids)) == len(ids)
    used = re.findall(r"url\(#([^)]*)\)", render(View(title="t", figures=(bars(), stack())), Page()))
    assert used
    assert set(used) <= set(ids)


def test_the_first_figure_follows_the_answer_and_the_others_the_tables():
    page = read(render(View(title="t", closing=("so it is",), figures=(bars(), curve())), Page()))
    article = page.one("article")
    assert [child.name for child in article.children] == ["header", "div", "figure", "section"]
    assert page.one("section", class_="figures").one("figure").attributes["id"] == f"run-{curve().key}"


def test_an_empty_figure_is_left_out():
    nothing = Series(name="a", role="measured", data=(datum(1, None),))
    empty = Figure(
        key="x", kind="curve", title="t", x=Axis(quantity="x"), panels=(Panel(y=Axis(quantity="y"), series=(nothing,)),)
    )
    assert render_figure(empty, "run") is None


def test_untrusted_text_in_a_figure_stays_text():
    data = tuple(datum(words, number + 1.0) for number, words in enumerate(PAYLOADS))
    series = Series(name=PAYLOADS[0], role="measured", data=data)
    figure = Figure(
        key="x", kind="bars", title=PAYLOADS[1], caption=PAYLOADS[2], notes=PAYLOADS, x=Axis(quantity=PAYLOADS[3]),
        panels=(Panel(y=Axis(quantity=PAYLOADS[4], unit=PAYLOADS[5]), series=(series,)),),
    )  # fmt: skip
    block = read(render_figure(figure, "run"))
    assert {element.name for element in block.all()} <= {
        *("figure", "p", "div", "svg", "g", "path", "line", "rect", "text", "tspan", "defs", "pattern", "clippath"),
        "figcaption",
    }
    for element in block.all():
        assert not [name for name in element.attributes if name.startswith("on") or name in ("style", "href", "src")]


def test_a_narrow_drawing_has_no_names_inside_its_bars():
    wide = draw.make_specification(stack(), captioned=False)
    marks = [layer["mark"] for layer in wide["layer"]]
    inside = [mark for mark in marks if mark["type"] == "text" and mark.get("color") == PAPER]
    assert inside
    narrow = resize_chart(wide, 220)
    assert narrow["width"] == 220
    assert len(narrow["layer"]) == len(wide["layer"]) - len(inside)
    assert len(resize_chart(wide, 720)["layer"]) == len(wide["layer"])


@pytest.mark.parametrize("figure", [bars(), curve(), stack(), timeline()], ids=lambda figure: figure.kind)
def test_no_element_keeps_the_default_width(figure):
    def widths(spec):
        if isinstance(spec, dict):
            yield from (spec[key] for key in ("width",) if key in spec)
            for key, each in spec.items():
                yield from () if key == "data" else widths(each)
        elif isinstance(spec, list):
            for each in spec:
                yield from widths(each)

    spec = draw.make_specification(figure, captioned=False)
    assert WIDTH in set(widths(spec))
    assert WIDTH not in set(widths(resize_chart(spec, 220)))


def a_curve(values):
    data = tuple(datum(float(number), value) for number, value in enumerate(values))
    panel = Panel(y=Axis(quantity="y"), series=(Series(name="a", role="measured", data=data),))
    return Figure(key="x", kind="curve", title="t", x=Axis(quantity="x"), panels=(panel,))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.none() | st.floats(-1e9, 1e9), min_size=MOST_VALUES + 1, max_size=5 * MOST_VALUES))
def test_reduced_figures_keep_peaks_and_gaps(values):
    figure = a_curve(values)
    (series,) = reduce_figure(figure).series
    assert len(series.data) <= 1.5 * MOST_VALUES
    assert [each.x for each in series.data] == sorted({each.x for each in series.data})
    assert set(series.data) <= set(next(figure.series).data)
    known = [value for value in values if value is not None]
    drawn = [each.value for each in series.data if each.value is not None]
    assert (None in values) == any(each.value is None for each in series.data)
    if known:
        assert (min(drawn), max(drawn)) == (min(known), max(known))
    assert reduce_figure(figure).notes == (
        f"{len(series.data):,} of {len(values):,} values are drawn here: the lowest and the highest of each stretch.",
    )


def test_a_figure_with_few_values_is_unchanged():
    figure = a_curve([1.0] * MOST_VALUES)
    assert reduce_figure(figure) is figure


def test_a_figure_that_the_renderer_rejects_does_not_break_the_page(monkeypatch):
    def refusing(_figure, _width):
        raise ValueError("conversion failed: <b>no such scale\n  at line 7")

    monkeypatch.setattr(figures, "draw_svg_for_page", refusing)
    page = read(render(View(title="t", figures=(bars(),)), Page()))
    assert page.one("p", class_="undrawn").text() == "Can't be drawn: conversion failed: <b>no such scale"


@pytest.fixture
def _without_altair(monkeypatch):
    lacking = (Requirement("no_such_module", extra="figures"),)
    monkeypatch.setattr(figures, "REQUIRES", lacking)
    assert catalogue.find_missing(lacking) is not None


@pytest.mark.usefixtures("_without_altair")
def test_without_the_extra_a_line_replaces_each_figure():
    page = read(render(View(title="t", figures=(bars(), curve())), Page()))
    said = [line.text() for line in page.all("p", class_="undrawn")]
    assert said == ["Not drawn: no_such_module is not installed; try pip install 'rigdyno[figures]'."] * 2
    assert len(list(page.all("figcaption"))) == 2
    assert not list(page.all("svg"))


@pytest.mark.usefixtures("_without_altair")
def test_without_the_extra_the_command_says_so_once(tmp_path):
    soak = RunSpec(workload="tensor_add", budget=Budget(seconds=3.0, stop="clock"))
    run = a_stored_run(tmp_path / "runs", spec=soak)
    answer = here("report", str(run), "--html", "report.html", cwd=tmp_path)
    assert answer.returncode == 0
    assert answer.stderr.count("pip install 'rigdyno[figures]'") == answer.stderr.count("\n") == 1
    assert "No throttling" in (tmp_path / "report.html").read_text(encoding="utf-8")
