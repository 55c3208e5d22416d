"""A command that prints a line now and then, read without ever waiting for it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

MOST_BYTES = 1 << 16  # of a line that has no end yet: more is no reading
_GRACE_SECONDS = 1.0


def _dies_with_us() -> Callable[[], None] | None:
    """Runs in the child, between fork and exec: `kill -9` of the sampler leaves nobody behind. The library is found
    beforehand: in there nothing may be loaded."""
    if sys.platform != "linux":
        return None
    prctl, death_signal = ctypes.CDLL(None).prctl, int(signal.SIGKILL)
    return lambda: prctl(1, death_signal)


class LineReader:
    """Lines of a child process. Everything that it starts is in a process group of its own, and ended with it."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises OSError where there is no such command."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_dies_with_us(),
        )
        assert self._process.stdout is not None
        self._descriptor = self._process.stdout.fileno()
        os.set_blocking(self._descriptor, False)
        self._rest = b""

    def lines(self) -> list[str]:
        """Those that came since the last call, and the rest without an end once the command is over."""
        ended = False
        with suppress(BlockingIOError, ValueError):
            while True:
                block = os.read(self._descriptor, MOST_BYTES)
                if not block:
                    ended = True
                    break
                self._rest = (self._rest + block)[-4 * MOST_BYTES :]
        whole, newline, rest = self._rest.rpartition(b"\n")
        if ended:
            whole, rest = self._rest, b""
        elif not newline:
            return []
        self._rest = rest[-MOST_BYTES:]
        texts = whole.decode("utf-8", "replace").splitlines()
        return [text.strip() for text in texts if text.strip()]

    @property
    def code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
                break
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it started and left behind
        if self._process.stdout is not None:
            self._process.stdout.close()
