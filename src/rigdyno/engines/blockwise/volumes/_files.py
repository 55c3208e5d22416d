"""What is written beside tensorstore's own files, what it leaves behind, and what its errors mean."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rigdyno.engines.blockwise import durable
from rigdyno.engines.blockwise.errors import BadOutput, BlockwiseError
from rigdyno.engines.blockwise.volumes._messages import one_line

LITTER = ".__lock"  # what tensorstore calls a file until it is complete; a killed process leaves it
_OS_ERROR = re.compile(r"os_error_code='(\d+)'")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)


def remove_abandoned(file: Path) -> bool:
    """By tensorstore's own rule: a half-written file belongs to who holds its lock while it has its name."""
    try:
        descriptor = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        abandoned = _locks(descriptor) and file.exists() and os.path.samestat(os.fstat(descriptor), file.stat())
        if abandoned:
            file.unlink()
        return abandoned
    finally:
        os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # somebody has it: systems say it in these two ways
        return False
    return True


def make_folder(folder: Path) -> None:
    """As `mkdir -p`, and it lasts: tensorstore syncs no folder but the last."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    durable.sync_folder(folder.parent)


def replace_file(path: Path, document: Mapping[str, Any]) -> None:
    content = json.dumps(document, indent=2, allow_nan=False).encode()
    durable.put(path, content, path.with_name(f"{path.name}{LITTER}"))


@contextmanager
def disk_errors(location: str, action: str) -> Iterator[None]:
    """tensorstore hands on what the system said as a ValueError with the number in its text."""
    try:
        yield
    except BlockwiseError:
        raise
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else _number(error)
        reason = os.strerror(number).lower() if number else one_line(error)
        raise BadOutput(f"can't {action} {location}: {reason}; {_advice(number)}") from error


def _number(error: ValueError) -> int | None:
    found = _OS_ERROR.search(str(error))
    return int(found[1]) if found else None


def _advice(number: int | None) -> str:
    if number in _NO_SPACE:
        return "free some space and run the same command again, finished blocks are kept"
    if number in _NO_RIGHTS:
        return "get the right to write there and run the same command again, or take another place"
    return "run the same command again, or take another place"
