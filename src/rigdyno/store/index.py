"""An SQLite index of all finished cells, so that a leaderboard needn't open every folder.

The folders are authoritative: the index is rebuilt if it is missing, old or damaged, and updated by comparing file
times on every use. Several processes may do so at once.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rigdyno.base.errors import RigdynoError
from rigdyno.schema.layout import CELLS, RECORD
from rigdyno.store.folder import read_record

FILE = ".index.sqlite"

VERSION = 1

_TABLE = """
create table if not exists cells (
  path blob primary key, stamp text not null,
  run text, suite text, workload text, label text, outcome text, started_at text, error text
)
"""


@dataclass(frozen=True)
class Entry:
    path: Path  # the cell's folder
    run: str
    suite: str | None
    workload: str
    label: str | None
    outcome: str
    started_at: str


def find(root: Path, *, suite: str | None = None, workload: str | None = None) -> tuple[list[Entry], list[str]]:
    """Return the finished cells in the order they were started, and a warning for each that can't be read."""
    for _attempt in range(2):
        try:
            return _query(str(root / FILE), root, suite, workload)
        except sqlite3.OperationalError:
            break  # read-only, full, locked too long, or no such folder
        except sqlite3.DatabaseError:
            if not _remove_index(root):
                break
    return _query(":memory:", root, suite, workload)


def _remove_index(root: Path) -> bool:
    """Remove a damaged index, and its journal, which would be replayed into the next one. Return whether it worked."""
    try:
        for name in (FILE, f"{FILE}-journal"):
            (root / name).unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _query(database: str, root: Path, suite: str | None, workload: str | None) -> tuple[list[Entry], list[str]]:
    with closing(_open_index(database)) as connection:
        _refresh(connection, root)
        rows = connection.execute(
            "select path, run, suite, workload, label, outcome, started_at from cells where error is null"
            " and (?1 is null or suite = ?1) and (?2 is null or workload = ?2) order by started_at, path",
            (suite, workload),
        ).fetchall()
        errors = connection.execute("select error from cells where error is not null order by path").fetchall()
    entries = [Entry(root / os.fsdecode(row[0]), *row[1:]) for row in rows]
    return entries, [f"skipped: {error}" for (error,) in errors]


def _open_index(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=5, isolation_level=None)
    try:
        if _read_version(connection) != VERSION:
            _create_table(connection)
        _require_table(connection)
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def _read_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("pragma user_version").fetchone()[0])


def _create_table(connection: sqlite3.Connection) -> None:
    """Create the table, unless another process has created it meanwhile: it may be filled and in use already."""
    connection.execute("begin immediate")
    if _read_version(connection) != VERSION:
        connection.execute("drop table if exists cells")
        connection.execute(_TABLE)
        connection.execute(f"pragma user_version = {VERSION}")
    connection.execute("commit")


def _require_table(connection: sqlite3.Connection) -> None:
    try:
        connection.execute(
            "select path, stamp, run, suite, workload, label, outcome, started_at, error from cells limit 1"
        )
    except sqlite3.OperationalError as error:
        if "no such" not in str(error):
            raise
        raise sqlite3.DatabaseError(f"unexpected table: {error}") from error


def _refresh(connection: sqlite3.Connection, root: Path) -> None:
    on_disk = _read_stamps(root)
    known = dict(connection.execute("select path, stamp from cells").fetchall())
    gone = [(path,) for path in known if path not in on_disk]
    changed = [path for path, stamp in on_disk.items() if known.get(path) != stamp]
    if not gone and not changed:
        return
    rows = [_make_row(root, path, on_disk[path]) for path in changed]
    connection.execute("begin immediate")
    connection.executemany("delete from cells where path = ?", gone)
    connection.executemany("insert or replace into cells values (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    connection.execute("commit")


def _read_stamps(root: Path) -> dict[bytes, str]:
    """Return a stamp (time and size) for every record below the root, by the cell's folder.

    Paths are bytes, because the name of a folder needn't be UTF-8.
    """
    stamps = {}
    for path in chain(root.glob(f"*/{CELLS}/*/{RECORD}"), root.glob(f"*/*/{CELLS}/*/{RECORD}")):  # runs of campaigns
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue  # deleted just now by another rigdyno
        stamps[os.fsencode(path.parent.relative_to(root))] = f"{stat.st_mtime_ns}.{stat.st_size}"
    return stamps


def _make_row(root: Path, path: bytes, stamp: str) -> tuple[bytes | str | None, ...]:
    try:
        record = read_record(root / os.fsdecode(path) / RECORD)
    except RigdynoError as error:
        words = str(error).encode("utf-8", "backslashreplace").decode()
        return path, stamp, None, None, None, None, None, None, words
    outcome = type(record.outcome).__name__.lower()
    return (
        path, stamp, record.run, record.suite, record.spec.workload, record.label, outcome, record.started_at, None,
    )  # fmt: skip
