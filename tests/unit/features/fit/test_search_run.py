"""A search as a run: scripted processes, killed and resumed at every point."""

from __future__ import annotations

import msgspec
import pytest

from numbers_in_views import complaints
from rigdyno.analyse.matching import name_of
from rigdyno.api import Run
from rigdyno.base.errors import DamagedRun
from rigdyno.base.files import write_json
from rigdyno.commands.common.output import exit_code
from rigdyno.features.duel.compare import Sides, compare
from rigdyno.features.fit.search import next_attempt
from rigdyno.report.progress import SilentObserver
from rigdyno.runner.orchestrate import Orchestrator
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import Completed, DeviceMemory, Facts, Failed, Skipped, WorkerReport
from rigdyno.schema.spec import Cell, RunSpec, assign_participants
from rigdyno.store.folder import RunFolder
from scripted_sessions import Killed, ScriptedSessions
from support import NOW, ManualClock, a_head, a_record, rows_path, write_steps

MB = 10**6
ALLOWED = 500 * MB


class Scripted(ScriptedSessions):
    def __init__(self, memory, kill_at=None, killed_with_record=False):
        super().__init__()
        self.memory, self.kill_at, self.killed_with_record = memory, kill_at, killed_with_record
        self.facts = Facts()

    def start(self, cell, folder):
        self.started.append(cell.name)
        if len(self.started) == self.kill_at:
            raise Killed
        outcome, peak = self.memory(cell.spec.options["batch_size"], cell)
        write_steps(rows_path(folder), [3 * MB] * 40)
        report = WorkerReport(outcome=outcome, peak_memory_bytes=peak, facts=self.facts)
        write_json(CellFolder(folder).participant("rank0").report, report)
        self.failed = not isinstance(outcome, Completed)
        return self


def line(value, cell):
    return Completed(), 100 * MB + 7 * MB * value  # 52 of them fill 93 %


def a_cell(**changes):
    spec = RunSpec(workload="mnist_cnn", largest={"batch_size": ALLOWED}, options={"learning_rate": 0.1})
    cell = Cell(name="01-mnist_cnn-largest", spec=spec, participants=assign_participants(1, 1, "cpu"), seconds=30.0)
    return msgspec.structs.replace(cell, **changes)


@pytest.fixture
def a_run(tmp_path):
    def begin(*cells):
        folder = RunFolder.create(tmp_path, "test", NOW)
        head = a_head(cells or [a_cell()])
        folder.write_head(head)
        return folder

    return begin


def go_on(folder, memory=line, **kill):
    sessions = Scripted(memory, **kill)
    orchestrator = Orchestrator(folder, folder.head(), SilentObserver(), sessions, next_attempt, ManualClock())
    try:
        orchestrator.run()
    except Killed:
        return sessions.started, False
    return sessions.started, True


def result(folder):
    run = Run(folder, folder.head())
    [measurement] = run.measurements
    return measurement


def test_what_it_settled_is_in_the_record_and_in_the_name(a_run):
    folder = a_run()
    started, _ = go_on(folder)
    found = result(folder)
    assert found.spec.options == {"learning_rate": 0.1, "batch_size": 52}
    assert found.spec.largest == {"batch_size": ALLOWED}
    assert "batch_size=52 (largest in 500 MB)" in name_of(found.spec)
    assert started[-1] == "01-mnist_cnn-largest"
    assert started[:-1] == [f"01-mnist_cnn-largest-try{number:02d}" for number in range(1, len(started))]
    assert len(started) <= 9


def test_two_machines_that_came_to_other_values_are_compared_as_the_same_configuration(a_run):
    folder = a_run()
    go_on(folder)
    found = result(folder).spec
    smaller = msgspec.structs.replace(found, options={**found.options, "batch_size": 40})
    assert smaller.key() == found.key() == a_cell().spec.key()
    assert msgspec.structs.replace(found, largest={}).key() != found.key()


