"""plan.json, the plan of a run: the first process makes it, and all others read it.

{"format": "rigdyno blockwise plan", "version": 1, "plan": {
  "fingerprint": {"model": "sha256...", "grid": "...", ...}, ... anything else that the caller needs to resume ...}}
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rigdyno.base.errors import os_error_reason
from rigdyno.base.files import NO_LOCKS, atomic_write, lock_file
from rigdyno.engines.blockwise.errors import BadOutput, BadSetting, WontResume

FORMAT, VERSION = "rigdyno blockwise plan", 1

MOST_BYTES = 16 * 2**20  # a plan of settings and hashes has some thousand bytes, never this many

MOST_REASON = 200  # characters of a reason: a damaged file may contain anything

LOOK_AGAIN_SECONDS = 0.2

MOST_VANISHED = 10  # looks in a row at a folder that can't be made, or that others remove each time

WAY_OUT = "take another output, or begin anew with --overwrite"

_one_at_a_time = threading.Lock()  # POSIX locks keep out other processes, but no other thread


@dataclass(frozen=True)
class SettledPlan:
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
) -> SettledPlan:
    """Return the stored plan, or else store and return the plan that `make` returns.

    Only one process runs `make` at a time, and the plan is written after it returns, so a process that reads a plan
    finds the output created. If `make` is killed, it is run again, by this process or another, and must cope with what
    the first attempt left. `waiting` is called repeatedly while another process makes the plan.
    """
    path = folder / "plan.json"
    with _one_at_a_time:
        try:
            with _alone_in(folder, waiting, wait):
                if os.path.lexists(path):
                    return SettledPlan(folder, _read_plan(path), made_here=False)
                content = _to_bytes(make())
                replace_file(path, content)
                return SettledPlan(folder, _parse_plan(content), made_here=True)
        except BaseException:
            abandon(folder)
            raise


def require_same(stored: SettledPlan, wanted: Mapping[str, str]) -> None:
    """Raise WontResume if the run has changed: blocks of two models in one volume would be wrong unnoticed."""
    before = stored.fingerprint
    changed = [name for name in {**before, **wanted} if before.get(name) != wanted.get(name)]
    if changed:
        reasons = " and ".join(f"the {name.replace('_', ' ')} has changed" for name in changed)
        raise WontResume(f"can't resume what was begun in {stored.folder.parent}: {reasons}; {WAY_OUT}")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file of this folder so that a crash or a power cut leaves the old one or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")  # one name is enough: only the holder of the lock writes
    with disk_errors(path, "write"), atomic_write(path, temporary=temporary, durable=True) as file:
        file.write(content)


@contextmanager
def disk_errors(path: Path, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = os_error_reason(error)
        if error.errno in NO_LOCKS:
            reason += "; this file system has no locks, so take an output on another one"
        raise BadOutput(f"can't {action} {path}: {reason}") from error


def _to_bytes(plan: dict[str, Any]) -> bytes:
    document = {"format": FORMAT, "version": VERSION, "plan": plan}
    try:
        content = json.dumps(document, indent=1, allow_nan=False).encode()
        _parse_plan(content)  # never write a plan that can't be read again
    except (TypeError, ValueError, RecursionError) as error:
        raise BadSetting(f"this plan can't be stored: {_shorten(error)}") from error
    return content


def _read_plan(path: Path) -> dict[str, Any]:
    with disk_errors(path, "read"), path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    try:
        return _parse_plan(content)
    except ValueError as error:
        raise WontResume(f"can't resume from the plan {path}: {error}; {WAY_OUT}") from error


def _parse_plan(content: bytes) -> dict[str, Any]:
    document = _parse_json(content)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it isn't the plan of a blockwise run")
    version = document.get("version")
    if version != VERSION:
        raise ValueError(
            f"another version of Rigdyno wrote it in format {_shorten(version)}, and this one reads {VERSION}"
        )
    plan = document.get("plan")
    if not isinstance(plan, dict) or not _is_fingerprint(plan.get("fingerprint")):
        raise ValueError("its fingerprint is missing or damaged")
    return plan


def _parse_json(content: bytes) -> Any:
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is damaged or truncated ({_shorten(error)})") from error


def _is_fingerprint(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _shorten(value: object) -> str:
    return " ".join(str(value).split())[:MOST_REASON]


@contextmanager
def _alone_in(folder: Path, waiting: Callable[[], None], wait: Callable[[float], None]) -> Iterator[None]:
    path = folder / "lock"
    vanished = 0
    while True:
        with ExitStack() as held:
            if _try_lock(path, held):
                yield
                return
        vanished = 0 if folder.exists() else vanished + 1
        if vanished > MOST_VANISHED:
            raise BadOutput(f"can't make {folder}: no such file or directory")
        waiting()
        wait(LOOK_AGAIN_SECONDS)


def _try_lock(path: Path, held: ExitStack) -> bool:
    """Return whether the lock was free; it is then held until `held` is closed."""
    with disk_errors(path, "lock"), suppress(FileNotFoundError):  # another process has just removed the folder
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return held.enter_context(lock_file(path, "posix"))
    return False


def _leave_nothing_in(folder: Path) -> None:
    """While the lock is held: those who wait for it see that its file is gone, and make another."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == ["lock"]:
            (folder / "lock").unlink()
            folder.rmdir()


def abandon(folder: Path) -> None:
    """Remove what an interrupted process left, also if it was interrupted between making the lock's file and holding
    the lock. A folder that another process works on, or that has a plan, stays."""
    with suppress(OSError), lock_file(folder / "lock", "posix") as is_free:
        if is_free:
            _leave_nothing_in(folder)
