"""Run one pair of a duel: two processes, or two groups of ranks, that take turns until their time is up or one is lost.

Both arms stay in memory. The first rank of a group connects to the referee through a socket in the cell's folder.
Ranks that wait for each other aren't idle: MPI polls, and Horovod's threads poll each other every millisecond. A group
is therefore stopped with SIGSTOP, which no process can ignore, while it isn't its turn.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from random import Random
from statistics import median

from rigdyno.analyse.comparison import signed_percent
from rigdyno.analyse.steady import settled_so_far
from rigdyno.base.addresses import LOOPBACK
from rigdyno.base.clock import Clock
from rigdyno.base.files import disk_errors
from rigdyno.base.units import NS_PER_S, seconds_of_ns
from rigdyno.contracts import Launch, Observer, Progress
from rigdyno.launchers.nodes.local import NodeShare
from rigdyno.launchers.nodes.ranks import listen_at, make_meeting_point
from rigdyno.launchers.nodes.session import find_starter
from rigdyno.launchers.process import ProcessSession
from rigdyno.runner.collect import CellExit, measured_record
from rigdyno.runner.pairs.referee import LEAST_ROUNDS, TURN_NS, Referee
from rigdyno.runner.pairs.turns import SOCKET_KIND, ArmLost, ArmStuck, Seat, Turn, socket_pair
from rigdyno.runner.sampler import pid_files, worker_pids
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import RunHead, RunRecord
from rigdyno.schema.spec import USUAL_LAUNCHER, Cell

TICK_SECONDS = 0.5

LEAVE_SECONDS = 60.0  # for a dismissed arm to check its result and write its report

Cells = tuple[Cell, Cell]

Folders = tuple[Path, Path]

_HERE = 0  # number of this node


class ArmListener:
    """The socket to which an arm's first rank connects.

    It is in a temporary folder, which only this user can read, and whose path is short enough for a socket."""

    def __init__(self, cell_folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rigdyno-"))
        self._address_file = CellFolder(cell_folder).turns
        self._listener = socket.socket(socket.AF_UNIX, SOCKET_KIND)
        self._connection: socket.socket | None = None
        try:
            self._listener.bind(str(self._folder / "turns"))
            self._listener.listen(1)
            self._address_file.write_text(str(self._folder / "turns"))
        except BaseException:
            self.close()
            raise

    def wait_for_connection(
        self,
        arm: int,
        launch: Launch,
        clock: Clock,
        until_ns: int,
        tick: Callable[[], None],
        tick_seconds: float,
    ) -> socket.socket:
        """Wait for the arm's first rank to connect. Starting takes seconds: `tick` is called meanwhile."""
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
        self._address_file.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)


class GroupSeat(Seat):
    """The referee's connection to an arm of several ranks, which are stopped while it isn't their turn."""

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


