"""Test the HTML page: its content and order, and that no text of a run folder becomes markup."""

import base64
import hashlib
import re

import pytest

from hostile_run import PAYLOADS, hostile_run
from reading_pages import read
from rigdyno import api
from rigdyno.commands.common.page import Material, page_text
from rigdyno.report.formats.html import render
from rigdyno.report.html.markup import spell_invisible
from rigdyno.report.html.tables import MOST_NOTES, MOST_ROWS, render_table
from rigdyno.report.text import Page
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.metric import STEP_TIME, THROUGHPUT
from rigdyno.schema.view import Column, Published, RatioEntry, Row, Table, Text, View
from stored_duels import stored_duel
from stored_runs import ADDING, stored_run
from support import a_stored_run

SCRIPT_BYTES = 20_000
pytestmark = pytest.mark.usefixtures("without_drawing")  # test_page_figures.py tests drawings


def render_page_of_run(*paths):
    return page_text([Material((api.load(path),)) for path in paths])


@pytest.fixture
def page(tmp_path):
    return read(render_page_of_run(a_stored_run(tmp_path, suite="device", label="my box")))


def list_headings(page):
    return [heading.text() for heading in page.all() if heading.name in ("h1", "h2")]


def test_the_answer_comes_first_and_then_the_evidence(page):
    assert list_headings(page) == [
        "device: tensor add, and the machine's own limits", "Tables", "Compared with published results",
        "How it was measured", "The machine", "Every raw file",
    ]  # fmt: skip
    answer = page.one("div", class_="answer")
    assert re.search(r"tensor add, as published\s+32\.8 it/s\s+\[32\.7, 32\.9\]\s+✓VALID", answer.text())


def test_how_it_was_measured_and_the_files_are_folded(page):
    folded = [details.one("summary").text() for details in page.all("details", class_="folded")]
    assert folded == ["How it was measured", "Every raw file"]
    assert not [details for details in page.all("details") if "open" in details.attributes]


def test_every_raw_file_is_listed_with_its_hash(tmp_path):
    path = a_stored_run(tmp_path)
    text = read(render_page_of_run(path)).text()
    for file in ("head.json", "cells/01-test/record.json", "cells/01-test/rank0/steps.rows"):
        assert file in text
        assert hashlib.sha256((path / file).read_bytes()).hexdigest() in text


def test_the_page_has_landmarks_captions_and_scopes(page):
    assert len(list(page.all("main"))) == 1
    assert len(list(page.all("h1"))) == 1
    assert page.one("html").attributes["lang"] == "en"
    for table in page.all("table"):
        assert table.one("caption").text()
        assert {cell.attributes["scope"] for cell in table.all("th")} == {"col", "row"}
        for row in table.one("tbody").all("tr"):
            assert next(row.all()).attributes["scope"] == "row"
    ids = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(set(ids)) == len(ids)
    targets = [link.attributes["href"].removeprefix("#") for link in page.all("a")]
    assert set(targets) <= set(ids)


def test_the_policy_allows_only_the_script_and_style_of_the_page(tmp_path):
    text = render_page_of_run(a_stored_run(tmp_path))
    page = read(text)
    policy = page.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for name in ("script", "style"):
        code = page.one(name).text()
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
        assert len(code.encode()) < SCRIPT_BYTES
    assert text.index("Content-Security-Policy") < text.index("<style")


@pytest.mark.parametrize("suite", [None, "device", "scaling"])
def test_no_text_of_a_run_folder_is_markup(tmp_path, suite):
    page = read(render_page_of_run(hostile_run(tmp_path, suite=suite)))
    assert len(list(page.all("script"))) == len(list(page.all("style"))) == 1
    known = {
        *("html", "head", "meta", "title", "style", "script", "body", "a", "main", "article", "header", "footer", "h1"),
        *("h2", "p", "div", "span", "strong", "b", "ul", "li", "section", "aside", "details", "summary", "code", "pre"),
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd"),
        *("figure", "figcaption", "svg"),
    }
    for element in page.all():
        assert element.name in known
        for name, value in element.attributes.items():
            assert not name.startswith("on")
            assert name not in ("style", "src")
            assert name != "href" or re.fullmatch(r"#[\w-]+", value)
    assert len(list(page.all("meta"))) == 6


