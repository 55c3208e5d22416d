"""For SQLite, and for Datasette that opens it: figures and raw rows as tables, docs/export.md says what is in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from rigdyno.analyse.matching import name_of
from rigdyno.errors import StoreError
from rigdyno.report.conversions._material import Converted, channels_of, outcome_words, pieces, rows_of
from rigdyno.report.conversions._tables import DESCRIBED, SCRIPT
from rigdyno.schema.measured import Measurement
from rigdyno.schema.samples import CLOCK_JUMPED, WARM_UP
from rigdyno.store.files import replaced
from rigdyno.store.folder import StoredCell

Values = Iterator[tuple[Any, ...]]


def write(runs: Sequence[Converted], path: Path) -> None:
    with replaced(path) as file:
        temporary = file.name
        try:
            with closing(sqlite3.connect(temporary)) as database:
                _fill(database, runs)
        except sqlite3.OperationalError as error:
            raise StoreError(f"can't write {path}: {error}") from error


def _fill(database: sqlite3.Connection, runs: Sequence[Converted]) -> None:
    database.execute("pragma journal_mode = off")  # what is written is thrown away if it isn't whole
    database.execute("pragma synchronous = off")
    database.executescript(SCRIPT)
    tables = _Tables(database)
    tables.add("about", iter(DESCRIBED))
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

    def add_run(self, run: Converted) -> None:
        head, plan = run.head, run.head.plan
        facts = (head.created_at, head.rigdyno_version, head.system.cpu.model, head.system.line())
        self.add("runs", iter([(run.name, plan.suite, plan.label, *facts)]))
        for cell in run.cells:
            self._add_cell(run, cell)
        self.add("figures", (row for each in run.measurements for row in _figures(run.name, each)))
        self.add("reasons", (row for each in run.measurements for row in _reasons(run.name, each)))

    def _add_cell(self, run: Converted, cell: StoredCell) -> None:
        number, record, spec = next(self._cells), cell.record, cell.record.spec
        how = (spec.update, spec.arrangement, spec.launcher, spec.world_size, spec.nodes, spec.device, spec.threads)
        options = msgspec.json.encode(spec.resolved).decode()
        which = (number, run.name, record.cell, spec.key(), spec.workload, options)
        ended = (*outcome_words(record), record.started_at, record.seconds, record.peak_memory_bytes)
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
        for header, rows in rows_of(cell, "telemetry"):
            for name, unit in channels_of(header):
                number = next(self._channels)
                self.add("channels", iter([(number, numbers[header.participant.id], name, unit)]))
                self.add(
                    "telemetry",
                    (
                        (number, at, value if value == value else None)
                        for piece in pieces(rows)
                        for at, value in zip(piece["at_ns"].tolist(), piece[name].tolist(), strict=True)
                    ),
                )


def _step_rows(cell: StoredCell, kind: str, numbers: dict[str, int]) -> Values:
    for header, rows in rows_of(cell, kind):
        whose = numbers[header.participant.id]
        for piece in pieces(rows):
            columns = (piece[name].tolist() for name in ("start_ns", "end_ns", "items", "steps", "kind", "flags"))
            for start, end, items, steps, which, flags in zip(*columns, strict=True):
                warm_up, jumped = int(bool(flags & WARM_UP)), int(bool(flags & CLOCK_JUMPED))
                yield whose, header.kinds[which], start, end, items, steps, warm_up, jumped


def _figures(run: str, each: Measurement) -> Values:
    for kind, figures in each.kinds.items():
        for metric, found in figures.by_metric():
            known = (found.value, found.low, found.high, found.confidence, found.n, found.method)
            what = (run, each.spec.key(), name_of(each.spec), kind, metric.name, metric.better, found.unit)
            yield (*what, *known, each.status_of(kind))


def _reasons(run: str, each: Measurement) -> Values:
    for reason in each.validity.reasons if each.validity is not None else ():
        yield run, each.spec.key(), name_of(each.spec), each.status, reason.code, reason.sentence
