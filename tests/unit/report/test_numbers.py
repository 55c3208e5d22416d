"""Test that numbers are numbers in every view, with units and metrics, and that the checker finds violations."""

import csv
import io

import msgspec
import pytest

from numbers_in_views import complaints, reads_as_a_number
from rigdyno import api, catalogue, cli
from rigdyno.report import generic
from rigdyno.report.text import Page, format_cell
from rigdyno.schema.estimate import Estimate, Number, Validity
from rigdyno.schema.measured import KindFigures, Measurement, Soak
from rigdyno.schema.metric import SPEEDUP, THROUGHPUT
from rigdyno.schema.record import Completed, Facts, Failed
from rigdyno.schema.spec import RunSpec
from rigdyno.schema.view import Column, RatioEntry, Row, Table, Text, View
from rigdyno.suites.device import DeviceSuite
from stored_runs import ADDING, stored_run
from support import a_record

RATE = Estimate(value=5.0, low=4.0, high=6.0, confidence=0.95, n=9, unit="it/s", method="by hand")
COMPLETED = Completed()
COLUMNS = (
    Column(key="what", title="what", numeric=False),
    Column(key="rate", title="rate", metric=THROUGHPUT.of("iteration")),
    Column(key="note", title="note", numeric=False),
)


def find_complaints(entries, columns=COLUMNS):
    table = Table(title="t", columns=columns, rows=(Row(entries=entries),))
    return complaints(msgspec.to_builtins(View(title="", tables=(table,))))


class TestTheWalker:
    def test_texts_and_figures_pass(self):
        assert find_complaints({"what": Text(text="add (64)"), "rate": RATE, "note": Text(text="pair 1")}) == []

    @pytest.mark.parametrize(
        "text",
        [
            "12", "219 ms", "-4.8 %", "92%", "x 1.9", "1.9x", "1,370 image/s [1,000, 2,000]", "4.00 kB", "3 min 20 s",
            "2 of 3", "1e-5", "size=2048", "35 °C",
        ],
    )  # fmt: skip
    def test_a_number_in_a_text_is_found(self, text):
        [complaint] = find_complaints({"what": Text(text="add"), "rate": RATE, "note": Text(text=text)})
        assert f"'{text}' is a number" in complaint

    @pytest.mark.parametrize(
        "text", ["2.13.0", "2.13.0+cpu", "pair 1", "cuda:1", "NVIDIA RTX 3090", "memory, read", ""]
    )
    def test_names_are_not_numbers(self, text):
        assert not reads_as_a_number(text)

    def test_text_in_a_numeric_column_is_found(self):
        assert "stands among numbers" in find_complaints({"rate": Text(text="quick")})[0]

    @pytest.mark.parametrize(
        "entry",
        [Number(value=5.0), Number(value=5.0, unit="B/s"), RatioEntry(value=0.5, of="x"), RATE.scaled(1.0, "s")],
    )
    def test_a_unit_other_than_that_of_the_metric_is_found(self, entry):
        assert "its metric in 'it/s'" in find_complaints({"rate": entry})[0]

    def test_a_column_without_a_metric_and_an_entry_without_a_column_are_found(self):
        bare = (COLUMNS[0], Column(key="rate", title="rate"))
        assert ["no metric" in each for each in find_complaints({"rate": RATE}, bare)] == [True]
        assert "has no column 'more'" in find_complaints({"more": RATE})[0]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"confidence": 0.0}, "a confidence of 0.0"),
            ({"low": None, "high": None}, "without an interval"),
            ({"method": "the worst of both intervals"}, "for 'the worst of both intervals'"),
        ],
    )
    def test_impossible_confidences_are_found(self, changes, words):
        """An Estimate itself refuses the first two, so the documents are made by hand."""
        assert words in complaints({"somewhere": [{**msgspec.to_builtins(RATE), **changes}]})[0]


def measured(rates, unit="image", soak=None, outcome=COMPLETED, spec=None, **options):
    spec = spec or RunSpec(workload="resnet", options=options)
    kinds = {
        kind: KindFigures(throughput=RATE.scaled(rate, THROUGHPUT.of(unit).unit), step_seconds=RATE.scaled(1, "s"))
        for kind, rate in rates.items()
    }
    return Measurement(
        spec=spec, records=(a_record(spec, outcome=outcome),), outcome=outcome, facts=Facts(unit=unit), kinds=kinds,
        validity=Validity(verdict="VALID") if kinds else None, soak=soak,
    )  # fmt: skip