def test_killed_anywhere_it_goes_on_and_comes_to_the_same(a_run, tmp_path):
    whole = a_run()
    steps, _ = go_on(whole)
    expected = result(whole).spec
    for kill_at in range(1, len(steps) + 1):
        folder = a_run()
        before, over = go_on(folder, kill_at=kill_at)
        assert not over
        after, over = go_on(folder)
        assert over
        assert before[:-1] + after == steps  # what was under way is done again, and nothing else
        assert result(folder).spec == expected


def test_a_run_that_is_complete_stays_as_it_is(a_run):
    folder = a_run()
    go_on(folder)
    assert go_on(folder) == ([], True)


def breaks_above(most, value):
    if value > most:
        return Failed(kind="out_of_memory", phase="measure", message="no"), None
    return Completed(), 10 * MB


def test_running_out_of_memory_is_an_answer(a_run):
    folder = a_run()
    go_on(folder, lambda value, cell: breaks_above(57, value))
    assert 45 <= result(folder).spec.options["batch_size"] <= 57


def test_even_the_smallest_does_not_fit(a_run):
    folder = a_run()
    go_on(folder, lambda value, cell: (Completed(), 600 * MB))
    [record] = [cell.record for cell in folder.cells([]) if cell.record.attempt_of is None]
    assert record.outcome == Skipped(reason="even batch_size=1 takes 600 MB, which doesn't fit into 500 MB")
    assert go_on(folder) == ([], True)


def test_another_failure_is_told_by_the_cell_itself(a_run):
    wrong = Failed(kind="exception", phase="build", message="ValueError: no")
    folder = a_run()
    started, _ = go_on(folder, lambda value, cell: (wrong, None))
    assert started == ["01-mnist_cnn-largest-try01", "01-mnist_cnn-largest"]
    assert result(folder).outcome == wrong


def test_the_others_of_a_plan_run_too_and_attempts_are_no_figures(a_run):
    spec = RunSpec(workload="mnist_cnn", options={"batch_size": 3})
    other = Cell(name="02-mnist_cnn-3", spec=spec, participants=assign_participants(1, 1, "cpu"), seconds=12.0)
    folder = a_run(a_cell(), other)
    go_on(folder)
    assert [each.spec.options["batch_size"] for each in Run(folder, folder.head()).measurements] == [52, 3]


def test_repeats_share_what_was_found(a_run):
    again = a_cell(name="02-mnist_cnn-largest-r2", repeat=2)
    folder = a_run(a_cell(), again)
    started, _ = go_on(folder)
    assert started[-2:] == ["01-mnist_cnn-largest", "02-mnist_cnn-largest-r2"]
    assert all(name.startswith("01-mnist_cnn-largest-try") for name in started[:-2])
    assert len(result(folder).records) == 2


def test_a_try_whose_record_is_damaged_is_made_again_under_another_number(a_run):
    folder = a_run()
    go_on(folder, kill_at=4)
    (folder.path / "cells" / "01-mnist_cnn-largest-try02" / "record.json").write_text("{")
    started, over = go_on(folder)
    assert over
    assert "01-mnist_cnn-largest-try02" not in started
    assert len(set(started)) == len(started)
    assert result(folder).spec.options["batch_size"] == 52


def test_tries_that_somebody_has_changed_are_not_counted(a_run):
    folder = a_run()
    go_on(folder, kill_at=4)
    for number, wrong in ((1, "many"), (2, True)):
        path = folder.path / "cells" / f"01-mnist_cnn-largest-try0{number}" / "record.json"
        record = msgspec.json.decode(path.read_bytes())
        record["spec"]["options"]["batch_size"] = wrong
        path.write_bytes(msgspec.json.encode(record))
    assert go_on(folder)[1]
    assert result(folder).spec.options["batch_size"] == 52


def test_a_plan_that_somebody_has_changed_is_damaged(a_run):
    spec = msgspec.structs.replace(a_cell().spec, largest={"batch_size": ALLOWED, "size": ALLOWED})
    with pytest.raises(DamagedRun, match="several options"):
        go_on(a_run(a_cell(spec=spec)))


