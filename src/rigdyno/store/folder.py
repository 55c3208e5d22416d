"""Run folders: `runs/<name>.<timestamp>/` holds the plan and one folder per cell. See schema/layout.py for files."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rigdyno.base.errors import DamagedRun, NewerStore, RigdynoError, StoreError, UsageError, os_error_reason
from rigdyno.base.files import NO_LOCKS, decode_json, disk_errors, lock_file, read_raw, write_json
from rigdyno.schema.layout import CAMPAIGN, CELLS, DAMAGED, HEAD, LOCK, RECORD, CellFolder, RowKind
from rigdyno.schema.record import SCHEMA_VERSION, RunHead, RunRecord
from rigdyno.schema.samples import Header, read_rows
from rigdyno.schema.spec import Cell, Participant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class StoredCell:
    record: RunRecord
    folder: Path

    def steps(self) -> tuple[tuple[Header, NDArray[np.void]], ...]:
        """Return the raw steps of every rank, in the order of the ranks."""
        return self._rows("steps")

    def phases(self) -> tuple[tuple[Header, NDArray[np.void]], ...]:
        """Return the timed phases of each rank's steps; empty if they were not timed."""
        return self._rows("phases")

    def telemetry(self) -> tuple[tuple[Header, NDArray[np.void]], ...]:
        """Return the telemetry of every sampled node, in the order of the nodes."""
        return self._rows("telemetry")

    def _rows(self, kind: RowKind) -> tuple[tuple[Header, NDArray[np.void]], ...]:
        found: dict[str, tuple[Header, NDArray[np.void]]] = {}
        for path in CellFolder(self.folder).row_files(kind):
            header, rows = read_rows(path)
            owner = self._find_participant(header.participant, path)
            if path.parent.name != owner.id:
                raise DamagedRun(f"{path} holds rows of {owner.id}, but is in the folder of another participant")
            if owner.id in found:
                raise DamagedRun(f"{path} holds rows of {owner.id}, and so does another file of this cell")
            found[owner.id] = replace(header, participant=owner), rows
        return tuple(sorted(found.values(), key=_sort_key))

    def _find_participant(self, named: Participant, path: Path) -> Participant:
        """Return the participant as the record has it: rows of an old version don't contain the node."""
        for each in self.record.participants:
            if each.id == named.id and each.rank == named.rank:
                return each
        raise DamagedRun(f"{path} holds rows of {named.id}, which took no part in this cell")


def _sort_key(samples: tuple[Header, NDArray[np.void]]) -> tuple[int, int]:
    owner = samples[0].participant
    return owner.rank if owner.rank is not None else -1, owner.node


def fresh_folder(root: Path, name: str, now: datetime) -> Path:
    """Create a new folder named by time. A second one within the same second gets a number."""
    stem = f"{name}.{now:%Y%m%d-%H%M%S}"
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        with disk_errors(path):
            try:
                path.mkdir()
            except FileExistsError:
                continue
        return path
    raise StoreError(f"can't find a free folder name for {stem} in {root}")


class StoredFolder:
    """The folder of a run or a campaign, with a lock against concurrent use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, so that a second `--resume` and `clean` are refused meanwhile."""
        with disk_errors(self.path):
            (self.path / LOCK).touch(0o644)
        with ExitStack() as held:
            try:
                is_free = held.enter_context(lock_file(self.path / LOCK, "flock"))
            except OSError as error:
                if error.errno not in NO_LOCKS:  # some cluster file systems have no locks: then run without one
                    raise StoreError(f"can't lock {self.path}: {os_error_reason(error)}") from error
                is_free = True
            if not is_free:
                raise UsageError(f"{self.path} is being run by another rigdyno")
            yield

    def is_running(self) -> bool:
        """Return whether another process, or another part of this one, holds the folder's lock."""
        try:
            with lock_file(self.path / LOCK, "flock", shared=True) as is_free:
                return not is_free
        except OSError:
            return False  # it was never locked, or this user may not read it


