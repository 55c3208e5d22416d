"""The page that a format writes on."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Page:
    width: int = 80
    colour: bool = False


def page_of(stream: TextIO | None = None) -> Page:
    """A terminal's width and colour; 80 plain columns in a pipe. NO_COLOR and TERM=dumb are respected."""
    stream = stream or sys.stdout
    terminal = stream.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Page(width=max(40, shutil.get_terminal_size((80, 24)).columns), colour=terminal and not plain)
