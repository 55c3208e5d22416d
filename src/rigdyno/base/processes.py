"""Child processes: how they are started, how their output is read without waiting, and how they end with their parent.

`termination_as_interrupt` makes `kill` and a closed terminal end a run as Ctrl-C does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

_MOST_BYTES = 1 << 16  # of a line that has no end yet: more is no reading

_GRACE_SECONDS = 1.0

_PR_SET_PDEATHSIG = 1


class LineReader:
    """Reads the lines that a command prints, without ever waiting for them.

    The command has a process group of its own, which `close` ends together with all that the command started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Start the command. Raises OSError if it doesn't exist."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_make_death_signal_setter(),
        )
        assert self._process.stdout is not None
        self._descriptor = self._process.stdout.fileno()
        os.set_blocking(self._descriptor, False)
        self._rest = b""

    def read_lines(self) -> list[str]:
        """Return the lines since the last call, and an unfinished last line once the command has ended."""
        ended = False
        with suppress(BlockingIOError, ValueError):
            while True:
                block = os.read(self._descriptor, _MOST_BYTES)
                if not block:
                    ended = True
                    break
                self._rest = (self._rest + block)[-4 * _MOST_BYTES :]
        whole, newline, rest = self._rest.rpartition(b"\n")
        if ended:
            whole, rest = self._rest, b""
        elif not newline:
            return []
        self._rest = rest[-_MOST_BYTES:]
        texts = whole.decode("utf-8", "replace").splitlines()
        return [text.strip() for text in texts if text.strip()]

    @property
    def code(self) -> int | None:
        """Return the exit code, or None while the command runs."""
        return self._process.poll()

    def close(self) -> None:
        """End the command and everything that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
                break
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # processes that the command started and didn't end
        if self._process.stdout is not None:
            self._process.stdout.close()


def _make_death_signal_setter() -> Callable[[], None] | None:
    """Return a function for the child, between fork and exec: it has the child killed when this process ends.

    The C library is loaded here, because nothing may be loaded between fork and exec.
    """
    if sys.platform != "linux":
        return None
    prctl, death_signal = ctypes.CDLL(None).prctl, int(signal.SIGKILL)
    return lambda: prctl(_PR_SET_PDEATHSIG, death_signal)


def child_command(module: str, folder: Path, *more: str, python: str | None = None) -> list[str]:
    """Return the command that runs a module of Rigdyno on a cell's folder, as a child of this process.

    `python` is the interpreter of another environment; None: this one's.
    """
    # -P: the working folder's own `random.py` must not shadow the library's.
    return [python or sys.executable, "-P", "-m", module, str(folder.resolve()), str(os.getpid()), *more]


def die_with_parent(parent_pid: int) -> None:
    """Have this process killed when its parent ends, so that `kill -9` of `rigdyno` leaves no worker running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended while this process was starting
        sys.exit("rigdyno: the process that started this one is gone")


def write_pid(path: Path) -> None:
    """Write this process's id to a file."""
    path.write_text(str(os.getpid()))


def signal_name(code: int) -> str:
    """Return the name of the signal that ended a process with this negative exit code: 'SIGKILL'."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP while the block runs.

    A signal that is ignored stays ignored (`nohup`). Outside of the main thread, which alone may set handlers, nothing
    changes.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    try:
        before = [(number, signal.signal(number, interrupt)) for number in numbers]
    except ValueError:
        before = []
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
