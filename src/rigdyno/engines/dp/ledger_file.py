"""The ledger's file. It never counts less than the ledger, and only one process at a time may use it.

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

from rigdyno.base.errors import os_error_reason
from rigdyno.base.files import atomic_write
from rigdyno.engines.dp.accounting import Spent
from rigdyno.engines.dp.errors import BadSetting

FORMAT, VERSION = "rigdyno privacy ledger", 1

MOST_BYTES = 64 * 2**20  # a history takes about 150 bytes, so a larger file isn't a ledger

MOST_REASON = 200  # characters of a message: a damaged file may contain anything

Histories = dict[str, list[Spent]]


class LedgerFile:
    """Holds the lock from beginning to end; `cover` returns when the disk counts at least as much."""

    def __init__(self, path: Path, own: str, reserve: int) -> None:
        self.path, self._own, self.reserve = path, own, reserve
        self._on_disk: Histories | None = None  # None: unknown, because a write was begun and not confirmed
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
        """Make sure that the file counts at least these histories; write it if it doesn't."""
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
        temporary = self.path.with_name(f".{self.path.name}.tmp")  # one name is enough: the lock allows one writer
        with _disk_errors(self.path, "write"), atomic_write(self.path, temporary=temporary, durable=True) as file:
            file.write(json.dumps(make_document(histories), indent=1).encode())
        self._on_disk = histories


def _covers(on_disk: Histories | None, histories: Histories) -> bool:
    if on_disk is None or on_disk.keys() != histories.keys():
        return False
    return all(_is_ahead(on_disk[name], history) for name, history in histories.items())


def _is_ahead(written: list[Spent], history: list[Spent]) -> bool:
    there, newest = written[-1], history[-1]
    return written[:-1] == history[:-1] and there.same_kind(newest) and there.steps >= newest.steps


def make_document(histories: Histories) -> dict[str, Any]:
    plain = {name: [_make_plain(run) for run in history] for name, history in histories.items()}
    return {"format": FORMAT, "version": VERSION, "histories": plain}


def _make_plain(run: Spent) -> dict[str, float]:
    """Convert NumPy floats to Python floats: a checkpoint that contains NumPy floats doesn't load as plain data."""
    noise, rate = float(run.noise_multiplier), float(run.sample_rate)
    return {"noise_multiplier": noise, "sample_rate": rate, "steps": run.steps}


def parse_ledger(document: Any) -> Histories:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it has another format")
    if document.get("version") != VERSION:
        raise ValueError(f"it has version {document.get('version')!r}, but only version {VERSION} can be read")
    histories = document.get("histories")
    if not isinstance(histories, dict) or not all(isinstance(name, str) for name in histories):
        raise ValueError("it has no histories")
    return {name: _parse_history(runs) for name, runs in histories.items()}


def _parse_history(runs: Any) -> list[Spent]:
    fields = {field.name for field in dataclasses.fields(Spent)}
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) and set(run) == fields for run in runs):
        raise ValueError("a history is damaged")
    return [Spent(**run) for run in runs]


def _read(path: Path) -> Histories:
    """Read the histories; none if there is no file yet.

    A file that isn't a valid ledger is refused and never overwritten: it may be a damaged ledger.
    """
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
        return parse_ledger(json.loads(content, parse_constant=_reject_constant))
    except (ValueError, RecursionError) as error:
        raise BadSetting(
            f"{path} is no privacy ledger, or a damaged one ({shorten(error)}): restore it, or choose another name"
        ) from error


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def shorten(error: Exception) -> str:
    return str(error)[:MOST_REASON]


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
        raise BadSetting(
            f"can't {action} the privacy ledger {path}, so nothing may be released: {os_error_reason(error)}"
        ) from error
