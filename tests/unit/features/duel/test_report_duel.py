"""The report of a duel, and a suite's report about the machine's own noise."""

import csv
import io
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from rigdyno import api, catalogue, cli
from rigdyno.contracts import Progress
from rigdyno.report.comparison import to_percent_change
from rigdyno.report.plan_text import describe_plan, summarise_plan
from rigdyno.report.progress import ProgressBar, ProgressLines
from rigdyno.report.show import describe_run_in_full
from rigdyno.report.text import Page
from rigdyno.schema.estimate import Number
from rigdyno.schema.record import Completed, Failed
from rigdyno.schema.spec import Cell, RunPlan
from rigdyno.schema.view import Sentence, View
from stored_duels import CHEAP, DUEL, SELF_DUEL, A, B, arm_cells, stored_duel, stored_suite
from support import a_head, a_record

SCHEMA = Path(__file__).parents[4] / "docs" / "view.schema.json"
SLOWER = (0.968, 0.971, 0.969, 0.966, 0.972, 0.968)
SAME = (1.001, 0.999, 1.002, 0.998, 1.0, 1.001)
WIDE = (1.05, 0.95, 1.02, 0.99, 1.06, 0.93)
AT_THE_MARGIN = (1.012, 1.008, 1.011, 1.009, 1.0125, 1.0077)
KILLED = Failed(kind="signal", phase="measure", message="SIGKILL: killed from outside")


def view_of(root, ratios, **changes):
    return api.load(stored_duel(root, ratios, **changes)).view()


def rendered(view, form):
    return catalogue.load("format", form)(view, Page(width=80))


BEYOND = "the whole interval lies beyond the margin of 1.0 %."
OPEN = "Undecided at a margin of 1.0 %:"


@pytest.mark.parametrize(
    ("ratios", "sentences"),
    [
        (SLOWER, ["B is 3.1 % slower (2.9 to 3.3 %).", f"A is faster: {BEYOND}"]),
        ([2 * ratio for ratio in SAME], ["B is 2.00 times as fast (2.00 to 2.00).", f"B is faster: {BEYOND}"]),
        (
            SAME,
            ["B: the same; its rate differs by +0.0 % (-0.1 % to +0.2 %).", "The same: the whole interval lies within"],
        ),
        (
            WIDE,
            ["B: undecided; its rate differs by -0.1 % (-5.5 % to +5.6 %).", f"{OPEN} as things stand it takes about"],
        ),
        (AT_THE_MARGIN, ["B: undecided; its rate differs by", f"{OPEN} the difference is too near to the margin"]),
        (SLOWER[:1], ["B: undecided; its rate differs by -3.2 %.", f"{OPEN} one pair of processes has no interval"]),
    ],
)
def test_the_answer_in_words(tmp_path, ratios, sentences):
    closing = view_of(tmp_path, ratios).closing
    assert len(closing) == len(sentences)
    for said, expected in zip(closing, sentences, strict=True):
        assert said.startswith(expected)


def test_who_fights_and_every_pair(tmp_path):
    view = view_of(tmp_path, SLOWER, label="my box")
    assert view.title == "Duel: tensor_add, variant=as_intended against variant=corrected"
    assert view.standing == ("A: variant=as_intended", "B: variant=corrected")
    assert view.rigs[0].startswith("my box: Test CPU")
    names = [row.entries["pair"].text for row in view.tables[0].rows]
    assert names == [f"pair {number}" for number in range(1, 7)] + ["all pairs"]
    assert [row.entries["turns"].value for row in view.tables[0].rows] == [25] * 6 + [150]
    assert view.tables[0].rows[-1].entries["ratio"] == to_percent_change(view.comparisons[0].ratio)
    assert view.warnings == ()


def test_a_difference_of_a_thousandth_can_be_read_and_a_manifold_is_no_percentage(tmp_path):
    assert "| 0.2 % [" in rendered(view_of(tmp_path, [1.002] * 6), "markdown")
    assert "20.0 x [" in rendered(view_of(tmp_path, [20.0] * 6), "markdown")


def test_one_pair_is_not_repeated_as_all_pairs(tmp_path):
    assert len(view_of(tmp_path, SLOWER[:1]).tables[0].rows) == 1


def test_a_duel_never_shows_a_rate(tmp_path):
    text = rendered(view_of(tmp_path, SLOWER), "terminal")
    assert "it/s" not in text
    assert "A duel gives ratios, never rates" in text


