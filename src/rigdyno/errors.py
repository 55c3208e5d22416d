"""What can go wrong, as a tree; the exit code of the program follows from the branch.

RigdynoError
├── UsageError            2    the user asked for something that can't be; the message says what to try
│   ├── UnknownName       2    with a suggestion
│   ├── BadValue          2    a flag, a TOML key or an option of the wrong type, unit or size
│   └── MissingExtra      2    with the pip command that adds it
├── StoreError            2    a run folder or a disk that can't be read or written
│   ├── DamagedRun        2    truncated or corrupted: skipped with a warning where there are others
│   └── NewerStore        2    written by a later Rigdyno
├── CatalogueError        2    a file or an entry point that doesn't keep its contract
├── NoMeeting, NodeLost,  2    in launchers/ and runner/node.py: nodes that didn't join, or that this one can't follow
│   LeaderLost, NoAllocation
├── NothingMeasured       3    every cell was skipped
└── Interrupted         130    Ctrl-C

Not an error, but its own code too: 4, a comparison that found a regression, so that 'slower' and 'broken' differ.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOTHING_MEASURED = 3
EXIT_SLOWER = 4
EXIT_INTERRUPTED = 130


class RigdynoError(Exception):
    """Shown to the user as one line, without a traceback."""

    exit_code = EXIT_USAGE


class UsageError(RigdynoError):
    """`key`: the run option that it is about, such as 'repeat' or 'slurm.time'; 'set.size' is the option 'size' of a
    workload, whether it was set or swept. In a plan file, its line is found by it."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class UnknownName(UsageError):
    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "", *, key: str | None = None) -> None:
        self.kind, self.name = kind, name
        super().__init__(f"{where}no {kind} named '{name}'; {suggestion(name, known)}", key=key)


class BadValue(UsageError):
    pass


class MissingExtra(UsageError):
    pass


class StoreError(RigdynoError):
    pass


class DamagedRun(StoreError):
    pass


class NewerStore(StoreError):
    pass


class CatalogueError(RigdynoError):
    pass


class NothingMeasured(RigdynoError):
    exit_code = EXIT_NOTHING_MEASURED


class Interrupted(RigdynoError):
    exit_code = EXIT_INTERRUPTED


def suggestion(name: str, known: Iterable[str]) -> str:
    """The tail of a message about an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    begun = [each for each in names if len(name) > 2 and each.startswith(name)]  # 'noise' of 'noise_multiplier'
    near = begun or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"there is {', '.join(names)}" if names else "there is none"
