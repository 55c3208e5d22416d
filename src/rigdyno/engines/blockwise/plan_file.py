"""plan.json: what a run has settled on, made by the first process to come and read by all the others.

{"format": "rigdyno blockwise plan", "version": 1, "plan": {
  "fingerprint": {"model": "sha256...", "grid": "...", ...}, ... whatever the caller needs to go on ...}}
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rigdyno.engines.blockwise import durable
from rigdyno.engines.blockwise.errors import BadOutput, BadSetting, WontResume

FORMAT, VERSION = "rigdyno blockwise plan", 1
MOST_BYTES = 16 * 2**20  # settings and hashes take some thousand: nothing so large is a plan
MOST_REASON = 200  # characters: a damaged file may hold anything
LOOK_AGAIN_SECONDS = 0.2
MOST_VANISHED = 10  # looks in a row at a folder that can't be made, or that others remove each time
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
TAKEN = (errno.EAGAIN, errno.EACCES)  # POSIX allows a system either of them for a lock that another process holds
WAY_OUT = "take another output, or begin anew with --overwrite"

_one_at_a_time = threading.Lock()  # POSIX locks keep out other processes, but no other thread


@dataclass(frozen=True)
class Settled:
    folder: Path
    plan: dict[str, Any]
    made_here: bool  # by this process, just now

    @property
    def fingerprint(self) -> dict[str, str]:
        return dict(self.plan["fingerprint"])


def settle(
    folder: Path,
    make: Callable[[], dict[str, Any]],
    *,
    waiting: Callable[[], None] = lambda: None,
    wait: Callable[[float], None] = time.sleep,
) -> Settled:
    """The plan that lies there, or else the one that `make` gives, kept for all who come later.

    Only one process is in `make` at a time, and the plan is written when it has returned: whoever reads a plan finds
    the output made. A `make` that was killed half-way is run again, by this process or another, and must bear what it
    left behind. `waiting` is called every so often while another process makes it.
    """
    path = folder / "plan.json"
    with _one_at_a_time:
        try:
            with _alone_in(folder, waiting, wait):
                if os.path.lexists(path):
                    return Settled(folder, _read(path), made_here=False)
                content = _as_bytes(make())
                replace_file(path, content)
                return Settled(folder, _parsed(content), made_here=True)
        except BaseException:
            abandon(folder)
            raise


def require_same(stored: Settled, wanted: Mapping[str, str]) -> None:
    """Blocks of two models in one volume would be wrong, and nobody would see it."""
    before = stored.fingerprint
    changed = [name for name in {**before, **wanted} if before.get(name) != wanted.get(name)]
    if changed:
        reasons = " and ".join(f"the {name.replace('_', ' ')} was another one" for name in changed)
        raise WontResume(f"can't go on with what was begun in {stored.folder.parent}: {reasons}; {WAY_OUT}")


def replace_file(path: Path, content: bytes) -> None:
    """The old file or the new one, even if the power goes."""
    temporary = path.with_name(f".{path.name}.tmp")  # one name is enough: only the holder of the lock writes
    with disk_errors(path, "write"):
        durable.put(path, content, temporary)


@contextmanager
def disk_errors(path: Path, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno in NO_LOCKS:
            reason += "; this file system has no locks, so take an output on another one"
        raise BadOutput(f"can't {action} {path}: {reason}") from error


def _as_bytes(plan: dict[str, Any]) -> bytes:
    document = {"format": FORMAT, "version": VERSION, "plan": plan}
    try:
        content = json.dumps(document, indent=1, allow_nan=False).encode()
        _parsed(content)  # what couldn't be read again must not be written
    except (TypeError, ValueError, RecursionError) as error:
        raise BadSetting(f"this plan can't be kept for later: {_short(error)}") from error
    return content


def _read(path: Path) -> dict[str, Any]:
    with disk_errors(path, "read"), path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    try:
        return _parsed(content)
    except ValueError as error:
        raise WontResume(f"can't go on with the plan {path}: {error}; {WAY_OUT}") from error


def _parsed(content: bytes) -> dict[str, Any]:
    document = _from_json(content)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it is something else than the plan of a blockwise run")
    version = document.get("version")
    if version != VERSION:
        raise ValueError(f"it was written by another Rigdyno, as version {_short(version)}, and this reads {VERSION}")
    plan = document.get("plan")
    if not isinstance(plan, dict) or not _is_fingerprint(plan.get("fingerprint")):
        raise ValueError("it has no fingerprint of texts by name")
    return plan


def _from_json(content: bytes) -> Any:
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is damaged, or was cut short ({_short(error)})") from error


def _is_fingerprint(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _short(value: object) -> str:
    return " ".join(str(value).split())[:MOST_REASON]


@contextmanager
def _alone_in(folder: Path, waiting: Callable[[], None], wait: Callable[[float], None]) -> Iterator[None]:
    path = folder / "lock"
    vanished = 0
    while (lock := _try_lock(path)) is None:
        vanished = 0 if folder.exists() else vanished + 1
        if vanished > MOST_VANISHED:
            raise BadOutput(f"can't make {folder}: no such file or directory")
        waiting()
        wait(LOOK_AGAIN_SECONDS)
    try:
        yield
    finally:
        os.close(lock)


def _try_lock(path: Path) -> int | None:
    with disk_errors(path, "lock"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            return None  # another process has just removed the folder
        try:
            if _locks(lock) and _is_still(path, lock):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None


def _locks(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in TAKEN:
            return False
        raise
    return True


def _leave_nothing_in(folder: Path) -> None:
    """While the lock is held: those who wait for it see that its file is gone, and make another."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == ["lock"]:
            (folder / "lock").unlink()
            folder.rmdir()


def abandon(folder: Path) -> None:
    """For whoever was interrupted at any moment, also between making the lock's file and holding the lock. What another
    process is at work on, or has made a plan of, stays."""
    path = folder / "lock"
    with suppress(OSError):
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _locks(lock) and _is_still(path, lock):
                _leave_nothing_in(folder)
        finally:
            os.close(lock)


def _is_still(path: Path, lock: int) -> bool:
    """The folder may have been removed meanwhile: a lock on the file that was there before keeps nobody out."""
    try:
        return os.path.samestat(path.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False