def test_a_lost_arm_is_a_warning_with_its_name_and_its_end(tmp_path):
    view = view_of(tmp_path, (*SLOWER, 1.0), outcomes={(7, "b"): KILLED})
    assert view.warnings == ("pair 7: B failed (signal, measure): SIGKILL: killed from outside",)
    assert view.comparisons[0].answer == "slower"


def test_nothing_finished(tmp_path):
    view = view_of(tmp_path, (1.0,), outcomes={(1, "a"): KILLED, (1, "b"): Completed()})
    assert view.closing == ("NOT_COMPARABLE: no pair of processes finished",)
    assert view.tables[0].rows == ()
    for form in catalogue.names("format"):
        assert rendered(view, form)


@pytest.mark.parametrize(
    ("ratios", "planned", "resumable"),
    [(WIDE, 10, True), (WIDE, 6, False), (SLOWER, 10, False), (SLOWER[:1], 10, True)],
)
def test_going_on_is_offered_where_there_is_something_to_go_on_with(tmp_path, ratios, planned, resumable):
    view = view_of(tmp_path, ratios, planned=planned)
    assert any("run --resume" in command for command in view.next_commands) is resumable


def test_a_decided_duel_is_complete_and_an_interrupted_one_is_not(tmp_path):
    assert view_of(tmp_path, SLOWER, planned=10).warnings == ()
    (warning,) = view_of(tmp_path, SLOWER[:3], planned=10).warnings
    assert warning.startswith("3 of at least 6 pairs of processes are finished; go on with: rigdyno run --resume ")


def test_json_keeps_to_its_schema_and_comes_back(tmp_path):
    for ratios in (SLOWER, WIDE, SLOWER[:1], ()):
        view = view_of(tmp_path, ratios, planned=6)
        text = rendered(view, "json")
        jsonschema.validate(json.loads(text), json.loads(SCHEMA.read_text(encoding="utf-8")))
        assert msgspec.json.decode(text, type=View) == view
    compared = json.loads(rendered(view_of(tmp_path, SLOWER), "json"))["comparisons"][0]
    assert compared["answer"] == "slower"
    assert compared["ratio"]["value"] == pytest.approx(0.969, abs=1e-4)
    assert compared["margin"] == 0.01


def test_csv_has_a_line_for_every_pair_and_one_for_all(tmp_path):
    every = list(csv.DictReader(io.StringIO(rendered(view_of(tmp_path, SLOWER), "csv"))))
    assert {line["figure"] for line in every} == {"ratio", "turns"}
    lines = [line for line in every if line["figure"] == "ratio"]
    assert [line["row"] for line in lines] == [*(f"pair {number}" for number in range(1, 7)), "all pairs"]
    assert {line["unit"] for line in lines} == {"%"}
    assert [1 + float(line["value"]) / 100 for line in lines[:6]] == pytest.approx(SLOWER, abs=2e-4)
    assert "Student t" in lines[-1]["method"]


def test_show_has_both_arms_and_no_rates_of_theirs(tmp_path):
    run = api.load(stored_duel(tmp_path, SLOWER))
    text = describe_run_in_full(run.head, run.cells, run.view(), Page(width=80))
    assert "pair001-a: done in 12 s" in text
    assert "tensor_add variant=corrected" in text
    assert "rate over time" not in text


def test_an_arm_is_no_measurement(tmp_path):
    assert api.load(stored_duel(tmp_path, SLOWER)).measurements == []
    suite = api.load(stored_suite(tmp_path, (1.0, 1.01, 0.99, 1.005)))
    assert [found.spec.workload for found in suite.measurements] == ["tensor_add"]


def test_nor_does_it_stand_on_a_leaderboard(tmp_path, capsys):
    stored_duel(tmp_path, SLOWER, label="my box")
    assert cli.main(["leaderboard", "device", "--out", str(tmp_path)]) == 0
    assert "my box" not in capsys.readouterr().out


