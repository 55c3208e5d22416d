"""Writing that leaves the old file or the new one, never half of one; and errors of a disk in plain words."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from rigdyno.errors import DamagedRun, StoreError

T = TypeVar("T")

_PLAIN_WORDS = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder with --out",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another folder with --out",
    errno.EROFS: "the disk is read-only; choose another folder with --out",
    errno.EACCES: "you may not write there; choose another folder with --out",
    errno.ENOTDIR: "a part of that path is a file, not a folder; choose another with --out",
    errno.EEXIST: "a file of that name is in the way; choose another folder with --out",
}


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns an error of the disk into one line that says where and what to try."""
    try:
        yield
    except OSError as error:
        words = _PLAIN_WORDS.get(error.errno or 0, (error.strerror or str(error)).lower())
        raise StoreError(f"can't write {path}: {words}") from error


def write_json(path: Path, document: Any) -> None:
    with replaced(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document), indent=1))


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Atomic: a reader, or a crash, sees the whole file or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DamagedRun(f"{path} is missing") from None
    except OSError as error:
        raise StoreError(f"can't read {path}: {(error.strerror or str(error)).lower()}") from error


def read_raw(path: Path) -> Any:
    try:
        return msgspec.json.decode(read_bytes(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedRun(f"{path} is not readable JSON ({error})") from error


def converted(raw: Any, kind: type[T], path: Path) -> T:
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DamagedRun(f"{path} doesn't hold what it should ({error})") from error


def read_json(path: Path, kind: type[T]) -> T:
    return converted(read_raw(path), kind, path)