SOAK = Soak(burst=300.0, sustained=55.0, throttled=True, seconds=(1.0, 2.0), rates=(300.0, 55.0))
FAILED = Failed(kind="signal", phase="measure", message="SIGILL: no such instruction")


@pytest.mark.parametrize(
    "shown",
    [
        generic.presentation([measured({"step": 1.0})]),
        generic.presentation([measured({"step": 1.0}, batch=batch) for batch in (1, 2)]),
        generic.presentation([measured({"read": 1.0, "write": 2.0}, dtype=name) for name in ("fp32", "bf16")]),
        generic.presentation([measured({"step": 1.0}), measured({"step": 1.0}, "byte", size=1e-5)]),
        generic.presentation([measured({"step": 1.0}, soak=SOAK), measured({}, outcome=FAILED, batch=3)]),
        DeviceSuite().present([measured({"step": 1.0}, "iteration", SOAK, spec=ADDING)]),
    ],
    ids=["one", "sweep", "kinds", "units", "soak", "device soak"],
)
def test_runs_without_a_suite_and_soaks_have_valid_numbers(shown):
    assert complaints(msgspec.to_builtins(View(title="", tables=shown.tables))) == []


def test_a_sweep_has_a_column_for_each_option_that_differs():
    """An option may have the name of a figure."""
    found = [measured({"step": 1.0}, n=n, rate=rate, fast=n > 1, lr=0.1) for n, rate in ((1, 1e-05), (2**40, 0.25))]
    (table,) = generic.presentation(found).tables
    assert [column.title for column in table.columns[:4]] == ["n", "rate", "fast", "rate"]
    cells = [[format_cell(column, row.entries.get(column.key)) for column in table.columns[:3]] for row in table.rows]
    assert cells == [["1", "1e-05", "False"], ["1099511627776", "0.25", "True"]]
    assert {row.entries["rate"].unit for row in table.rows} == {"image/s"}
    assert table.name_of(table.rows[0]) == "n 1, rate 1e-05, fast False"


def test_a_soak_has_a_table():
    *_, table = generic.presentation([measured({"step": 1.0}, soak=SOAK)]).tables
    (row,) = table.rows
    assert row.entries["burst"] == Number(value=300.0, unit="image/s")
    assert row.entries["kept"].value == pytest.approx(55 / 300)


def test_a_cell_leaves_out_the_unit_that_the_title_names():
    column = Column(key="speedup", title="speedup", metric=SPEEDUP, bare=True)
    entry = Estimate(value=1.9, low=1.8, high=2.0, n=2, unit="x", method="the worst of both intervals")
    assert format_cell(column, entry) == "1.90 [1.80, 2.00]"
    assert format_cell(column, Number(value=1, unit="x")) == "1"


class TestRunsOfRows:
    """Every line of a CSV names its run, also in a table of several runs."""

    def lines(self, text):
        return list(csv.DictReader(io.StringIO(text)))

    def test_lines_of_one_run_name_it(self, tmp_path):
        run = stored_run(tmp_path, "one", [30.0, 30.1])
        text = catalogue.load("format", "csv")(api.load(run).view(), Page())
        assert {line["run"] for line in self.lines(text)} == {run.name}

    def test_lines_of_a_comparison_name_both_runs(self, tmp_path, capsys):
        runs = [stored_run(tmp_path, name, [30.0, 30.1, 29.9]) for name in ("old", "new")]
        assert cli.main(["compare", *map(str, runs), "--format", "csv"]) == 0
        assert {line["run"] for line in self.lines(capsys.readouterr().out)} == {f"{runs[0].name}, {runs[1].name}"}

    def test_lines_of_the_leaderboard_name_their_run(self, tmp_path, capsys):
        labels = {stored_run(tmp_path, name, [30.0, 30.1], label=name).name: name for name in ("mine", "yours")}
        assert cli.main(["leaderboard", "device", "--format", "csv", "--out", str(tmp_path)]) == 0
        lines = self.lines(capsys.readouterr().out)
        assert {line["run"]: line["row"] for line in lines if line["origin"] == "measured"} == labels
        assert {line["run"] for line in lines if line["origin"] == "published"} == {""}
