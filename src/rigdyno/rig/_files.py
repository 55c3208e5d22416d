"""Small reads from /proc and /sys, where any file may be absent or refuse."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \n\t")
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    text = read_text(path)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def listed(text: str) -> set[int]:
    """The kernel's way to write a set of cores: '0-3,8,10-11'."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def selected(text: str) -> str | None:
    """The kernel's way to write a choice: 'always [madvise] never'."""
    return next((word.strip("[]") for word in text.split() if word.startswith("[")), None)
