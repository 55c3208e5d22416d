"""Test entries, plans and progress as text against expected output."""

import io
from pathlib import Path

import pytest

from rigdyno import api
from rigdyno.base.errors import UnknownName
from rigdyno.commands.list import Item, listing_text
from rigdyno.contracts import Progress
from rigdyno.report import generic
from rigdyno.report.plan_text import describe_plan
from rigdyno.report.progress import ProgressBar, ProgressLines, SilentObserver, format_outcome, make_observer
from rigdyno.report.show import describe_run_in_full
from rigdyno.report.text import Page, detect_page, format_entry, format_scaled, list_missing_reasons
from rigdyno.report.view import add_columns, describe_machines, judge_run
from rigdyno.schema.estimate import Estimate, Missing, Number, Reason, Validity
from rigdyno.schema.measured import KindFigures, Measurement, Soak
from rigdyno.schema.record import Completed, DeviceMemory, Facts, Failed, Quality, Skipped
from rigdyno.schema.spec import Cell, RunPlan, RunSpec
from rigdyno.schema.system import Environment
from rigdyno.schema.view import Published, RatioEntry, Text
from rigdyno.store.folder import RunFolder
from stored_runs import stored_run
from support import a_head, a_record, a_stored_run, a_system

SPEC = RunSpec(workload="tensor_add", options={"variant": "corrected"})


def estimate(value, low, high, unit, n=10):
    confidence = None if low is None else 0.95
    return Estimate(value=value, low=low, high=high, confidence=confidence, n=n, unit=unit, method="by hand")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (estimate(31.24, 30.9, 31.5, "it/s"), "31.2 it/s [30.9, 31.5]"),
        (estimate(38.2e9, 37e9, 1.2e12, "B/s"), "38.2 GB/s [37.0, 1,200]"),
        (estimate(0.0325, 0.03, 0.04, "s"), "32.5 ms [30.0, 40.0]"),
        (estimate(4e-6, 2e-6, 5e-6, "s/launch"), "4.00 us/launch [2.00, 5.00]"),
        (estimate(2_000_000, None, None, "image/s"), "2,000,000 image/s"),
        (estimate(0, 0, 0, "B/s"), "0 B/s [0, 0]"),
        (Published(value=48, unit="it/s", source="s"), "48 it/s"),
        (Published(value=57.98e9, unit="B/s", source="s"), "58.0 GB/s"),
        (RatioEntry(value=0.924, low=0.9, high=1.0, of="x"), "92 %"),
        (Text(text="words"), "words"),
        (Missing(reason="because"), "—"),
        (None, ""),
    ],
)
def test_an_entry_is_formatted_with_unit_and_interval(entry, text):
    assert format_entry(entry) == text


def test_missing_reasons_are_listed_once_and_rates_scaled():
    entries = {"a": Missing(reason="x"), "b": Text(text="t"), "c": Missing(reason="x"), "d": Missing(reason="y")}
    assert list_missing_reasons(entries) == ["x", "y"]
    assert format_scaled(1.5e12, "FLOP/s") == "1.50 TFLOP/s"


CELLS = (
    Cell(name="01-tensor_add-corrected", spec=SPEC, seconds=12.0, memory_bytes=2_000_000_000),
    Cell(name="02-tensor_add-64", spec=SPEC, seconds=5.0, refusal="needs 12.0 TB of memory"),
    Cell(name="03-tensor_add-64-r2", spec=SPEC, seconds=5.0, refusal="needs 12.0 TB of memory", repeat=2),
)


def test_the_plan_states_time_memory_and_refusals():
    lines = describe_plan(a_head(CELLS), Path("runs"), Page(width=80))
    assert lines == [
        "This machine: Test CPU, 2 cores, 8.00 GB memory, no accelerator",
        "Plan: test, 1 cell, about 12 s, up to 2.00 GB of memory",
        "  not run: tensor_add variant=corrected: needs 12.0 TB of memory",
    ]


