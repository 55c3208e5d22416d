"""The sha256 of every file of a run, and of their list: whoever has the folder can check that it is the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from rigdyno.errors import StoreError
from rigdyno.schema.dossier import RawFile, RawFiles
from rigdyno.schema.layout import CELLS, HEAD
from rigdyno.store.location import utf8

CHUNK_BYTES = 1 << 20


def raw_files(folder: Path, most_listed: int) -> RawFiles:
    """Of the head and of all cells, by name. Links are left out: what they point to is no part of the run."""
    count, size_bytes, listed, over_all = 0, 0, [], hashlib.sha256()
    for name in sorted(_names(folder)):
        size, digest = _hashed(folder / os.fsdecode(name))
        over_all.update(_line(digest, name))
        count, size_bytes = count + 1, size_bytes + size
        if count <= most_listed:
            listed.append(RawFile(name=utf8(os.fsdecode(name)), size_bytes=size, sha256=digest))
    return RawFiles(count=count, size_bytes=size_bytes, digest=over_all.hexdigest(), listed=tuple(listed))


def _names(folder: Path) -> Iterator[bytes]:
    """Relative, in the form that sorts as `LC_ALL=C sort` does."""
    if (folder / HEAD).is_file() and not (folder / HEAD).is_symlink():
        yield os.fsencode(HEAD)
    for above, _, files in os.walk(folder / CELLS):
        for file in files:
            path = Path(above, file)
            if path.is_file() and not path.is_symlink():
                yield os.fsencode(path.relative_to(folder))


def _hashed(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise StoreError(f"can't read {path}: {(error.strerror or str(error)).lower()}") from error
    return size, digest.hexdigest()


def _line(digest: str, name: bytes) -> bytes:
    """As sha256sum prints it: names with line breaks or backslashes are escaped, and marked by a backslash in front."""
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return (b"" if escaped == name else b"\\") + digest.encode() + b"  " + escaped + b"\n"
