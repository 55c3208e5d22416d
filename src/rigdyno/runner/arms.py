"""An arm of a duel that is a group of ranks: how its first rank finds the referee, and how the group rests between
turns.

Ranks that wait for each other aren't idle: MPI polls, and Horovod's threads ask each other every millisecond whether
there is something to do. Whoever has no turn is therefore stopped, by a signal that no process can ignore, and goes on
where it was.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rigdyno.clock import Clock
from rigdyno.contracts import Launch
from rigdyno.runner.sampler import pid_files, worker_pids
from rigdyno.runner.turns import SOCKET_KIND, ArmLost, ArmStuck, Seat, Turn
from rigdyno.schema.layout import CellFolder

_HERE = 0  # the node


class Door:
    """Where an arm's first rank connects. In a folder that is this user's alone, with a name that is short enough."""

    def __init__(self, cell_folder: Path) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="rigdyno-"))
        self._told = CellFolder(cell_folder).turns
        self._listener = socket.socket(socket.AF_UNIX, SOCKET_KIND)
        self._connection: socket.socket | None = None
        try:
            self._listener.bind(str(self._place / "turns"))
            self._listener.listen(1)
            self._told.write_text(str(self._place / "turns"))
        except BaseException:
            self.close()
            raise

    def entered(
        self,
        arm: int,
        launch: Launch,
        clock: Clock,
        until_ns: int,
        tick: Callable[[], None],
        tick_seconds: float,
    ) -> socket.socket:
        """Starting takes seconds: `tick` is called meanwhile."""
        self._listener.settimeout(tick_seconds)
        while True:
            try:
                self._connection = self._listener.accept()[0]
                return self._connection
            except TimeoutError:
                tick()
            if launch.wait(0):
                raise ArmLost
            if clock.now_ns() > until_ns:
                raise ArmStuck(arm)

    def close(self) -> None:
        for end in (self._listener, self._connection):
            if end is not None:
                end.close()
        self._told.unlink(missing_ok=True)
        shutil.rmtree(self._place, ignore_errors=True)


class GroupSeat(Seat):
    """The referee's end of an arm of several ranks, which are stopped while it isn't their turn."""

    def __init__(self, arm: int, turns: socket.socket, clock: Clock, until_ns: int, cell_folder: Path) -> None:
        super().__init__(arm, turns, clock, until_ns)
        self._pid_files = pid_files(cell_folder, _HERE)
        self._pids: list[int] = []

    def rest(self) -> None:
        self._pids = self._pids or worker_pids(self._pid_files)
        self._signal(signal.SIGSTOP)

    def turn(self, steps: int, flags: int, core: int) -> Turn:
        self._signal(signal.SIGCONT)
        done = super().turn(steps, flags, core)
        self.rest()
        return done

    def dismiss(self) -> None:
        self._signal(signal.SIGCONT)
        super().dismiss()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