class RunFolder(StoredFolder):
    @classmethod
    def create(cls, root: Path, name: str, now: datetime) -> RunFolder:
        path = fresh_folder(root, name, now)
        with disk_errors(path):
            (path / CELLS).mkdir()
        return cls(path)

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        if not path.is_dir():
            raise UsageError(f"no run folder at {path}; `rigdyno report` shows the newest")
        if (path / CAMPAIGN).is_file():
            raise UsageError(f"{path} is a campaign of several suites; name one of the runs in it")
        if not (path / HEAD).is_file():
            raise UsageError(f"{path} is not a run folder: it has no {HEAD}")
        return cls(path)

    def write_head(self, head: RunHead) -> None:
        write_json(self.path / HEAD, head)

    def head(self) -> RunHead:
        path = self.path / HEAD
        return decode_json(_require_version(read_raw(path), path), RunHead, path)

    def cell_folder(self, cell: Cell) -> Path:
        """Return the folder of a cell. It is always inside this run, even if the plan was tampered with: resuming
        empties the folder."""
        if cell.name in ("", ".", "..") or "/" in cell.name or "\0" in cell.name:
            raise DamagedRun(f"{self.path / HEAD} names a cell {cell.name!r}, which is not a valid folder name")
        return self.path / CELLS / cell.name

    def fresh_cell_folder(self, cell: Cell) -> Path:
        """Create an empty folder for a cell.

        Files of an unfinished attempt have no record, are no result, and are deleted. If there is a record that can't
        be read, they may be a result, and are moved to another folder."""
        folder = self.cell_folder(cell)
        with disk_errors(folder):
            if (folder / RECORD).exists():
                self._move_to_damaged(folder)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        return folder

    def _move_to_damaged(self, folder: Path) -> None:
        damaged = self.path / DAMAGED
        damaged.mkdir(exist_ok=True)
        taken = {path.name for path in damaged.iterdir()}
        names = (f"{folder.name}-{number}" for number in itertools.count(1))
        folder.rename(damaged / next(name for name in names if name not in taken))

    def is_finished(self, cell: Cell) -> bool:
        """Return whether there is a result of this exact configuration. A lost node or a cancelled job is no result."""
        try:
            record = read_record(self.cell_folder(cell) / RECORD)
        except DamagedRun:
            return False
        if record.is_to_run_again:
            return False
        return record.spec.key() == cell.spec.key()

    def has_record(self, name: str) -> bool:
        """Return whether a cell of this name has a record, readable or not."""
        return (self.path / CELLS / name / RECORD).exists()

    def write_record(self, record: RunRecord, cell: Cell) -> None:
        write_json(self.cell_folder(cell) / RECORD, record)

    def cells(self, warnings: list[str]) -> list[StoredCell]:
        """Return every finished cell. Records that can't be read are skipped and named in `warnings`."""
        found = []
        for folder in sorted((self.path / CELLS).glob("*/")):
            if not (folder / RECORD).exists():
                continue
            try:
                found.append(StoredCell(read_record(folder / RECORD), folder))
            except RigdynoError as error:
                warnings.append(f"skipped: {error}")
        return found


def read_record(path: Path) -> RunRecord:
    return decode_json(_require_version(read_raw(path), path), RunRecord, path)


def _require_version(raw: Any, path: Path) -> Any:
    """Return the document unchanged, or raise if another version of Rigdyno wrote it."""
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedRun(f"{path} has no schema_version")
    if version > SCHEMA_VERSION:
        raise NewerStore(
            f"{path} was written by a newer Rigdyno (schema {version}, this one reads {SCHEMA_VERSION}); upgrade it"
        )
    if version < SCHEMA_VERSION:
        raise DamagedRun(f"{path} has schema {version}, which no release has written; measure again")
    return raw


def folders_with(root: Path, *marks: str) -> list[Path]:
    """Return the folders that hold one of these files, newest last."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if any((path / mark).is_file() for mark in marks)]
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def run_folders(root: Path) -> list[RunFolder]:
    """Return the runs directly in this folder, newest last; runs of a campaign are in the campaign's folder."""
    return [RunFolder(path) for path in folders_with(root, HEAD)]
