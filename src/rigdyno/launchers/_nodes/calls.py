"""A command that starts the node program on another machine: its own streams carry what is said.

`ssh` and `srun` authenticate both ends, and ssh encrypts: nothing of ours listens anywhere.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from rigdyno.launchers._nodes.messages import Hello
from rigdyno.launchers._nodes.remote import Remote
from rigdyno.launchers._nodes.streams import Disconnected, Frames

NODE_PROGRAM = "rigdyno.runner.node"
GREETING = b"\nrigdyno node\n"  # before the first message: what a login shell printed stands in front of it
MOST_CHATTER_BYTES = 2**16
GRACE_SECONDS = 5.0


class Call:
    """Ends with this process: the node program ends when its input does."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the call
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches rigdyno alone
        )

    def stream(self) -> CalledStream:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return CalledStream(os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno()))

    def why_gone(self) -> str | None:
        """What the command said at last, once it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        if self._process.poll() is None:
            return None
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        words = lines[-1].strip()[:300] if lines else f"exit code {self._process.returncode}"
        return f"is gone: {words}"

    def hang_up(self) -> None:
        """The node program goes by itself when it hears nothing any more."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        self._process.kill()
        self._process.wait()
        self._said.close()


class CalledStream(Frames):
    """Behind whatever the shell on the other machine prints when it starts."""

    _greeted = False

    def receive(self, seconds: float) -> bytes | None:
        deadline = time.monotonic() + seconds
        while not self._greeted:
            before, greeting, behind = bytes(self._received).partition(GREETING)
            if greeting:
                self._received, self._greeted = bytearray(behind), True
            elif len(before) > MOST_CHATTER_BYTES:
                raise Disconnected("prints something else than our node program")
            elif not self._read_by(deadline):
                return None
        return super().receive(max(0.0, deadline - time.monotonic()))


def node_command(python: str | None) -> str:
    """For a shell on the other machine, whose working folder may hold a `random.py` of its own."""
    return f"exec env PYTHONSAFEPATH=1 {shlex.join([python or sys.executable, '-m', NODE_PROGRAM])}"


def met(calls: Sequence[tuple[int, str, Call]], own: Hello, say: Callable[[str], None]) -> list[Remote]:
    """Everybody who was called, by node and name; all were called at once, and start meanwhile."""
    remotes = [Remote(node, call.stream(), name, call.why_gone) for node, name, call in calls]
    try:
        for remote in remotes:
            say(f"waiting for {remote}")
            remote.meet(own)
    except BaseException:
        for remote in remotes:
            remote.close()
        raise
    return remotes
