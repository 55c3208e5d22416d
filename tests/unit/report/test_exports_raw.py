"""Test exports of raw rows: independent parsers read them back, event by event and row by row."""

from __future__ import annotations

import json
import sqlite3
import struct
import tracemalloc
from contextlib import closing

import numpy as np
import pytest
from msgspec.structs import replace

from driving import here
from rigdyno.analyse.process import steady_of
from rigdyno.base.errors import StoreError
from rigdyno.commands.common.output import EXPORTS
from rigdyno.report.export_data import ExportedRun
from rigdyno.report.exports import perfetto, sqlite
from rigdyno.schema.channel import Channel
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import Failed, Skipped
from rigdyno.schema.samples import STEP_FIELDS, STEP_STRUCT, WARM_UP, Header, RowFile, telemetry_header
from rigdyno.schema.spec import Cell, ClockPair, RunPlan, RunSpec, assign_participants, sampler_of
from rigdyno.store.folder import RunFolder
from support import NOW, a_head, a_rank, a_record, rows_path

HOSTILE = "\"},]</script>\x01 \u2028 '; drop table steps; --"
MS = 1_000_000
ROLES = (("rank", "rank"), ("node", "sampler"))
SPEC = RunSpec(workload="tensor_add", options={"variant": "as_published"}, world_size=2, nodes=2)
AHEAD_NS = 5_000_000_000  # the second node's clock


def write_rows(path, header, rows, form=STEP_STRUCT):
    file = RowFile(path, header)
    file.append(b"".join(struct.pack(form, *row) for row in rows))
    file.close()


def make_steps(begin, count=60, warm_up=10):
    """Return steps of 30 ms end to end, the first ten slower and flagged as warm-up."""
    at = begin
    for number in range(count):
        length = (60 if number < warm_up else 30) * MS
        yield at, at + length, 2.0, 1, 0, WARM_UP if number < warm_up else 0
        at += length


@pytest.fixture
def a_run(tmp_path):
    """Store two ranks on two nodes whose clocks differ by five seconds, a failed cell and a skipped cell."""
    cells = [
        Cell(name=name, spec=SPEC, participants=assign_participants(2, 2, "cpu")) for name in ("01-a", "02-b", "03-c")
    ]
    folder = RunFolder.create(tmp_path / "runs", "test", NOW)
    folder.write_head(a_head(cells, plan=RunPlan(name="test", label=HOSTILE, cells=tuple(cells))))
    begin = 100 * 1000 * MS
    inside = folder.fresh_cell_folder(cells[0])
    for rank, ahead in ((0, 0), (1, AHEAD_NS)):
        header = Header(fields=STEP_FIELDS, kinds=("step",), participant=a_rank(rank, rank))
        write_rows(rows_path(inside, name=f"rank{rank}"), header, make_steps(begin + ahead))
        phases = Header(fields=STEP_FIELDS, kinds=("forward", "backward"), participant=a_rank(rank, rank))
        halves = [(begin + ahead, begin + ahead + 10 * MS, 2.0, 1, 0, 0)]
        write_rows(rows_path(inside, "phases", f"rank{rank}"), phases, halves)
        meters = telemetry_header([Channel("cpu0", "share"), Channel("power_w", "W")], sampler_of(rank))
        readings = [(begin + ahead + n * 100 * MS, n / 10, float("nan") if n == 1 else 40.0) for n in range(3)]
        write_rows(rows_path(inside, "telemetry", f"node{rank}"), meters, readings, "<qdd")
    clocks = [
        ClockPair(clock="node1", when=when, at_ns=at, offset_ns=AHEAD_NS, uncertainty_ns=MS)
        for when, at in (("start", begin - 1), ("end", begin + 10**10))
    ]
    common = {"run": folder.name, "label": HOSTILE}
    exits = {"rank0": 0, "rank1": 0, "node0": -9, "node1": 0}  # a sampler died: a reason for SUSPECT
    folder.write_record(a_record(SPEC, cell="01-a", clocks=tuple(clocks), exit_codes=exits, **common), cells[0])
    outcomes = (Failed(kind="exception", phase="build", message=HOSTILE), Skipped(reason="not here"))
    for cell, outcome in zip(cells[1:], outcomes, strict=True):
        folder.fresh_cell_folder(cell)
        folder.write_record(a_record(SPEC, cell=cell.name, outcome=outcome, **common), cell)
    return folder


