"""The card of a campaign: as a table, and as a picture."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from numbers_in_views import complaints
from rigdyno.contracts import Progress
from rigdyno.features.campaign.plan import CampaignPlan
from rigdyno.features.campaign.report import SuiteReport, campaign_lines, card_view
from rigdyno.features.campaign.share import (
    MOST_LINES,
    MOST_ROWS,
    card_svg,
    lines_of,
    printable,
    shorten_text,
    width_of,
    wrap_text,
)
from rigdyno.report.progress import ProgressBar, Stage
from rigdyno.report.text import Page
from rigdyno.report.view import choose_default_headline
from rigdyno.schema.comparison import Comparison
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.metric import THROUGHPUT
from rigdyno.schema.view import (
    Column,  # fmt: skip
    Headline,  # fmt: skip
    Neighbour,  # fmt: skip
    Presentation,  # fmt: skip
    Published,  # fmt: skip
    Row,  # fmt: skip
    Table,  # fmt: skip
    Text,  # fmt: skip
    View,  # fmt: skip
)
from rigdyno.store.campaign import CampaignHead, LeftOut, SuiteRun
from scripted_campaign import a_plan

RATE = Estimate(value=33.6, low=28.2, high=40.1, confidence=0.95, n=30, unit="it/s", method="made up")
APPLE = Neighbour(name="Apple M1", figure=Published(value=48.0, unit="it/s", source="a document"))
HOSTILE = "</text><script>alert(1)</script> & \x07 \ud800"


def a_headline(status="VALID", **changes):
    return Headline(**{"what": "tensor add", "figure": RATE, "status": status, **changes})


def a_card(*reports, left_out=(), label=None, **changes):
    runs = tuple(SuiteRun(suite=report.suite, run=f"{report.suite}.1", seconds=9.0) for report in reports)
    head = CampaignHead(
        rigdyno_version="0.1.0", created_at="2026-01-02", label=label, rig="Test CPU", budget_seconds=900.0, runs=runs,
        left_out=tuple(LeftOut(suite=suite, reason=why) for suite, why in left_out),
    )  # fmt: skip
    return card_view(head, reports, "runs/all.1", **changes)


def a_report(suite="device", headline=None, **changes):
    return SuiteReport(suite, View(title="t", headline=headline or a_headline()), **changes)


def drawn(views, theme="light"):
    """The picture as an independent parser reads it: texts in their order."""
    tree = ET.fromstring(card_svg(views, theme, made="made today"))
    return tree, [element.text or "" for element in tree.iter("{http://www.w3.org/2000/svg}text")]


class TestTheTable:
    def test_a_line_for_each_suite_with_figure_verdict_and_place(self):
        headline = a_headline("SUSPECT", place="number 2 of 2", neighbours=(APPLE,))
        card = a_card(a_report(headline=headline), left_out=[("privacy", "opacus is not installed")], label="mine")
        mine, published, left_out = card.tables[0].rows
        assert mine.entries["figure"] == RATE
        assert (mine.status, mine.entries["place"].text) == ("SUSPECT", "number 2 of 2")
        assert (published.origin, published.status) == ("published", None)
        assert published.entries["figure"] == APPLE.figure
        assert left_out.status == "SKIPPED"
        assert left_out.entries["figure"] == Missing(reason="opacus is not installed")
        assert card.rigs == ("mine: Test CPU",)
        assert card.tables[0].notes == ("published: a document",)
        assert complaints(msgspec.to_builtins(card)) == []

    def test_what_is_not_finished_is_said_with_one_way_to_go_on(self):
        reports = [
            a_report("device", unfinished="1 of 2 cells are not finished"),
            a_report("scaling", trouble="no time"),
        ]
        assert a_card(*reports).warnings == (
            "device: 1 of 2 cells are not finished",
            "scaling: no time",
            "go on with: rigdyno run --resume runs/all.1",
        )
        assert a_card(*reports, running=True).warnings[-1] == "it is still running"
        assert a_card(a_report()).warnings == ()

    def test_a_suite_without_a_figure_has_its_line(self):
        card = a_card(SuiteReport("device", None, trouble="head.json is missing"))
        [row] = card.tables[0].rows
        assert (row.status, row.entries["figure"]) == ("FAILED", Missing(reason="head.json is missing"))

    def test_the_first_measured_figure_stands_for_a_suite_that_names_none(self):
        columns = (Column(key="what", title="what", numeric=False), Column(key="rate", title="rate", metric=THROUGHPUT))
        rows = (
            Row(entries={"what": Text(text="theirs"), "rate": APPLE.figure}, origin="published"),
            Row(entries={"what": Text(text="ours"), "rate": RATE}, status="VALID"),
        )
        presented = Presentation(title="t", tables=(Table(title="x", columns=columns, rows=rows),))
        assert choose_default_headline(presented) == Headline(what="ours", figure=RATE, status="VALID")
        assert choose_default_headline(Presentation(title="nothing")) is None


class TestThePlan:
    def test_it_states_each_suites_share_and_who_cannot_run(self, tmp_path):
        left_out = (LeftOut(suite="privacy", reason="opacus is not installed"),)
        plan = CampaignPlan((a_plan("device"), a_plan("scaling", cells=1)), left_out, 24.0)
        lines = campaign_lines(plan, "Test CPU", tmp_path, Page())
        assert lines == [
            "This machine: Test CPU",
            "Plan: 2 suites in 24 s (--budget)",
            "  device, 16 s, 2 cells",
            "  scaling, 8.0 s, 1 cell",
            "  not run: privacy: opacus is not installed",
        ]
        everything = campaign_lines(plan, "Test CPU", tmp_path, Page(), every_cell=True)
        assert sum("-add" in line for line in everything) == 3
        assert "disk: about" in everything[-1]


class TestTheBar:
    def test_the_bar_of_a_campaign_fits_into_80_columns_and_counts_all_suites(self):
        """Half of the second suite's first cell is done: 20 of 32 s."""
        screen = Screen()
        plan = a_plan("scaling")
        long = replace(plan.cells[0], name="01-a_very_long_name_of_a_workload_with_options")
        bar = ProgressBar(screen, Stage("scaling", before=16.0, behind=0.0))
        bar.planned(replace(plan, cells=(long, plan.cells[1])), Path("x"))
        bar.started(long)
        bar.progress(Progress(long, 4.0, 0.5, rate=123.4e9, unit="flop"))
        bar.over()
        assert "62 %" in screen.getvalue()
        assert "12 s left" in screen.getvalue()
        lines = [plain(line) for line in screen.getvalue().replace("\r", "\n").splitlines()]
        assert any("scaling 1/2" in line for line in lines)
        assert max(map(len, lines)) <= 80