@dataclass
class PairRun:
    """Runs the two cells of a pair. Their specifications are already in `folders`."""

    head: RunHead
    run: str
    cells: Cells
    folders: Folders
    observer: Observer
    clock: Clock
    limit_seconds: float
    _began_ns: int = 0
    _next_tick_ns: int = 0
    _stuck: list[bool] = field(default_factory=lambda: [False, False])

    def measure(self) -> tuple[RunRecord, RunRecord]:
        self._began_ns = self._next_tick_ns = self.clock.now_ns()
        with disk_errors(self.folders[0].parent), self._launch_arms() as (launches, ends):
            self._play(launches, ends)
            for end in ends:
                end.close()
            self._wait_for_exit(launches)
            left = [launch.collect() for launch in launches]
        endings = [
            CellExit(each, self.limit_seconds if stuck else None) for each, stuck in zip(left, self._stuck, strict=True)
        ]
        a, b = (
            measured_record(self.head, self.run, cell, folder, ending)
            for cell, folder, ending in zip(self.cells, self.folders, endings, strict=True)
        )
        return a, b

    @contextmanager
    def _launch_arms(self) -> Iterator[tuple[list[Launch], list[socket.socket | ArmListener]]]:
        """Start both arms, and stop them at the end of the block in any case."""
        launches: list[Launch] = []
        ends: list[socket.socket | ArmListener] = []
        try:
            for cell, folder, beside in zip(self.cells, self.folders, (self.folders[1:], ()), strict=True):
                if cell.spec.launcher == USUAL_LAUNCHER:
                    ours, theirs = socket_pair()
                    ends.append(ours)
                    with theirs:
                        launches.append(ProcessSession().start(cell, folder, turns=theirs.fileno(), beside=beside))
                else:
                    ends.append(ArmListener(folder))
                    launches.append(_start_group(cell, folder, beside))
            yield launches, ends
        finally:
            for end in ends:
                end.close()
            for launch in launches:
                launch.stop()

    def _play(self, launches: Sequence[Launch], ends: Sequence[socket.socket | ArmListener]) -> None:
        until_ns = self._began_ns + int(self.limit_seconds * NS_PER_S)
        seats: list[Seat] = []
        try:
            for arm, (launch, end) in enumerate(zip(launches, ends, strict=True)):
                if isinstance(end, ArmListener):
                    connection = end.wait_for_connection(arm, launch, self.clock, until_ns, self._tick, TICK_SECONDS)
                    seats.append(GroupSeat(arm, connection, self.clock, until_ns, self.folders[arm]))
                else:
                    seats.append(Seat(arm, end, self.clock, until_ns))
            a, b = seats
            for seat in (a, b):
                seat.wait_until_ready(self._tick, TICK_SECONDS)
            for seat in (a, b):
                seat.rest()
            self._make_referee(a, b).play()
        except ArmLost:
            return  # the arm's own record says why
        except ArmStuck as stuck:
            self._stuck[stuck.arm] = True
        finally:
            for seat in seats:
                seat.dismiss()

    def _make_referee(self, a: Seat, b: Seat) -> Referee:
        spec, duel = self.cells[0].spec, self.head.plan.duel
        asked_ns = 0 if duel is None else int(duel.turn_seconds * NS_PER_S)
        return Referee(
            players=(a, b),
            clock=self.clock,
            random=Random(f"{spec.seed} {self.cells[0].pair}"),  # the same seed gives the same order
            seconds=spec.budget.seconds,
            settled=settled_so_far,
            tick=self._tick,
            least_rounds=1 if asked_ns else LEAST_ROUNDS,
            turn_ns=max(TURN_NS, asked_ns),
        )

    def _wait_for_exit(self, launches: Sequence[Launch]) -> None:
        for arm, launch in enumerate(launches):
            if self._stuck[arm] or not launch.wait(LEAVE_SECONDS):
                self._stuck[arm] = True
                launch.stop()

    def _tick(self, log_ratios: Sequence[float] = ()) -> None:
        """Report progress between turns, so that drawing disturbs none of them."""
        now_ns = self.clock.now_ns()
        if now_ns < self._next_tick_ns:
            return
        self._next_tick_ns = now_ns + int(TICK_SECONDS * NS_PER_S)
        seconds = seconds_of_ns(now_ns - self._began_ns)
        expected = sum(cell.seconds for cell in self.cells)
        figure = f"B {signed_percent(exp(median(log_ratios)))}, {len(log_ratios)} rounds" if log_ratios else None
        share = min(0.99, seconds / max(expected, 0.1))
        self.observer.progress(Progress(self.cells[0], seconds, share, figure=figure))


def _start_group(cell: Cell, folder: Path, beside: tuple[Path, ...]) -> Launch:
    """Start the ranks of an arm with the launcher of its arrangement."""
    with listen_at(LOOPBACK) as listener:
        return find_starter(cell).start_part(
            NodeShare(cell, folder, meeting=make_meeting_point(listener), beside=beside)
        )
