"""What every drawing keeps to: zero in bars, open gaps, intervals, roles told apart, units, verdicts, and no markup."""

import itertools
import json
import re
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from figures_of_every_kind import EVERY, bars, curve, distribution, fan, leaderboard, roofline, stack, timeline
from rigdyno.report.drawing import png_of, specification, svg_of
from rigdyno.report.figures._style import NAMED
from rigdyno.report.figures._svg import finished_svg
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>\x00\x1b\x07\ud800\uffff\" onload='x' &amp; :car: [red] ${1+1} {{x}}\n<b>"


def layers(spec):
    """Every single chart of it."""
    inner = spec.get("vconcat") or spec.get("layer")
    return [each for part in inner for each in layers(part)] if inner else [spec]


def rows_of(layer):
    return json.loads(layer["data"]["values"])


def marks(figure, kind):
    return [layer for layer in layers(specification(figure)) if layer["mark"]["type"] == kind]


def with_series(figure, *series):
    (panel, *_) = figure.panels
    return replace(figure, panels=(replace(panel, series=tuple(series)),))


def measured(*data, **changes):
    return Series(**{"name": "this rig", "role": "measured", "data": data, **changes})


@pytest.mark.parametrize("figure", [bars(), leaderboard(), distribution(), stack()], ids=lambda each: each.kind)
def test_every_bar_has_zero_in_its_axis(figure):
    (drawn,) = marks(figure, "bar")
    along = "y" if figure.kind == "distribution" else "x"
    assert drawn["encoding"][along]["scale"]["zero"] is True
    assert drawn["encoding"][along]["scale"].get("type") != "log"
    assert "domain" not in drawn["encoding"][along]["scale"]
    if figure.kind == "stack":
        assert {row["start"] for row in rows_of(drawn) if row["series"] == "data"} == {0.0}
    else:
        assert drawn["encoding"][f"{along}2"]["datum"] == 0


def test_a_log_axis_has_dots_and_no_bars():
    figure = bars(log=True)
    assert not marks(figure, "bar")
    (dots,) = marks(figure, "point")
    assert dots["encoding"]["x"]["scale"]["type"] == "log"
    assert [layer["mark"]["type"] for layer in layers(specification(figure))].count("tick") == 2


@pytest.mark.parametrize("values", [(0.0, 1000.0), (-5.0, 1000.0)])
def test_a_log_axis_is_never_taken_where_a_value_has_no_place_on_it(values):
    figure = with_series(bars(), measured(*(datum(f"n{i}", value) for i, value in enumerate(values))))
    assert marks(figure, "bar")


@pytest.mark.parametrize("figure", [curve(), timeline()], ids=lambda each: each.kind)
def test_no_line_crosses_a_gap(figure):
    (line, *_) = marks(figure, "line")
    assert line["encoding"]["detail"]["field"] == "segment"
    rows = [row for row in rows_of(line) if row["series"] in ("this rig", "rate")]
    segments = dict.fromkeys(row["segment"] for row in rows)
    assert len(segments) == 2
    first, second = ([row["x"] for row in rows if row["segment"] == segment] for segment in segments)
    (gap, *_) = [each.x for each in next(figure.series).data if each.value is None]
    assert max(first) < gap < min(second)
    path = ElementTree.fromstring(svg_of(figure))
    moves = [
        each.get("d") for each in path.iter(f"{SVG}path") if each.get("stroke-width") == "2" and "L" in each.get("d")
    ]
    assert len(moves) >= 2  # each segment is a path of its own


@pytest.mark.parametrize("key", EVERY)
def test_every_interval_is_drawn(key):
    figure = EVERY[key]
    expected = sum(each.interval is not None for series in figure.series for each in series.data)
    drawn = sum(len(rows_of(rule)) for rule in marks(figure, "rule") if "low" in str(rule["encoding"]))
    drawn += sum(len(rows_of(area)) for area in marks(figure, "area"))
    assert drawn == expected


