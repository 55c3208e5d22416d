"""Runs Python code in a child process, so that a crash or a hang is a result like any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rigdyno.base.units import show_seconds

# A crash is expected here, but must not leave a core dump in the user's folder. Windows has no such limit.
_PRELUDE = """\
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except ImportError:
    pass
"""


@dataclass(frozen=True)
class ChildEnd:
    """How a child process ended, and its output."""

    code: int  # negative: the signal
    output: str = ""
    errors: str = ""
    seconds_allowed: float | None = None  # time limit, if it was killed for exceeding it

    @property
    def succeeded(self) -> bool:
        return self.code == 0 and self.seconds_allowed is None

    @property
    def signal_name(self) -> str | None:
        """Return SIGILL, SIGSEGV, ...; None if it exited, or was killed at the time limit."""
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

    def describe(self) -> str:
        """Return the end of a sentence whose subject is what was tried."""
        if self.seconds_allowed is not None:
            return f"did not end within {show_seconds(self.seconds_allowed)}"
        if self.signal_name is not None:
            return f"dies with {self.signal_name}"
        return f"fails: {self.last_line}" if self.code else "works"


def run_snippet(snippet: str, seconds: float, variables: Mapping[str, str] | None = None) -> ChildEnd:
    """Run Python code in a fresh interpreter, without core dumps."""
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
        start_new_session=True,  # so that its children can be killed with it
    )
    try:
        output, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _kill(child)
        output, errors = child.communicate()
        return ChildEnd(child.returncode, output, errors, seconds_allowed=seconds)
    except BaseException:  # Ctrl-C reaches only this process: the child has its own session
        _kill(child)
        raise
    return ChildEnd(child.returncode, output, errors)


def _kill(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