def test_texts_of_a_run_folder_are_shown_as_text(tmp_path):
    page = read(render_page_of_run(hostile_run(tmp_path)))
    text = page.text()
    for words in PAYLOADS:
        assert spell_invisible(words) in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u2028\u2029\u202a-\u202e\u2066-\u2069]", text)


def test_a_view_without_a_run_has_neither_files_nor_machine():
    page = read(render(View(title="t", rigs=("a rig",), standing=("third",), closing=("it is fast",)), Page()))
    assert list_headings(page) == ["t", "Compared with published results"]
    assert "it is fast" in page.one("div", class_="answer").text()


def a_table(rows, **more):
    columns = (
        Column(key="what", title="what", numeric=False),
        Column(key="rate", title="rate", metric=THROUGHPUT),
        Column(key="step", title="step", metric=STEP_TIME),
        Column(key="note", title="note", numeric=False),
    )
    return Table(title="Rates", columns=columns, rows=tuple(rows), **more)


def an_estimate(value, unit="it/s", low=None, high=None):
    confidence = None if low is None else 0.95
    return Estimate(value=value, low=low, high=high, confidence=confidence, n=120, unit=unit, method="sum over sum")


def render_cells(*rows):
    block = read(render_table(a_table(rows), "rigdyno report RUN --format csv"))
    return [[cell for cell in row.all() if cell.name in ("td", "th")] for row in block.one("tbody").all("tr")]


def test_a_figure_shows_its_interval_and_has_a_full_tooltip():
    ((_, rate, *_),) = render_cells(
        Row(entries={"what": Text(text="a"), "rate": an_estimate(31.2, low=30.9, high=1_234.0)}, status="VALID")
    )
    assert rate.text() == "31.2 it/s [30.9, 1,234]"
    assert rate.attributes["data-tip"] == "31.2 it/s, 95 % interval 30.9 to 1,234, n = 120: sum over sum"
    assert rate.attributes["data-sort"] == "31.2"


def test_each_kind_of_entry_has_its_text_and_tooltip():
    ((_, rate, step, _, verdict),) = render_cells(
        Row(
            entries={
                "what": Text(text="a"),
                "rate": Published(value=320, unit="it/s", source="a page"),
                "step": Missing(reason="it crashed"),
            },
            origin="published",
        )
    )
    assert (rate.text(), rate.attributes["data-tip"]) == ("320 it/s", "published: a page")
    assert (step.text(), step.attributes["data-tip"]) == ("—", "it crashed")
    assert "data-sort" not in step.attributes
    assert verdict.text() == "published"
    ((_, rate, step, *_),) = render_cells(
        Row(
            entries={
                "rate": RatioEntry(value=0.92, low=0.9, high=0.95, of="peak"),
                "step": Number(value=0.01, unit="s"),
            }
        )
    )
    assert rate.attributes["data-tip"] == "92 % of peak, 90 % to 95 %"
    assert "data-tip" not in step.attributes


def test_brackets_in_a_text_are_not_an_interval():
    ((_, *_, note),) = render_cells(Row(entries={"what": Text(text="a"), "note": Text(text="a [b] c")}))
    assert note.text() == "a [b] c"
    assert not list(note.all("span"))


def test_figures_of_several_units_have_separate_sort_keys():
    mixed = render_cells(
        Row(entries={"what": Text(text="a"), "rate": an_estimate(2, "it/s")}),
        Row(entries={"what": Text(text="b"), "rate": an_estimate(3, "B/s")}),
    )
    assert [row[1].attributes["data-unit"] for row in mixed] == ["it/s", "B/s"]
    alike = render_cells(*(Row(entries={"what": Text(text=name), "rate": an_estimate(2)}) for name in "ab"))
    assert all("data-unit" not in row[1].attributes for row in alike)


