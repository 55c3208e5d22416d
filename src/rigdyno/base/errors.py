"""The tree of errors; each class has the exit code of the program.

RigdynoError
├── UsageError            2    a request that can't be fulfilled; the message says what to try
│   ├── UnknownName       2    a name that doesn't exist, with a suggestion
│   ├── BadValue          2    a flag, a TOML key or an option of the wrong type, unit or size
│   └── MissingExtra      2    a package that isn't installed, with the command that adds it; engines raise it too
├── StoreError            2    a run folder or a disk that can't be read or written
│   ├── DamagedRun        2    a truncated or corrupted run: skipped with a warning if there are others
│   └── NewerStore        2    a run folder that a later Rigdyno has written
├── CatalogueError        2    a file or an entry point that doesn't keep its contract
├── NoMeeting, NodeLost,  2    in launchers/ and runner/node.py: nodes that didn't join or were lost
│   LeaderLost, NoAllocation
├── NothingMeasured       3    every cell was skipped
└── Interrupted         130    Ctrl-C

Exit code 4 is not an error: a comparison found a regression, so that 'slower' and 'broken' differ.
PrivacyError and BlockwiseError are in the errors.py of their engines; both are ValueErrors.
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
    """An error that the user sees as one line, without a traceback."""

    exit_code = EXIT_USAGE


class UsageError(RigdynoError):
    """A request that can't be fulfilled.

    `key` is the run option that is wrong, such as 'repeat' or 'slurm.time'; 'set.size' is the option 'size' of a
    workload, both if it was set and if it was swept. It serves to find the line in a plan file.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class UnknownName(UsageError):
    """A name that doesn't exist; the message suggests the nearest of the known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "", *, key: str | None = None) -> None:
        self.kind, self.name = kind, name
        super().__init__(f"{where}no {kind} named '{name}'; {suggestion(name, known)}", key=key)


class BadValue(UsageError):
    """A flag, a TOML key or an option of the wrong type, unit or size."""


class MissingExtra(UsageError, ValueError):
    """A package that isn't installed, with the command that adds it. A ValueError, as all errors of the engines are."""


class StoreError(RigdynoError):
    """A run folder or a disk that can't be read or written."""


class DamagedRun(StoreError):
    """A truncated or corrupted run."""


class NewerStore(StoreError):
    """A run folder that a later Rigdyno has written."""


class CatalogueError(RigdynoError):
    """A file or an entry point that doesn't keep its contract."""


class NothingMeasured(RigdynoError):
    """A run whose cells were all skipped."""

    exit_code = EXIT_NOTHING_MEASURED


class Interrupted(RigdynoError):
    """Ctrl-C, or a signal that counts as such."""

    exit_code = EXIT_INTERRUPTED


def os_error_reason(error: OSError) -> str:
    """Return the system's words for an error, in lower case: 'permission denied'."""
    return (error.strerror or str(error)).lower()


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known name, or all of them."""
    names = sorted(known)
    starting = [each for each in names if len(name) > 2 and each.startswith(name)]  # 'noise' for 'noise_multiplier'
    near = starting or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"there is {', '.join(names)}" if names else "there is none"