def test_more_memory_than_it_was_to_fit_into_is_said(a_run):
    folder = a_run()
    go_on(folder, lambda value, cell: (Completed(), 100 * MB + 7 * MB * value + (0 if cell.attempt_of else 50 * MB)))
    reasons = {reason.code: reason.sentence for reason in result(folder).validity.reasons}
    assert reasons["beyond_memory"] == "it took 514 MB, and batch_size was to fit into 500 MB"


def test_on_a_card_it_is_the_memory_of_the_card_that_counts():
    card = a_record(RunSpec(workload="x", device="cuda"), peak_memory_bytes=5, device_memory=DeviceMemory(peak_bytes=7))
    assert card.memory_bytes == 7
    assert msgspec.structs.replace(card, device_memory=None).memory_bytes is None
    assert a_record(RunSpec(workload="x"), peak_memory_bytes=5).memory_bytes == 5


def test_failed_tries_are_no_failure_of_the_run(a_run):
    folder = a_run()
    go_on(folder, lambda value, cell: breaks_above(57, value))
    assert exit_code(Run(folder, folder.head())) == 0
    nothing = a_run()
    go_on(nothing, lambda value, cell: (Completed(), 600 * MB))
    assert exit_code(Run(nothing, nothing.head())) == 3


def parts(*shares):
    return [
        a_cell(name=f"0{number}-part", spec=msgspec.structs.replace(a_cell().spec, share=share))
        for number, share in enumerate(shares, start=1)
    ]


def test_parts_of_the_largest_share_its_search(a_run):
    folder = a_run(*parts(1.0, 0.5, 0.25))
    started, _ = go_on(folder)
    found = Run(folder, folder.head()).measurements
    assert [each.spec.options["batch_size"] for each in found] == [52, 26, 13]
    assert [name for name in started if "try" not in name] == ["01-part", "02-part", "03-part"]
    assert all(name.startswith("01-part-try") for name in started[:-3])
    assert "batch_size=13 (1/4 of the largest in 500 MB)" in name_of(found[2].spec)
    assert len({each.spec.key() for each in found}) == 3
    assert len({each.spec.search_key() for each in found}) == 1


def test_a_part_that_would_be_less_than_one_is_skipped(a_run):
    folder = a_run(*parts(1.0, 0.5))
    go_on(folder, lambda value, cell: (Completed(), 470 * MB * value))
    [largest, half] = Run(folder, folder.head()).measurements
    assert largest.spec.options["batch_size"] == 1
    assert half.outcome == Skipped(reason="a part of batch_size=1 would be less than one")


def test_the_tries_stand_beside_the_figure(a_run):
    folder = a_run()
    started, _ = go_on(folder, lambda value, cell: breaks_above(57, value))
    attempts = result(folder).attempts
    assert len(attempts) == len(started) - 1
    assert {each.fits for each in attempts} == {True, False}
    assert all((each.memory_bytes is None) != each.fits for each in attempts)
    assert {each.why for each in attempts} == {"", "no"}


@pytest.mark.parametrize(
    "ending",
    [
        Skipped(reason="batches of 64 from 60 samples: take a batch size of at most 60"),
        Failed(kind="exception", phase="measure", message="RuntimeError: too many indices"),
        Failed(kind="signal", phase="measure", message="SIGSEGV"),
    ],
)
def test_what_fails_above_a_value_that_ran_is_a_matter_of_size(a_run, ending):
    folder = a_run()
    go_on(folder, lambda value, cell: (Completed(), 10 * MB) if value <= 60 else (ending, None))
    found = result(folder)
    assert 45 <= found.spec.options["batch_size"] <= 60
    assert isinstance(found.outcome, Completed)
    assert next(each.why for each in found.attempts if each.fits is False)


def test_a_batch_has_at_most_all_samples(a_run):
    folder = a_run()
    sessions = Scripted(lambda value, cell: (Completed(), 10 * MB))
    sessions.facts = Facts(epoch_items=1000)
    Orchestrator(folder, folder.head(), SilentObserver(), sessions, next_attempt, ManualClock()).run()
    assert result(folder).spec.options["batch_size"] == 1000