def load_exported_run(folder):
    from rigdyno.api import Run

    run = Run(folder, folder.head())
    return ExportedRun(folder.name, run.head, run.cells, run.measurements)


def export_trace(folder, tmp_path):
    path = tmp_path / "trace.json"
    perfetto.write([load_exported_run(folder)], path)
    return json.loads(path.read_text(encoding="utf-8"))


def events_of_phase(document, phase):
    return [event for event in document["traceEvents"] if event["ph"] == phase]


class TestPerfetto:
    """Compare with the documented format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"""

    def test_every_event_has_the_fields_of_its_phase(self, a_run, tmp_path):
        document = export_trace(a_run, tmp_path)
        assert document["displayTimeUnit"] == "ms"
        needed = {"X": {"name", "ts", "dur", "pid", "tid"}, "C": {"name", "ts", "pid", "args"}}
        needed |= {"i": {"name", "ts", "pid", "tid", "s"}, "M": {"name", "pid", "args"}}
        for event in document["traceEvents"]:
            assert needed[event["ph"]] <= event.keys()
            assert event.get("ts", 0) >= 0
            assert event.get("dur", 0) >= 0
        assert all(isinstance(event["args"]["value"], float) for event in events_of_phase(document, "C"))

    def test_every_participant_is_a_process_with_its_name(self, a_run, tmp_path):
        document = export_trace(a_run, tmp_path)
        named = {e["pid"]: e["args"]["name"] for e in events_of_phase(document, "M") if e["name"] == "process_name"}
        ranks, samplers = ({f"{what}{n} (node {n}, {role})" for n in (0, 1)} for what, role in ROLES)
        assert set(named.values()) == {*ranks, *samplers, "runs"}
        assert {event["pid"] for event in document["traceEvents"]} == named.keys()

    def test_steps_of_all_nodes_are_on_the_clock_of_node_0(self, a_run, tmp_path):
        """The clock of the other node is five seconds ahead; after correction, both ranks start at the same time."""
        steps = [event for event in events_of_phase(export_trace(a_run, tmp_path), "X") if event["name"] == "step"]
        by_process = {pid: [e for e in steps if e["pid"] == pid] for pid in {event["pid"] for event in steps}}
        assert [len(events) for events in by_process.values()] == [60, 60]
        wanted = [start / 1000 for start, *_ in make_steps(0)]
        for events in by_process.values():
            assert [event["ts"] for event in events] == pytest.approx(wanted)
            assert [event["dur"] for event in events[:11]] == [60_000.0] * 10 + [30_000.0]
            assert [event["cat"] for event in events[9:11]] == ["warm-up", "measured"]

    def test_slices_of_a_thread_never_overlap(self, a_run, tmp_path):
        threads = {}
        for event in events_of_phase(export_trace(a_run, tmp_path), "X"):
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
        for events in threads.values():
            events.sort(key=lambda event: event["ts"])
            ends = [event["ts"] + event["dur"] for event in events]
            assert all(end <= later["ts"] + 1e-6 for end, later in zip(ends, events[1:], strict=False))

    def test_channels_are_counters_and_missing_readings_are_left_out(self, a_run, tmp_path):
        counters = events_of_phase(export_trace(a_run, tmp_path), "C")
        power = [(event["ts"], event["args"]["value"]) for event in counters if event["name"] == "power_w (W)"]
        assert sorted(power) == [(0.0, 40.0), (0.0, 40.0), (200_000.0, 40.0), (200_000.0, 40.0)]

    def test_the_warm_up_ends_where_the_analysis_cuts_it(self, a_run, tmp_path):
        [cell] = [cell for cell in a_run.cells([]) if cell.record.cell == "01-a"]
        rows = cell.steps()[0][1]
        start = steady_of(rows).start
        assert start > 0
        cuts = [
            event for event in events_of_phase(export_trace(a_run, tmp_path), "i") if event["name"] == "warm-up ends"
        ]
        wanted = (int(rows["start_ns"][start]) - int(rows["start_ns"][0])) / 1000
        assert [event["ts"] for event in cuts] == pytest.approx([wanted, wanted])

    def test_reasons_of_the_verdict_are_events(self, a_run, tmp_path):
        document = export_trace(a_run, tmp_path)
        [measurement] = load_exported_run(a_run).measurements
        said = {event["args"]["reason"] for event in events_of_phase(document, "i") if "reason" in event["args"]}
        assert said == {reason.sentence for reason in measurement.validity.reasons}
        assert said
        [cell] = [event for event in events_of_phase(document, "X") if event["cat"] == "cell"]
        assert cell["args"]["verdict"] == measurement.status
        assert cell["args"]["label"] == HOSTILE

    def test_a_cell_of_another_boot_is_placed_by_the_wall_clock(self, a_run, tmp_path):
        """The monotonic clock restarted at zero, a day later by the wall clock."""
        cell = Cell(name="04-d", spec=SPEC, participants=assign_participants(2, 2, "cpu"))
        inside = a_run.fresh_cell_folder(cell)
        header = Header(fields=STEP_FIELDS, kinds=("step",), participant=a_rank())
        write_rows(rows_path(inside), header, make_steps(7 * MS))
        a_run.write_record(a_record(SPEC, run=a_run.name, cell="04-d", started_at="2026-01-03T03:04:05+00:00"), cell)
        cells = {e["name"]: e["ts"] for e in events_of_phase(export_trace(a_run, tmp_path), "X") if e["cat"] == "cell"}
        assert cells["04-d"] - cells["01-a"] == pytest.approx(86_400e6)

    def test_damaged_rows_are_left_out_and_others_exported(self, a_run, tmp_path):
        (CellFolder(a_run.path / "cells" / "01-a").participant("rank1").rows("steps")).write_bytes(b"{")
        document = export_trace(a_run, tmp_path)
        assert {event["name"] for event in events_of_phase(document, "X")} == {"01-a", "forward"}


