"""Atomic writes, whole-file locks, JSON files of the store, and disk errors in plain words."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import msgspec

from rigdyno.base.errors import DamagedRun, StoreError, os_error_reason

T = TypeVar("T")

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # the file system has no locks

LOCK_TAKEN = (errno.EAGAIN, errno.EACCES)  # POSIX allows either for a lock that another process holds

_PLAIN_WORDS = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder with --out",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another folder with --out",
    errno.EROFS: "the disk is read-only; choose another folder with --out",
    errno.EACCES: "you may not write there; choose another folder with --out",
    errno.ENOTDIR: "a part of that path is a file, not a folder; choose another with --out",
    errno.EEXIST: "a file of that name is in the way; choose another folder with --out",
}


@contextmanager
def atomic_write(path: Path, *, temporary: Path | None = None, durable: bool = False) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` when the block ends: readers and crashes see the old file or the new one.

    The content goes to `temporary`, a path in the same folder, by default one that no other writer uses. It is removed
    if the block fails. With `durable`, the folder is synced too, so that a power cut can't undo the replacement.
    """
    temporary = temporary or path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk: files that were created, renamed or removed in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_file(path: Path, kind: Literal["flock", "posix"], *, shared: bool = False) -> Iterator[bool]:
    """Hold a lock on an existing file while the block runs, and yield whether it was free. Never waits.

    A lock of kind "flock" also excludes other openings of the file in this process. One of kind "posix" doesn't, and
    is lost as soon as this process closes any descriptor of the file, but it excludes locks on single bytes and those
    of tensorstore. If the file was removed or replaced meanwhile, it counts as taken: the lock would exclude nothing.
    """
    descriptor = os.open(path, (os.O_RDONLY if shared else os.O_RDWR) | os.O_CLOEXEC)
    try:
        yield _take_lock(descriptor, kind, shared) and _is_same_file(path, descriptor)
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, kind: Literal["flock", "posix"], shared: bool) -> bool:
    """Return whether the lock was free and is held now; raise OSError if the file system has no locks."""
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    try:
        if kind == "flock":
            fcntl.flock(descriptor, operation)
        else:
            fcntl.lockf(descriptor, operation)
    except OSError as error:
        if error.errno in LOCK_TAKEN:
            return False
        raise
    return True


def _is_same_file(path: Path, descriptor: int) -> bool:
    """Return whether the path still names the file that is open."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a StoreError of one line that names the path and says what to try."""
    try:
        yield
    except OSError as error:
        words = _PLAIN_WORDS.get(error.errno or 0, os_error_reason(error))
        raise StoreError(f"can't write {path}: {words}") from error


def write_json(path: Path, document: Any) -> None:
    """Write a document as indented JSON, atomically."""
    with disk_errors(path), atomic_write(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document), indent=1))


def read_bytes(path: Path) -> bytes:
    """Return a file's content; raise DamagedRun if it is missing and StoreError if it can't be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DamagedRun(f"{path} is missing") from None
    except OSError as error:
        raise StoreError(f"can't read {path}: {os_error_reason(error)}") from error


def read_raw(path: Path) -> Any:
    """Return a JSON file's document as plain dictionaries and lists."""
    try:
        return msgspec.json.decode(read_bytes(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedRun(f"{path} is not readable JSON ({error})") from error


def decode_json(raw: Any, kind: type[T], path: Path) -> T:
    """Convert a document of `read_raw` to a type; `path` is named in the error."""
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DamagedRun(f"{path} doesn't hold what it should ({error})") from error


def read_json(path: Path, kind: type[T]) -> T:
    """Return a JSON file's document as an object of a type."""
    return decode_json(read_raw(path), kind, path)