class TestNoise:
    def test_what_differences_mean_nothing(self, tmp_path):
        run = api.load(stored_suite(tmp_path, (1.01, 0.99, 1.012, 0.988)))
        view = run.view()
        ratio = run.duel.comparison.ratio
        reach = 100 * max(ratio.high - 1, 1 - ratio.low)
        assert view.noise.figure == Number(value=pytest.approx(reach / 100), unit="share")
        assert view.noise.text == (
            "launch_latency against itself, 4 pairs of processes: "
            f"differences below {reach:.1f} % are within the noise of this machine."
        )
        assert view.warnings == ()
        for form in ("terminal", "markdown", "json"):
            assert "are within the noise of this machine" in " ".join(rendered(view, form).split())

    def test_why_it_was_not_measured(self, tmp_path):
        view = api.load(stored_suite(tmp_path, (), missing="a tenth of this run is 3.6 s")).view()
        assert view.noise == Sentence(text="The machine's own noise was not measured: a tenth of this run is 3.6 s.")

    def test_three_pairs_are_too_few(self, tmp_path):
        outcomes = {(4, "a"): KILLED}
        view = api.load(stored_suite(tmp_path, (1.01, 0.99, 1.012, 1.0), outcomes=outcomes)).view()
        assert view.noise.text == (
            "The machine's own noise was not measured: pair 4: A failed (signal, measure): SIGKILL: killed from "
            "outside; only 3 of its pairs of processes finished."
        )

    def test_pairs_for_which_there_was_no_time_are_not_called_unfinished_cells(self, tmp_path):
        view = api.load(stored_suite(tmp_path, (1.01, 0.99), planned=4)).view()
        assert view.warnings == ()
        text = "The machine's own noise was not measured: only 2 of its pairs of processes finished."
        assert view.noise == Sentence(text=text)

    def test_what_is_no_suite_says_nothing(self, tmp_path):
        assert view_of(tmp_path, SLOWER).noise is None


class TestPlan:
    def test_a_duel(self):
        head = a_head((), plan=RunPlan(name="duel-tensor_add", cells=arm_cells(A, B, 10), duel=DUEL))
        lines = describe_plan(head, Path(), Page(width=80))
        assert lines[1:] == [
            "Plan: duel-tensor_add, 6 to 10 pairs of processes, at most 2 min",
            "  A: variant=as_intended",
            "  B: variant=corrected",
        ]

    def test_a_suite_with_its_noise(self):
        cells = (Cell(name="01-cell", spec=A, seconds=60.0), *arm_cells(CHEAP, CHEAP, 4))
        text = summarise_plan(RunPlan(name="device", suite="device", cells=cells, duel=SELF_DUEL))
        assert (
            text == "Plan: device, 1 cell and 4 pairs of processes of launch_latency against itself, about 1 min 48 s"
        )


class TestProgress:
    PLAN = RunPlan(
        name="x", cells=(Cell(name="01-cell", spec=A, seconds=60.0), *arm_cells(A, B, 4)), duel=DUEL
    )  # fmt: skip

    def lines(self, *outcomes):
        """Return the progress lines of one cell and one pair."""
        stream = io.StringIO()
        observer = ProgressLines(stream)
        observer.planned(self.PLAN, Path())
        cell, a, b = self.PLAN.cells[:3]
        observer.started(cell)
        observer.finished(a_record(cell=cell.name, seconds=60.0))
        observer.started(a)
        for arm, outcome in zip((a, b), outcomes, strict=True):
            observer.finished(a_record(cell=arm.name, pair=arm.pair, arm=arm.arm, seconds=5.5, outcome=outcome))
        return stream.getvalue().splitlines()

    def test_one_line_for_both_arms(self):
        assert self.lines(Completed(), Completed()) == ["[1/1] 01-cell: done in 1 min", "[pair 1] done in 5.5 s"]

    def test_an_arm_that_failed_is_named_and_nobody_is_done(self):
        ending = "FAILED (signal, measure): SIGKILL: killed from outside"
        assert self.lines(KILLED, Completed())[1:] == [f"[pair 1] A: {ending}"]
        assert self.lines(Completed(), KILLED)[1:] == [f"[pair 1] B: {ending}"]
        assert self.lines(KILLED, KILLED)[1:] == [f"[pair 1] A: {ending}", f"[pair 1] B: {ending}"]

    def test_a_bar_knows_how_far_a_pair_has_come(self):
        bar = ProgressBar(io.StringIO())
        bar.planned(self.PLAN, Path())
        pair = self.PLAN.cells[1]
        bar.started(pair)
        bar.progress(Progress(pair, 6.0, 0.5, figure="B -3.1 %, 40 rounds"))
        (task,) = bar._bar.tasks
        bar.over()
        assert task.description == "pair 1"
        assert task.completed == pytest.approx(60.0 + 6.0)
        assert task.total == pytest.approx(60.0 + 48.0)
        assert task.fields["figures"] == "B -3.1 %, 40 rounds, 42 s left"
