"""Export to an SQLite database, which Datasette opens too: figures and raw rows as tables.

The table `about` describes the others, as does docs/export.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from rigdyno.analyse.matching import name_of
from rigdyno.base.errors import StoreError
from rigdyno.base.files import atomic_write, disk_errors
from rigdyno.report.export_data import (
    ExportedRun,
    describe_outcome,
    list_channels,
    read_rows,
    split_rows,
)
from rigdyno.schema.measured import Measurement
from rigdyno.schema.samples import CLOCK_JUMPED, WARM_UP
from rigdyno.store.folder import StoredCell

_STEP = """(
  participant_id integer not null references participants(id),
  kind text not null, start_ns integer not null, end_ns integer not null,
  items real not null, steps integer not null, warm_up integer not null, clock_jumped integer not null
)"""

SCHEMA = f"""
create table about (name text primary key, description text not null);
create table runs (
  name text primary key, suite text, label text, created_at text, rigdyno_version text, cpu text, rig text
);
create table cells (
  id integer primary key, run text not null references runs(name), name text not null, key text not null,
  workload text not null, options text not null, update_name text, arrangement text, launcher text,
  world_size integer, nodes integer, device text, threads integer, repeat integer, pair integer, arm text,
  attempt_of text, outcome text not null, reason text, started_at text, seconds real, peak_memory_bytes integer
);
create table participants (
  id integer primary key, cell_id integer not null references cells(id), name text not null, role text not null,
  rank integer, node integer, device text, clock text
);
create table steps {_STEP};
create table phases {_STEP};
create table channels (
  id integer primary key, participant_id integer not null references participants(id), name text not null, unit text
);
create table telemetry (channel_id integer not null references channels(id), at_ns integer not null, value real);
create table figures (
  run text not null references runs(name), key text not null, what text not null, kind text not null,
  metric text not null, better text, unit text, value real, low real, high real, confidence real, n integer,
  method text, verdict text
);
create table reasons (
  run text not null references runs(name), key text not null, what text not null, verdict text, code text,
  sentence text
);
"""

DESCRIPTIONS = (
    ("about", "Description of each table."),
    ("runs", "One row per run: its suite, label and machine, when it was made and by which version."),
    ("cells", "One row per process group that was measured, skipped or failed; key is the same for repeats of a "
              "configuration; options is JSON, defaults included; attempt_of names the cell of a search."),
    ("participants", "Participants of a cell: ranks that run steps, samplers that read probes; times of two are "
                     "comparable only if they are on the same clock."),
    ("steps", "Every step, warm-up included; a row with steps above 1 is a block of short steps; ns are on the "
              "participant's clock."),
    ("phases", "Phases of steps, if they were timed: kind is the phase."),
    ("channels", "Channels that a sampler read, with their units."),
    ("telemetry", "One row per reading; value is null if the probe gave none."),
    ("figures", "Results: value with interval, n and method, and the verdict."),
    ("reasons", "Why a verdict isn't VALID."),
)  # fmt: skip

Values = Iterator[tuple[Any, ...]]


def write(runs: Sequence[ExportedRun], path: Path) -> None:
    with disk_errors(path), atomic_write(path) as file:
        temporary = file.name
        try:
            with closing(sqlite3.connect(temporary)) as database:
                _fill(database, runs)
        except sqlite3.OperationalError as error:
            raise StoreError(f"can't write {path}: {error}") from error


def _fill(database: sqlite3.Connection, runs: Sequence[ExportedRun]) -> None:
    database.execute("pragma journal_mode = off")  # an incomplete file is thrown away
    database.execute("pragma synchronous = off")
    database.executescript(SCHEMA)
    tables = _Tables(database)
    tables.add("about", iter(DESCRIPTIONS))
    for run in runs:
        tables.add_run(run)
    database.commit()


class _Tables:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._cells, self._participants, self._channels = count(1), count(1), count(1)

    def add(self, table: str, rows: Values) -> None:
        first = next(rows, None)
        if first is not None:
            marks = ", ".join("?" * len(first))
            statement = f"insert into {table} values ({marks})"
            self._database.execute(statement, first)
            self._database.executemany(statement, rows)

    def add_run(self, run: ExportedRun) -> None:
        head, plan = run.head, run.head.plan
        facts = (head.created_at, head.rigdyno_version, head.system.cpu.model, head.system.line())
        self.add("runs", iter([(run.name, plan.suite, plan.label, *facts)]))
        for cell in run.cells:
            self._add_cell(run, cell)
        self.add("figures", (row for each in run.measurements for row in _figure_rows(run.name, each)))
        self.add("reasons", (row for each in run.measurements for row in _reason_rows(run.name, each)))

    def _add_cell(self, run: ExportedRun, cell: StoredCell) -> None:
        number, record, spec = next(self._cells), cell.record, cell.record.spec
        how = (spec.update, spec.arrangement, spec.launcher, spec.world_size, spec.nodes, spec.device, spec.threads)
        options = msgspec.json.encode(spec.resolved).decode()
        which = (number, run.name, record.cell, spec.key(), spec.workload, options)
        ended = (*describe_outcome(record), record.started_at, record.seconds, record.peak_memory_bytes)
        self.add("cells", iter([(*which, *how, record.repeat, record.pair, record.arm, record.attempt_of, *ended)]))
        numbers = {who.id: next(self._participants) for who in record.participants}
        self.add(
            "participants",
            ((numbers[w.id], number, w.id, w.role, w.rank, w.node, w.device, w.clock) for w in record.participants),
        )
        for kind in ("steps", "phases"):
            self.add(kind, _step_rows(cell, kind, numbers))
        self._add_telemetry(cell, numbers)

    def _add_telemetry(self, cell: StoredCell, numbers: dict[str, int]) -> None:
        for header, rows in read_rows(cell, "telemetry"):
            for name, unit in list_channels(header):
                number = next(self._channels)
                self.add("channels", iter([(number, numbers[header.participant.id], name, unit)]))
                self.add(
                    "telemetry",
                    (
                        (number, at, value if value == value else None)
                        for chunk in split_rows(rows)
                        for at, value in zip(chunk["at_ns"].tolist(), chunk[name].tolist(), strict=True)
                    ),
                )


def _step_rows(cell: StoredCell, kind: str, numbers: dict[str, int]) -> Values:
    for header, rows in read_rows(cell, kind):
        whose = numbers[header.participant.id]
        for chunk in split_rows(rows):
            columns = (chunk[name].tolist() for name in ("start_ns", "end_ns", "items", "steps", "kind", "flags"))
            for start, end, items, steps, which, flags in zip(*columns, strict=True):
                warm_up, jumped = int(bool(flags & WARM_UP)), int(bool(flags & CLOCK_JUMPED))
                yield whose, header.kinds[which], start, end, items, steps, warm_up, jumped


def _figure_rows(run: str, each: Measurement) -> Values:
    for kind, figures in each.kinds.items():
        for metric, found in figures.by_metric():
            known = (found.value, found.low, found.high, found.confidence, found.n, found.method)
            what = (run, each.spec.key(), name_of(each.spec), kind, metric.name, metric.better, found.unit)
            yield (*what, *known, each.status_of(kind))


def _reason_rows(run: str, each: Measurement) -> Values:
    for reason in each.validity.reasons if each.validity is not None else ():
        yield run, each.spec.key(), name_of(each.spec), each.status, reason.code, reason.sentence