def test_every_cell_of_a_search_is_told_what_it_may_fill(a_run):
    folder = a_run(*parts(1.0, 0.5))
    go_on(folder)
    cells = [msgspec.json.decode(path.read_bytes()) for path in folder.path.glob("cells/*/spec.json")]
    assert len(cells) > 4
    assert {each["allowed_bytes"] for each in cells} == {ALLOWED}


class TestWhatIsSaid:
    @pytest.fixture
    def view(self, a_run):
        private = msgspec.structs.replace(a_cell().spec, update="dp_fast")
        cells = [
            a_cell(name=f"{number:02d}-{spec.update}", spec=msgspec.structs.replace(spec, share=share))
            for number, (spec, share) in enumerate(
                [(spec, share) for spec in (a_cell().spec, private) for share in (1.0, 0.5)], start=1
            )
        ]
        folder = a_run(*cells)
        sessions = Scripted(line)
        sessions.facts = Facts(unit="image", epoch_items=1000, settled={"physical_batch": 60})
        Orchestrator(folder, folder.head(), SilentObserver(), sessions, next_attempt, ManualClock()).run()
        return Run(folder, folder.head()).view()

    def test_the_first_table_has_a_row_for_each_update(self, view):
        table = view.tables[0]
        assert table.title == "What fits into 500 MB, cpu"
        assert [row.entries["what"].text for row in table.rows] == ["plain", "dp_fast"]
        assert [row.entries["largest"].value for row in table.rows] == [52, 52]
        assert [row.entries["physical"].value for row in table.rows] == [60, 60]
        assert all(row.entries["memory"].value == 464 * MB for row in table.rows)
        # steps of 3 ms do one item each in the script: an epoch of 1000 takes 3 s
        assert table.rows[0].entries["pace"].value == pytest.approx(3.0)

    def test_the_tries_are_told_one_by_one(self, view):
        table = next(table for table in view.tables if table.title == "The tries")
        assert table.rows[0].entries["value"].value == 1
        assert {row.entries["ended"].text for row in table.rows} == {"fits", "fits, with more steps"}
        assert table.notes[0] == "plain: 100 MB, and 7.00 MB a sample, by the line through its tries"

    def test_the_figure_has_the_wall_and_the_fitted_line(self, view):
        memory, epoch = view.figures[:2]
        roles = [(series.name, series.role) for series in memory.series]
        assert roles == [
            ("plain", "measured"),
            ("dp_fast", "measured"),
            ("the wall", "limit"),
            ("plain, fitted", "predicted"),
            ("dp_fast, fitted", "predicted"),
        ]
        wall = next(series for series in memory.series if series.role == "limit")
        assert {each.value for each in wall.data} == {500e6}
        assert [each.x for each in next(epoch.series).data] == [26, 52]
        assert epoch.key == "epoch-by-batch"

    def test_a_sentence_says_what_was_found_and_which_size_is_quickest(self, view):
        assert view.closing[0].startswith("plain: batch_size 52 fits into 500 MB, found in ")
        assert "quick" in view.closing[0]

    def test_no_number_is_a_text(self, view):
        assert complaints(msgspec.to_builtins(view)) == []


def test_where_nothing_fits_the_table_says_what_it_takes(a_run):
    folder = a_run()
    go_on(folder, lambda value, cell: (Completed(), 600 * MB))
    [row] = Run(folder, folder.head()).view().tables[0].rows
    assert row.status == "SKIPPED"
    assert row.entries["largest"].reason == "even batch_size=1 takes 600 MB, which doesn't fit into 500 MB"


def test_two_runs_that_came_to_other_values_are_compared_under_the_rule(a_run):
    found = []
    for each in (7 * MB, 9 * MB):
        folder = a_run()
        go_on(folder, lambda value, cell, each=each: (Completed(), 100 * MB + each * value))
        found.append(Run(folder, folder.head()).measurements)
    [compared] = compare(*found, Sides("old", "new"))
    assert compared.what == "mnist_cnn learning_rate=0.1 batch_size=largest in 500 MB"
    assert any("batch_size" in each for each in compared.differences)
    [same] = compare(found[0], found[0], Sides("old", "new"))
    assert "batch_size=52 (largest in 500 MB)" in same.what