class Screen(io.StringIO):
    def isatty(self):
        return True


def plain(line):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)


class TestThePicture:
    def test_it_has_the_exact_size_and_says_what_the_table_says(self):
        headline = a_headline("SUSPECT", place="number 2 of 2", neighbours=(APPLE,))
        tree, texts = drawn([a_card(a_report(headline=headline), label="mine")])
        assert (tree.get("width"), tree.get("height")) == ("1200", "630")
        for words in ("33.6 it/s", "[28.2, 40.1]", "SUSPECT", "Number 2 of 2", "published: Apple M1, 48 it/s"):
            assert words in texts
        assert "mine: Test CPU" in texts
        assert any("published by others (a document), not measured here" in text for text in texts)

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_verdicts_differ_by_more_than_colour(self, theme):
        def shape(status):
            svg = card_svg([a_card(a_report(headline=a_headline(status)))], theme, made="")
            tree = ET.fromstring(svg)
            for element in tree.iter():
                for name in ("fill", "stroke"):
                    if element.get(name, "none") != "none":
                        element.set(name, "one colour")
                if element.text == status:
                    element.text = "verdict"
            return ET.tostring(tree)

        assert len({shape(status) for status in ("VALID", "SUSPECT", "INVALID", "SKIPPED")}) == 4

    def test_hostile_words_stay_words(self):
        headline = a_headline(what=HOSTILE, place=HOSTILE, neighbours=(Neighbour(name=HOSTILE, figure=APPLE.figure),))
        tree, texts = drawn([a_card(a_report(HOSTILE, headline), left_out=[("x", HOSTILE)], label=HOSTILE)])
        kinds = {element.tag.rpartition("}")[2] for element in tree.iter()}
        assert kinds == {"svg", "rect", "line", "text"}
        assert any(text.startswith("</text><script>") for text in texts)

    def test_more_suites_than_it_has_room_for_are_counted(self):
        reports = [a_report(f"suite{number}") for number in range(MOST_LINES + 2)]
        tree, texts = drawn([a_card(*reports)])
        assert sum(text.startswith("suite") for text in texts) == MOST_LINES
        assert any(text.startswith("and 2 more suites; ") for text in texts)
        bottom = max(float(e.get("y", 0)) for e in tree.iter("{http://www.w3.org/2000/svg}text"))
        assert bottom < 630

    def test_a_single_run_shows_its_headline_and_the_first_of_its_other_rows(self):
        columns = (Column(key="what", title="what", numeric=False), Column(key="rate", title="rate", metric=THROUGHPUT))
        others = [
            Row(entries={"what": Text(text=f"row {n}"), "rate": RATE.scaled(n, "it/s")}, status="VALID")
            for n in range(1, 9)
        ]
        table = Table(title="x", columns=columns, rows=tuple(others))
        lines = lines_of([View(title="device", headline=a_headline(), tables=(table,))])
        assert len(lines) == MOST_ROWS
        assert lines[0].row.entries["figure"] == RATE
        assert [line.row.entries["what"].text for line in lines[1:]] == ["row 2", "row 3", "row 4"]

    def test_a_duel_shows_its_ratio_and_says_what_it_means(self):
        ratio = Estimate(value=1.85, low=1.77, high=1.94, confidence=0.95, n=9, unit="x", method="made up")
        compared = Comparison(
            what="add", metric=THROUGHPUT, baseline="old", candidate="new", ratio=ratio, margin=0.01, answer="faster",
            sentence="B is 1.85 times as fast",
        )  # fmt: skip
        _, texts = drawn([View(title="Duel", comparisons=(compared,), closing=("B is 1.85 times as fast.",))])
        assert {"1.85 x", "[1.77, 1.94]", "B is 1.85 times as fast."} <= set(texts)
        assert "it gave no figure" not in texts

    def test_a_run_without_a_figure_has_a_picture(self):
        _, texts = drawn([View(title="nothing")])
        assert "it gave no figure" in texts

    @pytest.mark.parametrize("status", ["VALID", "SUSPECT", "INVALID", "FAILED", "SKIPPED"])
    def test_the_real_drawer_gives_1200_by_630_pixels(self, status):
        vl_convert = pytest.importorskip("vl_convert")
        headline = a_headline(status, place="number 2 of 2", neighbours=(APPLE,))
        picture = vl_convert.svg_to_png(card_svg([a_card(a_report(headline=headline))], "dark", made=""), 1.0, 72)
        assert picture[:8] == b"\x89PNG\r\n\x1a\n"
        assert (int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")) == (1200, 630)


class TestFitting:
    def test_what_fits_stays_and_the_rest_is_cut_with_a_sign(self):
        assert shorten_text("short", 500, 20) == "short"
        cut = shorten_text("many words " * 20, 200, 20)
        assert cut.endswith("…")
        assert width_of(cut, 20) <= 200

    def test_lines_break_between_words_and_the_last_one_says_that_there_is_more(self):
        rows = wrap_text("one two three four five six seven eight nine ten", 120, 20, 2)
        assert len(rows) == 2
        assert rows[-1].endswith("…")
        assert all(width_of(row, 20) <= 120 for row in rows)

    def test_wide_signs_are_as_wide_as_they_are(self):
        assert width_of("研究", 10) == 20.0
        assert width_of("e\u0301", 10) == width_of("e", 10)

    def test_what_xml_cannot_hold_is_replaced(self):
        assert printable("a\x00b\ud800c\n") == "a?b?c?"