def looks(figure):
    """By the name of each series: what its bars are filled with, or its points and lines look like."""
    found = {}
    for layer in layers(specification(figure)):
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
def test_what_is_not_measured_never_looks_as_if_it_were(figure, verdict):
    """Apart in more than colour: stripes, a hollow mark of another shape, or dashes."""
    look = looks(replace(figure, verdict=verdict))
    own = [name for name in look if name in ("this rig", "measured here", "workloads", "measured")]
    others = set(look) - set(own)
    assert own
    assert others
    for other in others:
        if "shape" in look[other]:
            assert look[other]["shape"] != look[own[0]]["shape"]
            assert look[other]["fill"] == NAMED["paper"][0] != look[own[0]]["fill"]
        else:
            assert look[other]["fill"].startswith("url(#hatched-")
            assert not look[own[0]]["fill"].startswith("url(")


@pytest.mark.parametrize("key", EVERY)
def test_axes_name_their_quantity_and_unit(key):
    titles = [
        axis["title"]
        for layer in layers(specification(EVERY[key]))
        for channel in ("x", "y")
        if (axis := layer["encoding"].get(channel, {}).get("axis")) and axis.get("title")
    ]
    for panel in EVERY[key].panels:
        assert any(title.startswith(panel.y.quantity) for title in titles)
        assert any(title.endswith(f"{panel.y.unit})") for title in titles) or not panel.y.unit


@pytest.mark.parametrize(("key", "verdict"), [*((key, "SUSPECT") for key in EVERY), ("bars", "INVALID")])
def test_a_doubtful_figure_has_the_word_on_it(key, verdict):
    svg = svg_of(replace(EVERY[key], verdict=verdict, reasons=("throttled",)))
    words = [each for each in ElementTree.fromstring(svg).iter(f"{SVG}text") if each.text == verdict]
    assert any(each.get("font-size") == "54px" for each in words)
    assert f"Verdict: {verdict} (throttled)" in svg
    blue = NAMED["blue"][0]
    assert blue not in svg or EVERY[key].kind == "roofline"


def test_a_doubtful_value_among_others_is_marked_alone():
    svg = svg_of(bars())
    assert "54px" not in svg
    assert "1.80 SUSPECT" in svg
    assert 'fill="url(#bars-hatched-doubtful)"' in svg


def test_values_that_are_all_doubtful_are_stamped_once():
    figure = with_series(curve(), measured(*(Datum(x=n, value=float(n), verdict="SUSPECT") for n in (1, 2, 4))))
    texts = [each.text for each in ElementTree.fromstring(svg_of(figure)).iter(f"{SVG}text")]
    assert texts.count("SUSPECT") == 1


