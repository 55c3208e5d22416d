"""Test the rules of every drawing: zero in bars, open gaps, intervals, distinct roles, units, verdicts, no markup."""

import itertools
import json
import re
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from figures_of_every_kind import EVERY, bars, curve, distribution, fan, leaderboard, roofline, stack, timeline
from rigdyno.report.drawing.draw import draw_png, draw_svg, finish_svg, make_specification
from rigdyno.report.drawing.style import COLOURS
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>\x00\x1b\x07\ud800\uffff\" onload='x' &amp; :car: [red] ${1+1} {{x}}\n<b>"


def layers(spec):
    """Return all single charts of a specification."""
    inner = spec.get("vconcat") or spec.get("layer")
    return [each for part in inner for each in layers(part)] if inner else [spec]


def rows_of(layer):
    return json.loads(layer["data"]["values"])


def marks(figure, kind):
    return [layer for layer in layers(make_specification(figure)) if layer["mark"]["type"] == kind]


def with_series(figure, *series):
    (panel, *_) = figure.panels
    return replace(figure, panels=(replace(panel, series=tuple(series)),))


def measured(*data, **changes):
    return Series(**{"name": "this machine", "role": "measured", "data": data, **changes})


@pytest.mark.parametrize("figure", [bars(), leaderboard(), distribution(), stack()], ids=lambda each: each.kind)
def test_the_axis_of_bars_includes_zero(figure):
    (drawn,) = marks(figure, "bar")
    along = "y" if figure.kind == "distribution" else "x"
    assert drawn["encoding"][along]["scale"]["zero"] is True
    assert drawn["encoding"][along]["scale"].get("type") != "log"
    assert "domain" not in drawn["encoding"][along]["scale"]
    if figure.kind == "stack":
        assert {row["start"] for row in rows_of(drawn) if row["series"] == "data"} == {0.0}
    else:
        assert drawn["encoding"][f"{along}2"]["datum"] == 0


def test_a_log_axis_shows_dots_instead_of_bars():
    figure = bars(log=True)
    assert not marks(figure, "bar")
    (dots,) = marks(figure, "point")
    assert dots["encoding"]["x"]["scale"]["type"] == "log"
    assert [layer["mark"]["type"] for layer in layers(make_specification(figure))].count("tick") == 2


@pytest.mark.parametrize("values", [(0.0, 1000.0), (-5.0, 1000.0)])
def test_an_axis_with_values_up_to_zero_is_never_logarithmic(values):
    figure = with_series(bars(), measured(*(datum(f"n{i}", value) for i, value in enumerate(values))))
    assert marks(figure, "bar")


@pytest.mark.parametrize("figure", [curve(), timeline()], ids=lambda each: each.kind)
def test_no_line_crosses_a_gap(figure):
    (line, *_) = marks(figure, "line")
    assert line["encoding"]["detail"]["field"] == "segment"
    rows = [row for row in rows_of(line) if row["series"] in ("this machine", "rate")]
    segments = dict.fromkeys(row["segment"] for row in rows)
    assert len(segments) == 2
    first, second = ([row["x"] for row in rows if row["segment"] == segment] for segment in segments)
    (gap, *_) = [each.x for each in next(figure.series).data if each.value is None]
    assert max(first) < gap < min(second)
    path = ElementTree.fromstring(draw_svg(figure))
    moves = [
        each.get("d") for each in path.iter(f"{SVG}path") if each.get("stroke-width") == "2" and "L" in each.get("d")
    ]
    assert len(moves) >= 2  # each segment is a separate path


@pytest.mark.parametrize("key", EVERY)
def test_every_interval_is_drawn(key):
    figure = EVERY[key]
    expected = sum(each.interval is not None for series in figure.series for each in series.data)
    drawn = sum(len(rows_of(rule)) for rule in marks(figure, "rule") if "low" in str(rule["encoding"]))
    drawn += sum(len(rows_of(area)) for area in marks(figure, "area"))
    assert drawn == expected


