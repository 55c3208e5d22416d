"""A run folder: `runs/<name>.<timestamp>/`, with the plan, and one folder a cell. What lies where: schema/layout.py."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rigdyno.errors import DamagedRun, NewerStore, RigdynoError, StoreError, UsageError
from rigdyno.schema.layout import CAMPAIGN, CELLS, DAMAGED, HEAD, LOCK, RECORD, CellFolder, RowKind
from rigdyno.schema.participant import Participant
from rigdyno.schema.record import SCHEMA_VERSION, RunHead, RunRecord
from rigdyno.schema.samples import Header, read_rows
from rigdyno.schema.spec import Cell
from rigdyno.store.files import converted, disk_errors, read_raw, write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of some clusters' file systems: then nobody keeps off


@dataclass(frozen=True)
class StoredCell:
    record: RunRecord
    folder: Path

    def steps(self) -> tuple[tuple[Header, NDArray[np.void]], ...]:
        """The raw steps of every rank, in the order of the ranks."""
        return self._rows("steps")

    def phases(self) -> tuple[tuple[Header, NDArray[np.void]], ...]:
        """What each rank's steps were spent on, where that was timed."""
        return self._rows("phases")

    def telemetry(self) -> tuple[tuple[Header, NDArray[np.void]], ...]:
        """Of every node that was sampled, in the order of the nodes."""
        return self._rows("telemetry")

    def _rows(self, kind: RowKind) -> tuple[tuple[Header, NDArray[np.void]], ...]:
        found: dict[str, tuple[Header, NDArray[np.void]]] = {}
        for path in CellFolder(self.folder).row_files(kind):
            header, rows = read_rows(path)
            whose = self._known(header.participant, path)
            if path.parent.name != whose.id:
                raise DamagedRun(f"{path} holds rows of {whose.id}, and lies in the folder of another participant")
            if whose.id in found:
                raise DamagedRun(f"{path} holds rows of {whose.id}, and so does another file of this cell")
            found[whose.id] = replace(header, participant=whose), rows
        return tuple(sorted(found.values(), key=_place))

    def _known(self, named: Participant, path: Path) -> Participant:
        """As the record has it: rows of an old version don't tell the node."""
        for each in self.record.participants:
            if each.id == named.id and each.rank == named.rank:
                return each
        raise DamagedRun(f"{path} holds rows of {named.id}, which took no part in this cell")


def _place(samples: tuple[Header, NDArray[np.void]]) -> tuple[int, int]:
    whose = samples[0].participant
    return whose.rank if whose.rank is not None else -1, whose.node


def fresh_folder(root: Path, name: str, now: datetime) -> Path:
    """A second one in the same second gets a number."""
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
    """A run's or a campaign's: whoever works on it keeps others off."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held while the run is under way: a second `--resume`, and `clean`, keep off."""
        with disk_errors(self.path):
            descriptor = os.open(self.path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{self.path} is being run by another rigdyno") from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise StoreError(f"can't lock {self.path}: {(error.strerror or str(error)).lower()}") from error
            yield
        finally:
            os.close(descriptor)

    def is_running(self) -> bool:
        try:
            with (self.path / LOCK).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False  # nobody ever locked it, or it isn't ours to look at
        return False


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
            raise UsageError(f"{path} is of several suites; name one of the runs in it")
        if not (path / HEAD).is_file():
            raise UsageError(f"{path} is not a run folder: it has no {HEAD}")
        return cls(path)

    def write_head(self, head: RunHead) -> None:
        write_json(self.path / HEAD, head)

    def head(self) -> RunHead:
        path = self.path / HEAD
        return converted(_of_this_version(read_raw(path), path), RunHead, path)

    def cell_folder(self, cell: Cell) -> Path:
        """Inside this run, whatever a plan that was tampered with says: resuming empties the folder."""
        if cell.name in ("", ".", "..") or "/" in cell.name or "\0" in cell.name:
            raise DamagedRun(f"{self.path / HEAD} names a cell {cell.name!r}, which can't be a folder of its own")
        return self.path / CELLS / cell.name

    def fresh_cell_folder(self, cell: Cell) -> Path:
        """Empty: what an unfinished attempt left has no record, and is no result. With a record that can't be read
        it may be one, and is put aside."""
        folder = self.cell_folder(cell)
        with disk_errors(folder):
            if (folder / RECORD).exists():
                self._put_aside(folder)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        return folder

    def _put_aside(self, folder: Path) -> None:
        damaged = self.path / DAMAGED
        damaged.mkdir(exist_ok=True)
        taken = {path.name for path in damaged.iterdir()}
        names = (f"{folder.name}-{number}" for number in itertools.count(1))
        folder.rename(damaged / next(name for name in names if name not in taken))

    def is_finished(self, cell: Cell) -> bool:
        """Whether there is a result of this very configuration; a lost node or a cancelled job is none."""
        try:
            record = read_record(self.cell_folder(cell) / RECORD)
        except DamagedRun:
            return False
        if record.is_to_run_again:
            return False
        return record.spec.key() == cell.spec.key()

    def has_record(self, name: str) -> bool:
        """Of a cell of this name, whether it can be read or not."""
        return (self.path / CELLS / name / RECORD).exists()

    def write_record(self, record: RunRecord, cell: Cell) -> None:
        write_json(self.cell_folder(cell) / RECORD, record)

    def cells(self, warnings: list[str]) -> list[StoredCell]:
        """Every finished cell; what can't be read is named in `warnings`, and the others still served."""
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
    return converted(_of_this_version(read_raw(path), path), RunRecord, path)


def _of_this_version(raw: Any, path: Path) -> Any:
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
    """That hold one of these files, newest last."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if any((path / mark).is_file() for mark in marks)]
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def run_folders(root: Path) -> list[RunFolder]:
    """Newest last; those of campaigns lie in a store of their own."""
    return [RunFolder(path) for path in folders_with(root, HEAD)]
