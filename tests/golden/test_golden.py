"""The text of every report format."""

import csv
import io
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from golden_files import HOW_TO_UPDATE, UPDATE, check_golden, declare

from reading_pages import without_code
from rigdyno import api, catalogue
from rigdyno.report.text import Page
from rigdyno.schema.estimate import Estimate, Missing, Number, Reason, Validity
from rigdyno.schema.figure import Axis, Datum, Event, Figure, Panel, Period, Series
from rigdyno.schema.metric import BANDWIDTH, LIMIT_SHARE, THROUGHPUT, Metric
from rigdyno.schema.view import Column, Published, RatioEntry, Row, Table, Text, View
from support import a_stored_run

SCHEMA = Path(__file__).parents[2] / "docs" / "view.schema.json"
FORMATS = catalogue.names("format")


def a_rate(value, low, high, unit, n=120):
    confidence = None if low is None else 0.95
    method = "sum over sum, by hand"
    return Estimate(value=value, low=low, high=high, confidence=confidence, n=n, unit=unit, method=method)


def a_time_line(label):
    """Return a timeline with a gap in the middle, all fields of a value, and a hostile label."""
    rates = (
        Datum(x=1.0, value=3e11),
        Datum(x=31.0, value=2e11, low=1.9e11, high=2.1e11, confidence=0.95, n=12, verdict="SUSPECT", note=label),
        Datum(x=41.0, value=None, note="not read"),
        Datum(x=61.0, value=5.5e10),
    )
    return Figure(
        key="rate-over-time",
        kind="timeline",
        title="rate over time",
        x=Axis(quantity="time", unit="s", along="time"),
        panels=(Panel(y=Axis(quantity="rate", unit="B/s"), series=(Series(name=label, role="measured", data=rates),)),),
        events=(Event(x=20.0, label="steady from here", kind="warm_up_cut"),),
        periods=(Period(name="warm-up", start=0.0, end=20.0),),
        caption="How the rate held",
        verdict="SUSPECT",
        reasons=("throttled",),
    )


def every_entry():
    """Return a view with each kind of entry and each outcome of a row; a hostile label tries to break out."""
    columns = (
        Column(key="what", title="what", numeric=False),
        Column(key="rate", title="rate", metric=THROUGHPUT),
        Column(key="moved", title="moved", metric=BANDWIDTH),
        Column(key="share", title="of limit", metric=LIMIT_SHARE),
        Column(key="watts", title="W per card", metric=Metric(name="power", unit="W", better="lower"), bare=True),
    )
    label = "a | b <b>\\[red]\n:car: ünï"
    rows = (
        Row(
            status="VALID",
            entries={
                "what": Text(text="as published"), "rate": a_rate(30.61, 30.2, 31.0, "it/s"),
                "moved": a_rate(36.98e9, 36.5e9, 37.4e9, "B/s"), "watts": Number(value=12.5, unit="W"),
                "share": RatioEntry(value=0.924, low=0.9, high=0.95, of="memory bandwidth"),
            },
        ),
        Row(status="SUSPECT", entries={"what": Text(text=label), "rate": a_rate(0.000_004, 2e-6, 5e-6, "s/launch")}),
        Row(status="INVALID", entries={"what": Text(text="one value"), "rate": a_rate(5, None, None, "it/s", n=1)}),
        Row(
            status="FAILED",
            entries={"what": Text(text="crashed"), "rate": Missing(reason="SIGILL: no such instruction")},
        ),
        Row(
            status="SKIPPED",
            entries={"what": Text(text="not here"), "rate": Missing(reason="needs 12.0 TB of memory")},
            notes=("size=5000 would fit",),
        ),
        Row(
            origin="published",
            entries={
                "what": Text(text="NVIDIA RTX 3060"),
                "rate": Published(value=320, unit="it/s", source="somewhere"),
                "moved": Published(value=386.55e9, unit="B/s", source="somewhere"),
            },
            notes=("moves 387 GB/s, more than the 360 GB/s of this memory",),
        ),
    )  # fmt: skip
    return View(
        title="Everything <at> once",
        rigs=(f"{label}: Test CPU, 2 cores",),
        tables=(Table(title="All | kinds", columns=columns, rows=rows, notes=("a note of the table",)),),
        figures=(a_time_line(label),),
        validity=Validity(
            verdict="INVALID", reasons=(Reason(code="throttled", sentence="fell to 18 % (as published)"),)
        ),
        standing=("Number 3 of 5.",),
        closing=("What it says, computed.",),
        warnings=("skipped: runs/x/record.json is missing",),
        saved_in=("runs/test.20260102-030405",),
        next_commands=("rigdyno show runs/test.20260102-030405",),
    )  # fmt: skip


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda **arguments: api.load(a_stored_run(Path("runs"), **arguments)).view()


