"""Starts the node program on another machine with ssh or srun, whose streams carry the messages.

`ssh` and `srun` authenticate both ends, and ssh encrypts, so Rigdyno itself doesn't have to listen.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from rigdyno.base.clock import Deadline
from rigdyno.launchers.nodes.messages import Hello
from rigdyno.launchers.nodes.remote import Remote
from rigdyno.launchers.nodes.streams import Disconnected, Frames

NODE_PROGRAM = "rigdyno.runner.node"

GREETING = b"\nrigdyno node\n"  # precedes the first message, and follows whatever a login shell printed

MOST_CHATTER_BYTES = 2**16

GRACE_SECONDS = 5.0


class NodeCommand:
    """A command that runs the node program. It ends with this process: the node program ends when its input does."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the command
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only rigdyno
        )

    def make_stream(self) -> CalledStream:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return CalledStream(os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno()))

    def explain_exit(self) -> str | None:
        """Return the last line that the command printed, or None if it still runs."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        if self._process.poll() is None:
            return None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        words = lines[-1].strip()[:300] if lines else f"exit code {self._process.returncode}"
        return f"is gone: {words}"

    def close(self) -> None:
        """Close the streams, upon which the node program ends by itself."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        self._process.kill()
        self._process.wait()
        self._errors.close()


class CalledStream(Frames):
    """A stream that skips whatever the shell on the other machine prints when it starts."""

    _greeted = False

    def receive(self, seconds: float) -> bytes | None:
        deadline = Deadline(seconds)
        while not self._greeted:
            before, greeting, after = bytes(self._received).partition(GREETING)
            if greeting:
                self._received, self._greeted = bytearray(after), True
            elif len(before) > MOST_CHATTER_BYTES:
                raise Disconnected("prints something else than our node program")
            elif not self._read_until(deadline):
                return None
        return super().receive(deadline.left)


def node_command(python: str | None) -> str:
    """Return the command for a shell on the other machine. Its working folder, which may contain a `random.py`, isn't
    on Python's path."""
    return f"exec env PYTHONSAFEPATH=1 {shlex.join([python or sys.executable, '-m', NODE_PROGRAM])}"


def connect_nodes(
    calls: Sequence[tuple[int, str, NodeCommand]], own: Hello, say: Callable[[str], None]
) -> list[Remote]:
    """Wait for all nodes, given as node, name and command; all commands were started before and run in parallel."""
    remotes = [Remote(node, call.make_stream(), name, call.explain_exit) for node, name, call in calls]
    try:
        for remote in remotes:
            say(f"waiting for {remote}")
            remote.meet(own)
    except BaseException:
        for remote in remotes:
            remote.close()
        raise
    return remotes