def find_looks(figure):
    """Return the look of each series by name: the fill of its bars, or the style of its points and lines."""
    found = {}
    for layer in layers(make_specification(figure)):
        for channel in ("fill", "shape", "strokeDash"):
            scale = _scale(layer["encoding"].get(channel, {}))
            for name, value in zip(scale.get("domain", ()), scale.get("range", ()), strict=True):
                found.setdefault(name, {})[channel] = str(value)
    return found


def _scale(channel):
    return channel.get("scale") or {}


@pytest.mark.parametrize(
    "figure", [bars(), bars(log=True), leaderboard(), curve(), fan(), roofline()], ids=lambda f: f.key
)
@pytest.mark.parametrize("verdict", [None, "INVALID"])
def test_other_roles_look_different_from_measured_ones(figure, verdict):
    """They differ in more than colour: stripes, a hollow mark of another shape, or dashes."""
    look = find_looks(replace(figure, verdict=verdict))
    own = [name for name in look if name in ("this machine", "measured here", "workloads", "measured")]
    others = set(look) - set(own)
    assert own
    assert others
    for other in others:
        if "shape" in look[other]:
            assert look[other]["shape"] != look[own[0]]["shape"]
            assert look[other]["fill"] == COLOURS["paper"][0] != look[own[0]]["fill"]
        else:
            assert look[other]["fill"].startswith("url(#hatched-")
            assert not look[own[0]]["fill"].startswith("url(")


@pytest.mark.parametrize("key", EVERY)
def test_axes_name_their_quantity_and_unit(key):
    titles = [
        axis["title"]
        for layer in layers(make_specification(EVERY[key]))
        for channel in ("x", "y")
        if (axis := layer["encoding"].get(channel, {}).get("axis")) and axis.get("title")
    ]
    for panel in EVERY[key].panels:
        assert any(title.startswith(panel.y.quantity) for title in titles)
        assert any(title.endswith(f"{panel.y.unit})") for title in titles) or not panel.y.unit


@pytest.mark.parametrize(("key", "verdict"), [*((key, "SUSPECT") for key in EVERY), ("bars", "INVALID")])
def test_a_doubtful_figure_has_its_verdict_across_it(key, verdict):
    svg = draw_svg(replace(EVERY[key], verdict=verdict, reasons=("throttled",)))
    words = [each for each in ElementTree.fromstring(svg).iter(f"{SVG}text") if each.text == verdict]
    assert any(each.get("font-size") == "54px" for each in words)
    assert f"Verdict: {verdict} (throttled)" in svg
    blue = COLOURS["blue"][0]
    assert blue not in svg or EVERY[key].kind == "roofline"


def test_a_doubtful_value_among_others_is_marked_alone():
    svg = draw_svg(bars())
    assert "54px" not in svg
    assert "1.80 SUSPECT" in svg
    assert 'fill="url(#bars-hatched-doubtful)"' in svg


def test_values_that_are_all_doubtful_are_stamped_once():
    figure = with_series(curve(), measured(*(Datum(x=n, value=float(n), verdict="SUSPECT") for n in (1, 2, 4))))
    texts = [each.text for each in ElementTree.fromstring(draw_svg(figure)).iter(f"{SVG}text")]
    assert texts.count("SUSPECT") == 1


