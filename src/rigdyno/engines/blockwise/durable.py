"""Files that are there completely or not at all, also after a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def put(path: Path, content: bytes, temporary: Path) -> None:
    """The old file or the new one; `temporary` lies in the same folder, and is gone in the end."""
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
