"""Files of /proc and /sys that are kept open: reading again costs microseconds, opening again many more."""

from __future__ import annotations

import math
import os
from pathlib import Path

ALL = 1 << 16  # /proc/stat of 500 cores fits


class OpenFile:
    """Reads from the start each time. None once the file is gone or refuses; it is then closed for good."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path | str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1

    def read(self) -> bytes | None:
        if self._descriptor < 0:
            return None
        try:
            return os.pread(self._descriptor, ALL, 0)
        except OSError:  # a process that ended, a sensor that went away, pressure that was switched off
            self.close()
            return None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0


def read_once(path: str) -> bytes:
    """Nothing where it can't be read: the process ended, or this kernel has no such file."""
    file = OpenFile(path)
    try:
        return file.read() or b""
    finally:
        file.close()


def number(text: bytes | None) -> float:
    """NaN for what isn't a number: zero would be a measurement."""
    try:
        return float(text) if text is not None else math.nan
    except ValueError:
        return math.nan


def text_in(path: Path) -> str:
    """Empty where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