VIEWS = ("every_entry", "stored_run", "stored_device_run")


@pytest.fixture
def view_named(stored):
    def made(name):
        if name == "every_entry":
            return every_entry()
        return stored() if name == "stored_run" else stored(suite="device", label="my box")

    return made


# Figures of stored samples differ in their last digits between processors: only formats that round them are literal.
LITERAL = [("every_entry", form) for form in FORMATS]
LITERAL += [(name, form) for name in VIEWS[1:] for form in ("terminal", "markdown")]
declare(f"{name}.{form}.txt" for name, form in LITERAL)


@pytest.mark.usefixtures("without_drawing")  # test_golden_figures.py compares the drawings
@pytest.mark.parametrize(("name", "form"), LITERAL)
def test_view_is_unchanged_in_every_format(view_named, name, form):
    text = catalogue.load("format", form)(view_named(name), Page(width=80))
    assert text.endswith("\n")
    assert "\x1b" not in text
    if form == "terminal":
        assert max(map(len, text.splitlines())) <= 80
    if form == "html":
        text = without_code(text)
    check_golden(f"{name}.{form}.txt", text)


def test_the_schema_is_up_to_date():
    document = msgspec.json.schema(View)
    text = json.dumps(document, indent=2) + "\n"
    if UPDATE:
        SCHEMA.write_text(text, encoding="utf-8")
    assert text == SCHEMA.read_text(encoding="utf-8"), HOW_TO_UPDATE
    jsonschema.Draft202012Validator.check_schema(document)


@pytest.mark.parametrize("name", VIEWS)
def test_json_matches_its_schema_and_is_read_back(view_named, name):
    view = view_named(name)
    text = catalogue.load("format", "json")(view, Page())
    jsonschema.validate(json.loads(text), json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert msgspec.json.decode(text, type=View) == view


def test_csv_is_read_back_with_every_figure():
    text = catalogue.load("format", "csv")(every_entry(), Page())
    lines = list(csv.DictReader(io.StringIO(text)))
    by_place = {(line["row"], line["figure"]): line for line in lines}
    rate = by_place["as published", "rate"]
    assert [float(rate[name]) for name in ("value", "low", "high", "confidence")] == [30.61, 30.2, 31.0, 0.95]
    assert (rate["unit"], rate["n"], rate["status"], rate["origin"]) == ("it/s", "120", "VALID", "measured")
    assert by_place["as published", "share"]["unit"] == "of memory bandwidth"
    assert by_place["a | b <b>\\[red]\n:car: ünï", "rate"]["value"] == "4e-06"
    assert by_place["crashed", "rate"]["reason"] == "SIGILL: no such instruction"
    assert by_place["not here", "rate"]["status"] == "SKIPPED"
    assert by_place["NVIDIA RTX 3060", "rate"]["method"] == "published: somewhere"
    one = by_place["one value", "rate"]
    assert [one[name] for name in ("value", "low", "high", "confidence", "n")] == ["5", "", "", "", "1"]
    watts = by_place["as published", "watts"]
    assert (watts["value"], watts["unit"]) == ("12.5", "W")
    assert len(lines) == 10


def test_a_csv_line_has_every_identifying_column_of_its_row():
    """Rows that agree in the first column still have different names."""
    columns = (
        Column(key="nodes", title="nodes", identifies=True),
        Column(key="ranks", title="ranks", identifies=True),
        Column(key="rate", title="rate", metric=THROUGHPUT),
    )
    rows = tuple(
        Row(
            entries={"nodes": Number(value=1), "ranks": Number(value=ranks), "rate": a_rate(5, 4, 6, "it/s")},
            notes=("measured in run 7",),
        )
        for ranks in (1, 2)
    )
    view = View(title="", tables=(Table(title="t", columns=columns, rows=rows),))
    lines = list(csv.DictReader(io.StringIO(catalogue.load("format", "csv")(view, Page()))))
    assert [line["row"] for line in lines] == ["nodes 1, ranks 1", "nodes 1, ranks 2"]
    assert {line["notes"] for line in lines} == {"measured in run 7"}


def test_markdown_escapes_labels():
    text = catalogue.load("format", "markdown")(every_entry(), Page())
    table = [line for line in text.splitlines() if line.startswith("|")]
    bars = {line.replace("\\\\", "").replace("\\|", "").count("|") for line in table}
    assert bars == {7}
    assert len(table) == 2 + 6
    assert "<" not in text
    assert "a \\| b &lt;b>\\\\[red] :car: ünï" in text


def test_colour_is_used_only_on_request():
    render = catalogue.load("format", "terminal")
    assert "\x1b[" in render(every_entry(), Page(width=80, colour=True))
    assert ":car:" in render(every_entry(), Page(width=120))