def test_doubts_about_values_are_not_stamped_on_published_ones():
    doubtful = measured(*(Datum(x=n, value=float(n), verdict="SUSPECT") for n in (1, 2, 4)))
    theirs = Series(name="theirs", role="published", data=(Datum(x=1, value=1.0), Datum(x=4, value=3.0)))
    svg = draw_svg(with_series(curve(), doubtful, theirs))
    texts = [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert "54px" not in svg
    assert texts.count("SUSPECT") == 3


@pytest.mark.parametrize("key", EVERY)
def test_the_caption_states_n_and_the_verdicts(key):
    figure = EVERY[key]
    words = " ".join(make_specification(figure)["title"]["subtitle"])
    assert figure.described() in words
    assert ("n = " in words) == any(each.n is not None for series in figure.series for each in series.data)
    assert "subtitle" not in make_specification(figure, captioned=False)["title"]


def make_hostile(figure):
    panels = tuple(
        replace(
            panel,
            title=HOSTILE,
            y=replace(panel.y, quantity=HOSTILE),
            series=tuple(
                replace(s, name=f"{HOSTILE}{i}", data=tuple(replace(d, note=HOSTILE, label=HOSTILE) for d in s.data))
                for i, s in enumerate(panel.series)
            ),
        )
        for panel in figure.panels
    )
    return replace(
        figure, title=HOSTILE, caption=HOSTILE, reasons=(HOSTILE,), notes=(HOSTILE,), panels=panels,
        events=tuple(replace(each, label=HOSTILE) for each in figure.events),
        periods=tuple(replace(each, name=HOSTILE) for each in figure.periods),
    )  # fmt: skip


@pytest.mark.parametrize("key", EVERY)
def test_hostile_text_stays_text(key):
    """The renderer would abort the process at a character that XML forbids."""
    root = ElementTree.fromstring(draw_svg(make_hostile(EVERY[key])))
    allowed = {"svg", "g", "path", "line", "text", "rect", "defs", "pattern", "title", "desc", "clipPath", "tspan"}
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= allowed
    attributes = {name for each in root.iter() for name in each.attrib}
    assert not {name for name in attributes if name.startswith("on") or "href" in name or name == "style"}
    assert any("<script>" in (each.text or "") for each in root.iter())


@pytest.mark.parametrize(("key", "theme"), [*itertools.product(EVERY, ["dark", "page"]), ("bars", "light")])
def test_a_drawing_is_self_contained(key, theme):
    svg = draw_svg(EVERY[key], theme=theme)
    assert not re.search(r"<script|<style|<image|href|@import|https?://(?!www\.w3\.org)", svg)
    root = ElementTree.fromstring(svg)
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    assert all(each.startswith(f"{key}-") for each in ids)
    assert set(re.findall(r"url\(#([^)]*)\)", svg)) <= set(ids)
    assert root.find(f"{SVG}title").text == EVERY[key].title
    assert root.find(f"{SVG}desc").text == EVERY[key].described()
    paints = {each.get(name) for each in root.iter() for name in ("fill", "stroke")} - {None, "none"}
    known = {f"var(--figure-{name}, {light})" for name, (light, _) in COLOURS.items()}
    if theme == "page":
        assert {each for each in paints if not each.startswith("url(")} <= known
    if theme == "dark":
        assert not {light for light, dark in COLOURS.values()} & paints


def test_a_tooltip_has_value_interval_and_n():
    said = [
        each.get("aria-label")
        for each in ElementTree.fromstring(draw_svg(bars())).iter()
        if each.get("class") == "datum"
    ]
    assert "add, as published, this machine: 30.6 it/s; 95 % interval 29.1 it/s to 32.1 it/s; n = 120; VALID" in said
    assert "add, corrected, RTX 3090 (published): 21.0 it/s" in said
    assert any(each.endswith("SUSPECT; other tenants") for each in said)


EMPTY = {key: replace(f, panels=tuple(replace(p, series=()) for p in f.panels)) for key, f in EVERY.items()}
GAPS = {
    key: replace(
        f,
        panels=tuple(
            replace(p, series=tuple(replace(s, data=tuple(Datum(x=d.x, value=None) for d in s.data)) for s in p.series))
            for p in f.panels
        ),
    )
    for key, f in EVERY.items()
}


@pytest.mark.parametrize("figures", [EMPTY, GAPS], ids=["no series", "gaps alone"])
@pytest.mark.parametrize("key", EVERY)
def test_a_figure_without_values_is_an_empty_chart(figures, key):
    assert draw_svg(figures[key]).startswith("<svg")


@pytest.mark.parametrize(
    ("key", "value"), [*itertools.product(EVERY, [1e-300, -1e12]), *itertools.product(["bars", "curve"], [0.0, 1e300])]
)
def test_a_single_value_of_any_size_is_drawn(key, value):
    (panel, *_) = EVERY[key].panels
    first = next(each for each in panel.series[0].data if each.value is not None)
    alone = replace(first, value=value, low=None, high=None, confidence=None)
    assert draw_svg(with_series(EVERY[key], replace(panel.series[0], data=(alone,)))).startswith("<svg")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_a_number_is_a_gap(bad):
    assert datum(1.0, bad).value is None
    with pytest.raises(ValueError, match="finite"):
        Datum(x=1.0, value=bad)
    with pytest.raises(ValueError, match="finite"):
        Datum(x=bad, value=1.0)


@pytest.mark.parametrize("key", ["", "../x", "a/b", "A", "x" * 81, "a\n", ".hidden"])
def test_a_key_that_is_no_file_name_is_rejected(key):
    with pytest.raises(ValueError, match="key"):
        Figure(key=key, kind="bars", title="t", x=Axis(quantity="x"), panels=())


def test_of_ten_thousand_bars_few_are_drawn_with_a_note():
    many = tuple(datum(f"cell {i}", float(i + 1)) for i in range(10_000))
    figure = replace(
        with_series(bars(), measured(*many)),
        panels=(Panel(y=Axis(quantity="rate", scale="linear"), series=(measured(*many),)),),
    )
    svg = draw_svg(figure)
    assert len(svg) < 60_000
    assert "and 9,940 more that are not drawn" in svg


def test_bars_of_the_same_name_do_not_cover_each_other():
    svg = draw_svg(with_series(bars(), measured(datum("same", 1.0), datum("same", 2.0))))
    assert "same (2)" in svg


def test_a_png_has_its_signature_and_many_pixels():
    image = draw_png(bars(), dark=True)
    assert image.startswith(b"\x89PNG\r\n")
    width, height = (int.from_bytes(image[at : at + 4], "big") for at in (16, 20))
    assert width > 1000
    assert height > 300


def test_grid_lines_are_one_path_and_empty_groups_are_removed():
    root = ElementTree.fromstring(draw_svg(curve()))
    assert list(root.iter(f"{SVG}line")) == []
    strokes = [
        each.get("d")
        for each in root.iter(f"{SVG}path")
        if re.fullmatch(r"(M[^a-zA-Z]+l[^a-zA-Z]+){3,}", each.get("d"))
    ]
    assert len(strokes) >= 4  # two grids, two rows of ticks
    assert [each for each in root.iter(f"{SVG}g") if not each.attrib] == []


@pytest.mark.parametrize(
    ("lines", "paths"),
    [
        (
            '<line x2="5" y2="0" stroke="red"/><line transform="translate(1,2)" x2="5" y2="0" stroke="red"/>',
            ["M0,0l5,0M1,2l5,0"],
        ),
        ('<line x2="5" y2="0" stroke="red"/><line x2="0" y2="7" stroke="blue"/>', ["M0,0l5,0", "M0,0l0,7"]),
        ('<line x2="5" stroke="red"/><text>a</text><line x2="5" stroke="red"/>', ["M0,0l5,0", "M0,0l5,0"]),
        ('<line x1="1" x2="5" stroke="red"/><line transform="rotate(3)" x2="5" stroke="red"/>', []),
    ],
)
def test_only_adjacent_lines_that_look_alike_are_joined(lines, paths):
    raw = f'<svg xmlns="http://www.w3.org/2000/svg"><g><g>{lines}</g></g></svg>'
    root = ElementTree.fromstring(finish_svg(raw, curve(), "light"))
    assert [each.get("d") for each in root.iter(f"{SVG}path")] == paths
    assert len(list(root.iter(f"{SVG}line"))) == (0 if paths else 2)


def test_a_bar_of_no_height_is_neither_drawn_nor_described():
    panel = distribution().panels[0]
    empty = replace(panel.series[0].data[0], value=0.0)
    figure = with_series(distribution(), replace(panel.series[0], data=(empty, *panel.series[0].data[1:])))
    [rows] = [rows_of(layer) for layer in marks(figure, "bar")]
    assert len(rows) == sum(datum.value > 0 for datum in panel.series[0].data) - 1