def test_a_header_states_which_direction_is_better():
    block = read(render_table(a_table([Row(entries={"what": Text(text="a")})] * 2), "csv"))
    better = [header.attributes.get("data-better") for header in block.one("thead").all("th")]
    assert better == [None, "higher", "lower", None]
    assert "data-sortable" in block.one("table").attributes


def test_a_long_table_is_cut_and_names_the_command_for_all_rows():
    rows = [
        Row(entries={"what": Text(text=f"row {number}"), "rate": Missing(reason="r")}, status="FAILED")
        for number in range(MOST_ROWS)
    ]
    rows += [Row(entries={"what": Text(text=f"late {number}")}, status="VALID") for number in range(1_234)]
    block = read(render_table(a_table(rows), "rigdyno report RUN --format csv"))
    assert len(list(block.one("tbody").all("tr"))) == MOST_ROWS
    said = block.one("p", class_="cut").text()
    assert said == ("200 of 1,434 rows are shown; the others: 1,234 VALID. All rows: rigdyno report RUN --format csv")
    assert len(list(block.one("ul", class_="notes").all("li"))) == MOST_NOTES + 1


def test_reasons_are_listed_with_the_affected_steps(tmp_path):
    drifting = [round(1e7 * (1 + 0.0008 * number)) / 1e6 for number in range(3)]
    path = stored_run(tmp_path, "short", drifting)
    page = read(render_page_of_run(path))
    assert "Reasons behind the verdicts" not in list_headings(page)
    short = read(render_page_of_run(stored_run(tmp_path, "tiny", [0.001, 0.001])))
    (table,) = [each for each in short.all("table") if "doubted" in each.one("caption").text()]
    rows = [[cell.text() for cell in row.all() if cell.name in ("td", "th")] for row in table.one("tbody").all("tr")]
    assert rows[0][0] == "tensor_add variant=as_published"
    assert rows[0][2] == "too short"
    assert re.fullmatch(r"all \d+ together", rows[0][4])


def test_two_runs_are_shown_with_their_comparison(tmp_path):
    old = stored_run(tmp_path, "old", [20.0, 20.1, 19.9])
    new = stored_run(tmp_path, "new", [25.0, 25.1, 24.9])
    page = read(render_page_of_run(old, new))
    assert page.one("h1").text() == "2 runs side by side"
    assert [heading.text() for heading in page.all("h2")] == [
        "new.20260102-030405 compared with old.20260102-030405", "tensor_add", "tensor_add",
    ]  # fmt: skip
    comparison = next(each for each in page.all("article")).text()
    assert "slower" in comparison
    assert re.search(r"-20\.\d % \[-2\d\.\d, -1\d\.\d\]", comparison)
    links = [link.attributes["href"] for link in page.one("nav", class_="card").all("a")]
    assert links == ["#run1", "#run2"]


def test_runs_without_common_figures_are_not_compared(tmp_path):
    other = stored_run(tmp_path, "other", [20.0], spec=ADDING.__class__(workload="matmul_peak"))
    page = read(render_page_of_run(stored_run(tmp_path, "old", [20.0]), other))
    assert [heading.text() for heading in page.all("h2")] == ["tensor_add", "matmul_peak"]


def test_a_duel_shows_its_pairs_and_answer(tmp_path):
    page = read(render_page_of_run(stored_duel(tmp_path, [0.95, 0.951, 0.949, 0.95, 0.952, 0.948])))
    answer = page.one("div", class_="answer").text()
    assert "variant=corrected against variant=as_intended: slower" in answer
    assert "-5." in answer
    assert "beyond the margin of 1.0 %" in answer
    rows = list(next(page.all("tbody")).all("tr"))
    assert len(rows) == 7
    assert "The two sides" in list_headings(page)


def test_a_failed_run_has_a_page(tmp_path):
    page = read(render_page_of_run(hostile_run(tmp_path)))
    assert {"FAILED", "SKIPPED"} <= {
        re.sub(r"\W", "", render_badge.text()) for render_badge in page.all("span", class_="badge")
    }  # fmt: skip