class TestSqlite:
    @pytest.fixture
    def database(self, a_run, tmp_path):
        path = tmp_path / "run.db"
        sqlite.write([load_exported_run(a_run)], path)
        with closing(sqlite3.connect(path)) as database:
            yield database

    def test_the_database_is_intact_and_every_reference_resolves(self, database):
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert database.execute("pragma foreign_key_check").fetchall() == []

    def test_every_stored_row_is_exported_unchanged(self, a_run, database):
        [cell] = [cell for cell in a_run.cells([]) if cell.record.cell == "01-a"]
        for header, rows in cell.steps():
            found = database.execute(
                "select start_ns, end_ns, items, steps, warm_up from steps join participants p on p.id = participant_id"
                " where p.name = ? order by start_ns", (header.participant.id,),
            ).fetchall()  # fmt: skip
            wanted = np.column_stack([rows[n].astype(float) for n in ("start_ns", "end_ns", "items", "steps")])
            assert np.array_equal(np.array(found)[:, :4], wanted)
            assert [row[4] for row in found] == [1] * 10 + [0] * 50

    def test_a_missing_reading_is_null(self, database):
        query = (
            "select value from telemetry join channels c on c.id = channel_id where c.name = 'power_w' order by at_ns"
        )
        assert database.execute(query).fetchall() == [(40.0,), (None,), (40.0,), (40.0,), (None,), (40.0,)]

    def test_figures_and_reasons_match_the_report(self, a_run, database):
        [measurement] = load_exported_run(a_run).measurements
        rate = measurement.throughput()
        [found] = database.execute("select value, low, high, n, unit, verdict from figures where metric = 'throughput'")
        assert found == (rate.value, rate.low, rate.high, rate.n, rate.unit, measurement.status)
        codes = [code for (code,) in database.execute("select code from reasons")]
        assert codes == [reason.code for reason in measurement.validity.reasons]

    def test_failed_and_skipped_cells_are_exported_with_their_reasons(self, database):
        rows = database.execute("select name, outcome, reason from cells order by name").fetchall()
        assert rows == [("01-a", "completed", None), ("02-b", "failed", HOSTILE), ("03-c", "skipped", "not here")]

    def test_every_table_is_described_in_the_database_and_the_documentation(self, database):
        from pathlib import Path

        tables = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
        assert {name for (name,) in database.execute("select name from about")} == tables
        documented = (Path(__file__).parents[3] / "docs" / "export.md").read_text(encoding="utf-8")
        for table in tables:
            assert f"`{table}`" in documented
            for column in database.execute(f"pragma table_info({table})"):
                assert f"`{column[1]}`" in documented, f"{table}.{column[1]}"

    def test_an_existing_file_is_replaced_as_a_whole(self, a_run, tmp_path):
        path = tmp_path / "run.db"
        path.write_bytes(b"no database")
        sqlite.write([load_exported_run(a_run)], path)
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("select count(*) from runs").fetchone() == (1,)