def test_doubts_about_values_are_not_stamped_on_published_ones():
    doubtful = measured(*(Datum(x=n, value=float(n), verdict="SUSPECT") for n in (1, 2, 4)))
    theirs = Series(name="theirs", role="published", data=(Datum(x=1, value=1.0), Datum(x=4, value=3.0)))
    svg = svg_of(with_series(curve(), doubtful, theirs))
    texts = [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert "54px" not in svg
    assert texts.count("SUSPECT") == 3


@pytest.mark.parametrize("key", EVERY)
def test_the_caption_has_n_and_the_verdicts(key):
    figure = EVERY[key]
    words = " ".join(specification(figure)["title"]["subtitle"])
    assert figure.described() in words
    assert ("n = " in words) == any(each.n is not None for series in figure.series for each in series.data)
    assert "subtitle" not in specification(figure, captioned=False)["title"]


def hostile(figure):
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
    """The renderer itself ends the process at a character that XML doesn't know."""
    root = ElementTree.fromstring(svg_of(hostile(EVERY[key])))
    allowed = {"svg", "g", "path", "line", "text", "rect", "defs", "pattern", "title", "desc", "clipPath", "tspan"}
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= allowed
    attributes = {name for each in root.iter() for name in each.attrib}
    assert not {name for name in attributes if name.startswith("on") or "href" in name or name == "style"}
    assert any("<script>" in (each.text or "") for each in root.iter())


@pytest.mark.parametrize(("key", "theme"), [*itertools.product(EVERY, ["dark", "page"]), ("bars", "light")])
def test_a_picture_stands_on_its_own(key, theme):
    svg = svg_of(EVERY[key], theme=theme)
    assert not re.search(r"<script|<style|<image|href|@import|https?://(?!www\.w3\.org)", svg)
    root = ElementTree.fromstring(svg)
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    assert all(each.startswith(f"{key}-") for each in ids)
    assert set(re.findall(r"url\(#([^)]*)\)", svg)) <= set(ids)
    assert root.find(f"{SVG}title").text == EVERY[key].title
    assert root.find(f"{SVG}desc").text == EVERY[key].described()
    paints = {each.get(name) for each in root.iter() for name in ("fill", "stroke")} - {None, "none"}
    known = {f"var(--figure-{name}, {light})" for name, (light, _) in NAMED.items()}
    if theme == "page":
        assert {each for each in paints if not each.startswith("url(")} <= known
    if theme == "dark":
        assert not {light for light, dark in NAMED.values()} & paints


def test_what_hovering_shows_has_value_interval_and_n():
    said = [
        each.get("aria-label") for each in ElementTree.fromstring(svg_of(bars())).iter() if each.get("class") == "datum"
    ]
    assert "add, as published, this rig: 30.6 it/s; 95 % interval 29.1 it/s to 32.1 it/s; n = 120; VALID" in said
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
def test_nothing_to_draw_is_an_empty_chart(figures, key):
    assert svg_of(figures[key]).startswith("<svg")


@pytest.mark.parametrize(
    ("key", "value"), [*itertools.product(EVERY, [1e-300, -1e12]), *itertools.product(["bars", "curve"], [0.0, 1e300])]
)
def test_one_value_of_any_size(key, value):
    (panel, *_) = EVERY[key].panels
    first = next(each for each in panel.series[0].data if each.value is not None)
    alone = replace(first, value=value, low=None, high=None, confidence=None)
    assert svg_of(with_series(EVERY[key], replace(panel.series[0], data=(alone,)))).startswith("<svg")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_a_gap(bad):
    assert datum(1.0, bad).value is None
    with pytest.raises(ValueError, match="finite"):
        Datum(x=1.0, value=bad)
    with pytest.raises(ValueError, match="finite"):
        Datum(x=bad, value=1.0)


@pytest.mark.parametrize("key", ["", "../x", "a/b", "A", "x" * 81, "a\n", ".hidden"])
def test_a_key_is_the_name_of_a_file_and_nothing_else(key):
    with pytest.raises(ValueError, match="key"):
        Figure(key=key, kind="bars", title="t", x=Axis(quantity="x"), panels=())


def test_ten_thousand_bars_are_few_and_say_so():
    many = tuple(datum(f"cell {i}", float(i + 1)) for i in range(10_000))
    figure = replace(
        with_series(bars(), measured(*many)),
        panels=(Panel(y=Axis(quantity="rate", scale="linear"), series=(measured(*many),)),),
    )
    svg = svg_of(figure)
    assert len(svg) < 60_000
    assert "and 9,940 more that are not drawn" in svg


def test_bars_of_one_name_do_not_cover_each_other():
    svg = svg_of(with_series(bars(), measured(datum("same", 1.0), datum("same", 2.0))))
    assert "same (2)" in svg


def test_a_png_is_one():
    image = png_of(bars(), dark=True)
    assert image.startswith(b"\x89PNG\r\n")
    width, height = (int.from_bytes(image[at : at + 4], "big") for at in (16, 20))
    assert width > 1000
    assert height > 300


def test_lines_of_a_grid_are_one_path_and_groups_that_say_nothing_are_gone():
    root = ElementTree.fromstring(svg_of(curve()))
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
def test_only_lines_that_look_alike_and_stand_together_are_joined(lines, paths):
    raw = f'<svg xmlns="http://www.w3.org/2000/svg"><g><g>{lines}</g></g></svg>'
    root = ElementTree.fromstring(finished_svg(raw, curve(), "light"))
    assert [each.get("d") for each in root.iter(f"{SVG}path")] == paths
    assert len(list(root.iter(f"{SVG}line"))) == (0 if paths else 2)


def test_a_bar_of_no_height_is_neither_drawn_nor_read_out():
    panel = distribution().panels[0]
    empty = replace(panel.series[0].data[0], value=0.0)
    figure = with_series(distribution(), replace(panel.series[0], data=(empty, *panel.series[0].data[1:])))
    [rows] = [rows_of(layer) for layer in marks(figure, "bar")]
    assert len(rows) == sum(datum.value > 0 for datum in panel.series[0].data) - 1