def test_the_dry_run_plan_lists_every_cell_and_the_disk(tmp_path):
    lines = describe_plan(a_head(CELLS), tmp_path, Page(width=80), every_cell=True)
    assert lines[2].split() == ["01-tensor_add-corrected", "12", "s", "2.00", "GB"]
    # 12 s at 40 kB a second, and 30 kB for each of three cells
    assert lines[-1].startswith("  disk: about 570 kB, ")
    assert f"are free in {tmp_path}" in lines[-1]


def test_a_pipe_gets_a_line_per_cell():
    stream = io.StringIO()
    observer = make_observer(stream)
    assert isinstance(observer, ProgressLines)
    observer.planned(RunPlan(name="test", cells=CELLS), Path("runs/x"))
    observer.started(CELLS[0])
    observer.progress(Progress(CELLS[0], 1.0, 0.5, 30.0, "iteration"))
    observer.finished(a_record(SPEC, cell=CELLS[0].name, seconds=11.94))
    observer.over()
    assert stream.getvalue() == "[1/1] 01-tensor_add-corrected: done in 12 s\n"


def test_a_pipe_gets_a_line_per_minute_of_a_long_cell():
    stream = io.StringIO()
    observer = ProgressLines(stream)
    observer.planned(RunPlan(name="test", cells=CELLS), Path("runs/x"))
    observer.started(CELLS[0])
    for seconds in range(1, 200):
        observer.progress(Progress(CELLS[0], float(seconds), seconds / 400, 30.0, "iteration"))
    observer.started(CELLS[0])
    observer.progress(Progress(CELLS[0], 59.0, 0.5, 30.0, "iteration"))
    observer.progress(Progress(CELLS[0], 61.0, 0.5, 3e6, "voxel", left_seconds=7200.0))
    observer.noticed("can't read [0:1]: it is [red]damaged")
    assert stream.getvalue().splitlines() == [
        "[1/1] 15%, 30.0 it/s, 10 s left",
        "[1/1] 30%, 30.0 it/s, 8.4 s left",
        "[1/1] 45%, 30.0 it/s, 6.6 s left",
        "[1/1] 50%, 3.00 Mvoxel/s, 2 h left",
        "can't read [0:1]: it is [red]damaged",
    ]


def test_quiet_prints_nothing():
    stream = io.StringIO()
    assert type(make_observer(stream, quiet=True)) is SilentObserver


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_and_failure_messages():
    stream = Terminal()
    observer = make_observer(stream)
    assert isinstance(observer, ProgressBar)
    observer.planned(RunPlan(name="test", cells=CELLS), Path("runs/x"))
    observer.started(CELLS[0])
    observer.progress(Progress(CELLS[0], 6.0, 0.5, 30.0, "iteration"))
    observer.noticed("a block is [red]damaged")
    failed = Failed(kind="signal", phase="measure", message="SIGILL [red]")
    observer.finished(a_record(SPEC, cell=CELLS[0].name, outcome=failed))
    observer.over()
    text = stream.getvalue()
    for part in (
        "1/1",
        "50 %",
        "30.0 it/s, 6.0 s left",
        "FAILED (signal, measure): SIGILL [red]",
        "block is [red]damaged",
    ):
        assert part in text


def test_outcomes_are_formatted():
    assert format_outcome(a_record(outcome=Skipped(reason="no GPU"))) == "SKIPPED: no GPU"
    assert format_outcome(a_record(seconds=70.0)) == "done in 1 min 10 s"