@pytest.mark.parametrize("form", EXPORTS)
class TestExportCommand:
    def test_the_command_writes_a_file_and_names_it(self, a_run, tmp_path, form):
        done = here("export", str(a_run.path), "--to", form, "--out", "x.out", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Wrote x.out, ")
        assert (tmp_path / "x.out").stat().st_size > 0
        assert [path.name for path in tmp_path.glob(".*")] == []

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("nothing", "--out", "x"), "no run folder at"),
            (("RUN", "--out", "missing/x"), "can't write missing/x: no such file or directory"),
            (("RUN", "--out", "file/x"), "a part of that path is a file"),
            (("RUN", "--out", "."), "is a directory"),
            (("RUN",), "Missing option '--out'"),
        ],
    )
    def test_an_error_is_one_line(self, a_run, tmp_path, form, arguments, words):
        (tmp_path / "file").write_text("")
        given = [str(a_run.path) if word == "RUN" else word for word in arguments]
        done = here("export", *given, "--to", form, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert words in done.stderr


def test_an_unknown_format_is_rejected_with_the_known_ones(tmp_path):
    done = here("export", "--to", "excel", "--out", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "'excel' is not one of 'bencher', 'github-action-benchmark', 'perfetto', 'sqlite'" in done.stderr


@pytest.mark.parametrize("module", [perfetto, sqlite])
def test_a_full_disk_raises_an_error_and_leaves_no_partial_file(a_run, tmp_path, module):
    """Limit the size of files to a few pages, which acts like a full disk."""
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StoreError, match="can't write"):
            module.write([load_exported_run(a_run)], tmp_path / "out.x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not (tmp_path / "out.x").exists()
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_the_arms_of_a_duel_have_separate_processes(a_run, tmp_path):
    [cell] = [cell for cell in a_run.cells([]) if cell.record.cell == "01-a"]
    records = [replace(cell.record, pair=1, arm=arm) for arm in ("a", "b")]
    cells = [type(cell)(record, cell.folder) for record in records]
    perfetto.write([ExportedRun("x", a_run.head(), cells, ())], tmp_path / "duel.json")
    document = json.loads((tmp_path / "duel.json").read_text())
    names = [e["args"]["name"] for e in events_of_phase(document, "M") if e["name"] == "process_name"]
    assert {"rank0 (node 0, rank), arm A", "rank0 (node 0, rank), arm B"} <= set(names)


@pytest.mark.parametrize("module", [perfetto, sqlite])
def test_memory_is_bounded_by_the_rows_and_not_by_the_output(tmp_path, module):
    """A Python event takes about a thousand bytes, a stored row 32."""
    peaks = {}
    for count in (20_000, 80_000):
        folder = RunFolder.create(tmp_path / "runs", "test", NOW)
        cell = Cell(name="01-a", spec=SPEC, participants=assign_participants(1, 1, "cpu"))
        folder.write_head(a_head([cell]))
        rows = np.zeros(count, np.dtype(list(STEP_FIELDS)))
        rows["start_ns"], rows["end_ns"] = np.arange(count) * MS + MS, np.arange(count) * MS + 2 * MS
        rows["items"] = rows["steps"] = 1
        file = RowFile(
            rows_path(folder.fresh_cell_folder(cell)), Header(fields=STEP_FIELDS, kinds=("step",), participant=a_rank())
        )
        file.append(rows.tobytes())
        file.close()
        folder.write_record(a_record(RunSpec(workload="tensor_add"), run=folder.name, cell="01-a"), cell)
        material = ExportedRun(folder.name, folder.head(), folder.cells([]), ())
        tracemalloc.start()
        module.write([material], tmp_path / "out")
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (peaks[80_000] - peaks[20_000]) / 60_000 < 400
