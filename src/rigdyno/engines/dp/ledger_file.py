"""The ledger's copy on disk: never behind the count, whatever happens between two writes, and one process at a time.

{"format": "rigdyno privacy ledger", "version": 1, "histories": {
  "<random name>": [{"noise_multiplier": 1.1, "sample_rate": 0.01, "steps": 640}], ...}}
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from rigdyno.engines.dp.accounting import Spent
from rigdyno.engines.dp.errors import BadSetting

FORMAT, VERSION = "rigdyno privacy ledger", 1
MOST_BYTES = 64 * 2**20  # a history takes some 150: nothing so large is a ledger
MOST_REASON = 200  # characters: a damaged file may hold anything

Histories = dict[str, list[Spent]]


class LedgerFile:
    """Holds the lock from beginning to end; `cover` returns when the disk counts at least as much."""

    def __init__(self, path: Path, own: str, reserve: int) -> None:
        self.path, self._own, self.reserve = path, own, reserve
        self._on_disk: Histories | None = None  # None: a write was begun, and may have been done or not
        self._lock: int | None = _locked(path)
        try:
            self.histories = _read(path)
            self._write(self.histories)  # so that a folder that can't be written shows before training
        except BaseException:
            self.unlock()
            raise

    @property
    def closed(self) -> bool:
        return self._lock is None

    def cover(self, histories: Histories) -> None:
        if self._lock is None:
            raise BadSetting(f"the privacy ledger {self.path} is closed, or was opened by a parent process")
        if not _covers(self._on_disk, histories):
            self._write(self._with_reserve(histories))
        self.histories = histories

    def close(self) -> None:
        try:
            if self._lock is not None and self._on_disk != self.histories:
                self._write(self.histories)
        finally:
            self.unlock()

    def unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _with_reserve(self, histories: Histories) -> Histories:
        if self._own not in histories:
            return histories
        *before, newest = histories[self._own]
        ahead = dataclasses.replace(newest, steps=newest.steps + self.reserve - 1)
        return {**histories, self._own: [*before, ahead]}

    def _write(self, histories: Histories) -> None:
        self._on_disk = None
        with _disk_errors(self.path, "write"):
            _replace(self.path, json.dumps(as_document(histories), indent=1).encode())
        self._on_disk = histories


def _covers(on_disk: Histories | None, histories: Histories) -> bool:
    if on_disk is None or on_disk.keys() != histories.keys():
        return False
    return all(_is_ahead(on_disk[name], history) for name, history in histories.items())


def _is_ahead(written: list[Spent], history: list[Spent]) -> bool:
    there, newest = written[-1], history[-1]
    return written[:-1] == history[:-1] and there.same_kind(newest) and there.steps >= newest.steps


def as_document(histories: Histories) -> dict[str, Any]:
    plain = {name: [_as_plain(run) for run in history] for name, history in histories.items()}
    return {"format": FORMAT, "version": VERSION, "histories": plain}


def _as_plain(run: Spent) -> dict[str, float]:
    """NumPy's floats are floats too, but a checkpoint that holds one no longer loads as plain data."""
    noise, rate = float(run.noise_multiplier), float(run.sample_rate)
    return {"noise_multiplier": noise, "sample_rate": rate, "steps": run.steps}


def parsed(document: Any) -> Histories:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it is something else")
    if document.get("version") != VERSION:
        raise ValueError(f"it has version {document.get('version')!r}, and this reads version {VERSION}")
    histories = document.get("histories")
    if not isinstance(histories, dict) or not all(isinstance(name, str) for name in histories):
        raise ValueError("it has no histories")
    return {name: _history(runs) for name, runs in histories.items()}


def _history(runs: Any) -> list[Spent]:
    fields = {field.name for field in dataclasses.fields(Spent)}
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) and set(run) == fields for run in runs):
        raise ValueError("a history is damaged")
    return [Spent(**run) for run in runs]


def _read(path: Path) -> Histories:
    """Nothing, where there is no file yet. Whatever isn't a ledger is left alone: it may be one that was damaged."""
    with _disk_errors(path, "read"):
        if not path.exists():
            return {}
        if not path.is_file():
            raise BadSetting(f"{path} is no file, so it can't be a privacy ledger")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    try:
        if len(content) > MOST_BYTES:
            raise ValueError("it is too large")
        return parsed(json.loads(content, parse_constant=_refuse))
    except (ValueError, RecursionError) as error:
        raise BadSetting(
            f"{path} is no privacy ledger, or a damaged one ({short(error)}): restore it, or take another name"
        ) from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no figure")


def short(error: Exception) -> str:
    return str(error)[:MOST_REASON]


def _replace(path: Path, content: bytes) -> None:
    """The old file or the new one, even if the power goes."""
    temporary = path.with_name(f".{path.name}.tmp")  # one name is enough: only the holder of the lock writes
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _locked(path: Path) -> int:
    """A file beside it: the ledger itself is replaced by every write, and its lock would go with it."""
    with _disk_errors(path, "lock"):
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(lock)
            raise
    return lock


@contextmanager
def _disk_errors(path: Path, action: str) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise BadSetting(
            f"the privacy ledger {path} is in use by another process: wait for it, or take another"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadSetting(f"can't {action} the privacy ledger {path}, so nothing may be released: {reason}") from error