def test_a_page_is_as_wide_as_the_terminal_and_plain_in_a_pipe(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    assert detect_page(Terminal()) == Page(width=100, colour=True)
    assert detect_page(io.StringIO()) == Page(width=100, colour=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert detect_page(Terminal()).colour is False
    monkeypatch.setenv("COLUMNS", "10")
    assert detect_page(Terminal()).width == 40


def test_list_wraps_and_gives_reasons_for_unavailable_entries():
    items = [
        Item(kind="workload", name="one", summary="Does one thing.", runs_here=True),
        Item(kind="probe", name="nvml", summary="Reads.", runs_here=False, reason="no driver", fix="pip install x"),
    ]
    assert listing_text(items, Page(width=60)).splitlines() == [
        "workloads",
        "  + one   Does one thing.",
        "",
        "probes",
        "  - nvml  Reads.",
        "          not here: no driver; try: pip install x",
    ]
    assert "\x1b[" in listing_text(items, Page(colour=True))


def a_measurement(validity, **options):
    spec = RunSpec(workload="tensor_add", options=options)
    facts = Facts(unit="iteration")
    return Measurement(spec=spec, records=(a_record(spec),), outcome=Completed(), facts=facts, validity=validity)


def test_the_overall_verdict_is_the_worst():
    noisy = Reason(code="other_tenants", sentence="they were loud")
    found = [
        a_measurement(Validity(verdict="VALID"), size=1),
        *(a_measurement(Validity(verdict="SUSPECT", reasons=(noisy,)), size=size) for size in (2, 3, 4, 5)),
        a_measurement(None, size=6),
    ]
    validity = judge_run(found)
    assert validity.verdict == "SUSPECT"
    (reason,) = validity.reasons
    assert reason.sentence == "they were loud (tensor_add 2; also tensor_add 3; tensor_add 4 and 1 more)"
    assert judge_run(found[-1:]) is None


def test_rows_are_named_by_the_options_that_differ():
    found = [a_measurement(Validity(verdict="VALID"), size=size, variant="corrected") for size in (1, 2)]
    (table,) = generic.presentation(found).tables
    assert table.title == "variant=corrected, device cpu"
    assert [(column.title, column.numeric) for column in table.columns[:2]] == [("size", True), ("rate", True)]
    assert [row.entries["by_size"] for row in table.rows] == [Number(value=1), Number(value=2)]
    assert [table.name_of(row) for row in table.rows] == ["size 1", "size 2"]
    assert generic.presentation([]).tables[0].title == "nothing was measured"


def test_a_private_update_is_named_with_its_epsilon():
    spec = RunSpec(workload="mnist_cnn", update="dp_fast", defaults={"update.delta": 1e-5})
    outcomes = [Completed(quality=Quality(epsilon=epsilon)) for epsilon in (0.1234, 0.25)]
    records = tuple(a_record(spec, outcome=outcome) for outcome in outcomes)
    found = Measurement(spec=spec, records=records, outcome=outcomes[0], facts=Facts(unit="image"))
    shown = generic.presentation([found])
    assert shown.tables[0].title == "update dp_fast, device cpu"
    assert shown.closing == ("mnist_cnn: epsilon 0.25 at delta 1e-05, for all steps of a process, warm-up included.",)
    plain = a_measurement(Validity(verdict="VALID"))
    mixed = generic.presentation([found, plain])
    assert mixed.tables[0].title == "device cpu"
    assert len(mixed.closing) == 1


@pytest.mark.parametrize(
    ("burst", "sustained", "throttled", "fell", "sentence"),
    [
        (300.0, 55.0, True, True, "Throttled: 300 it/s at first, 55.0 it/s at the end (18 %)."),
        (300.0, 55.0, False, True, "Slower at the end: 300 it/s at first, 55.0 it/s at the end (18 %)"),
        (300.0, 297.0, False, False, "No throttling: 300 it/s at first, 297 it/s at the end (99 %)."),
        (0.0, 5.0, False, False, "No throttling: 0 it/s at first, 5.00 it/s at the end."),
    ],
)
def test_a_soak_says_whether_the_rate_held(burst, sustained, throttled, fell, sentence):
    soak = Soak(burst=burst, sustained=sustained, throttled=throttled, fell=fell)
    measurement = Measurement(
        spec=SPEC, records=(a_record(SPEC),), outcome=Completed(), facts=Facts(unit="iteration"), soak=soak
    )
    (said,) = generic.presentation([measurement]).closing
    assert said.startswith(sentence)


def test_extra_columns_come_from_the_record(tmp_path):
    view = add_columns(api.load(a_stored_run(tmp_path)).view(), ["torch", "cpu"])
    (row,) = view.tables[0].rows
    assert (row.entries["torch"].text, row.entries["cpu"].text) == ("2.13.0", "Test CPU")
    assert [column.key for column in view.tables[0].columns][-2:] == ["torch", "cpu"]
    with pytest.raises(UnknownName, match="no column named 'torhc'; did you mean 'torch'"):
        add_columns(view, ["torhc"])


def test_the_number_of_threads_is_a_number_in_an_extra_column(tmp_path):
    run = stored_run(tmp_path, "test", [30.0], environment=Environment(python="3.11", threads=4))
    view = api.load(run).view()
    (row,) = add_columns(view, ["threads", "python"]).tables[0].rows
    assert (row.entries["threads"], row.entries["python"]) == (Number(value=4), Text(text="3.11"))


CARD = RunSpec(workload="tensor_add", device="cuda")


def measure_on_device(*memories):
    """Return a measurement with one process per given device memory."""
    rate = estimate(10.0, 9.0, 11.0, "it/s")
    return Measurement(
        spec=CARD,
        records=tuple(a_record(CARD, device_memory=memory) for memory in memories),
        outcome=Completed(),
        facts=Facts(unit="iteration"),
        kinds={"step": KindFigures(throughput=rate, step_seconds=rate.scaled(0.01, "s"))},
        validity=Validity(verdict="VALID"),
    )


def test_device_memory_has_a_column_if_a_device_was_measured():
    card = DeviceMemory(peak_bytes=6 * 10**9, limit_bytes=12 * 10**9)
    [table] = generic.presentation([measure_on_device(DeviceMemory(peak_bytes=10**9), card)]).tables
    assert [column.key for column in table.columns][-3:] == ["memory", "device_memory", "n"]
    entry = table.rows[0].entries["device_memory"]
    assert (entry.value, entry.unit, entry.method) == (6e9, "B", "largest peak of a device, out of 12.0 GB")
    [uncounted] = generic.presentation([measure_on_device(DeviceMemory(limit_bytes=10**9))]).tables
    assert isinstance(uncounted.rows[0].entries["device_memory"], Missing)
    [on_cpu] = generic.presentation([measure_on_device(None)]).tables
    assert "device_memory" not in [column.key for column in on_cpu.columns]


def test_show_states_the_device_memory_used(tmp_path):
    run = RunFolder(a_stored_run(tmp_path))
    [cell] = run.head().plan.cells
    memory = DeviceMemory(peak_bytes=6 * 10**9, limit_bytes=12 * 10**9)
    run.write_record(a_record(cell.spec, run=run.name, device_memory=memory), cell)
    stored = api.load(run.path)
    assert "peak 6.00 GB of 12.0 GB" in describe_run_in_full(stored.head, stored.cells, stored.view(), Page())


def test_show_prints_machine_cells_and_warm_up_cut(tmp_path):
    run = api.load(a_stored_run(tmp_path, label="mine"))
    text = describe_run_in_full(run.head, run.cells, run.view(), Page(width=80))
    for part in ("mine: Test CPU", "processor       Test CPU, 2 cores, 2 threads", "01-test: done in 0.0 s", "1.21 GB",
                 "rate over time (it/s)", "steady from the first step", run.cells[0].record.spec.key()):  # fmt: skip
        assert part in text


def test_a_machine_is_described_in_one_line():
    assert a_system(virtualisation="KVM").line().endswith("no accelerator, KVM virtual machine")


def test_a_run_names_its_machines_and_not_the_login_node():
    compute, login = a_system(), a_system(memory_bytes=1_000_000_000)
    other = a_system(memory_bytes=99_000_000_000)
    head = a_head([], system=login)
    assert head.machines([]) == (login,)
    assert head.machines([a_record(SPEC)]) == (login,)
    everywhere = head.machines([a_record(SPEC, nodes=(compute,)), a_record(SPEC, nodes=(compute, compute, other))])
    assert everywhere == (compute, compute, other)
    assert describe_machines(everywhere) == f"2 nodes, each {compute.line()}; {other.line()}"
