"""Tries something in a child process, so that a crash or a hang is a result like any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rigdyno.units import show_seconds

# Dying is expected here: a core dump in the user's folder is not. Windows has no such limit.
_PRELUDE = """\
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except ImportError:
    pass
"""


@dataclass(frozen=True)
class ChildEnd:
    """How a child ended, and what it said until then."""

    code: int  # negative: the signal
    output: str = ""
    errors: str = ""
    seconds_allowed: float | None = None  # set if it had to be killed

    @property
    def good(self) -> bool:
        return self.code == 0 and self.seconds_allowed is None

    @property
    def signal_name(self) -> str | None:
        """SIGILL, SIGSEGV, ...; None if it ended by itself, or was killed by us."""
        if self.code >= 0 or self.seconds_allowed is not None:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def last_line(self) -> str:
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return lines[-1].strip() if lines else f"exit code {self.code}"

    def how(self) -> str:
        """The end of a sentence that names what was tried."""
        if self.seconds_allowed is not None:
            return f"did not end within {show_seconds(self.seconds_allowed)}"
        if self.signal_name is not None:
            return f"dies with {self.signal_name}"
        return f"fails: {self.last_line}" if self.code else "works"


def run_snippet(snippet: str, seconds: float, variables: Mapping[str, str] | None = None) -> ChildEnd:
    """Runs Python code in a fresh interpreter."""
    return run_python(["-c", _PRELUDE + snippet], seconds, variables)


def run_python(arguments: Sequence[str], seconds: float, variables: Mapping[str, str] | None = None) -> ChildEnd:
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, **(variables or {})},
        start_new_session=True,  # so that its own children can be ended with it
    )
    try:
        output, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(child)
        output, errors = child.communicate()
        return ChildEnd(child.returncode, output, errors, seconds_allowed=seconds)
    except BaseException:  # Ctrl-C reaches only this process: the child has a session of its own
        _end(child)
        raise
    return ChildEnd(child.returncode, output, errors)


def _end(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
