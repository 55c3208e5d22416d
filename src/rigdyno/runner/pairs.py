"""One pair of a duel: two processes, or two groups of ranks, both resident, taking turns, until their time is up or one
of them is lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from random import Random
from statistics import median

from rigdyno.analyse.answers import signed_percent
from rigdyno.analyse.steady import settled_so_far
from rigdyno.clock import Clock
from rigdyno.contracts import Launch, Observer, Progress
from rigdyno.launchers._address import LOOPBACK
from rigdyno.launchers._node import Part
from rigdyno.launchers._nodes.session import starter_for
from rigdyno.launchers.process import ProcessSession
from rigdyno.launchers.torchrun import listening_at, meeting_at
from rigdyno.runner.arms import Door, GroupSeat
from rigdyno.runner.collect import Ending, measured_record
from rigdyno.runner.referee import LEAST_ROUNDS, TURN_NS, Referee
from rigdyno.runner.turns import ArmLost, ArmStuck, Seat, socket_pair
from rigdyno.schema.record import RunHead, RunRecord
from rigdyno.schema.spec import Cell
from rigdyno.store.files import disk_errors
from rigdyno.units import NS_PER_S, seconds_of_ns

TICK_SECONDS = 0.5
LEAVE_SECONDS = 60.0  # for an arm that was dismissed: to check its result and write its report

Cells = tuple[Cell, Cell]
Folders = tuple[Path, Path]


@dataclass
class PairRun:
    """`folders` hold the two specifications already."""

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
        with disk_errors(self.folders[0].parent), self._launched() as (launches, ends):
            self._play(launches, ends)
            for end in ends:
                end.close()
            self._see_off(launches)
            left = [launch.collect() for launch in launches]
        endings = [
            Ending(each, self.limit_seconds if stuck else None) for each, stuck in zip(left, self._stuck, strict=True)
        ]
        a, b = (
            measured_record(self.head, self.run, cell, folder, ending)
            for cell, folder, ending in zip(self.cells, self.folders, endings, strict=True)
        )
        return a, b

    @contextmanager
    def _launched(self) -> Iterator[tuple[list[Launch], list[socket.socket | Door]]]:
        """Whatever happens inside, nothing of it stays."""
        launches: list[Launch] = []
        ends: list[socket.socket | Door] = []
        try:
            for cell, folder, beside in zip(self.cells, self.folders, (self.folders[1:], ()), strict=True):
                if cell.spec.launcher == "process":
                    ours, theirs = socket_pair()
                    ends.append(ours)
                    with theirs:
                        launches.append(ProcessSession().start(cell, folder, turns=theirs.fileno(), beside=beside))
                else:
                    ends.append(Door(folder))
                    launches.append(_group(cell, folder, beside))
            yield launches, ends
        finally:
            for end in ends:
                end.close()
            for launch in launches:
                launch.stop()

    def _play(self, launches: Sequence[Launch], ends: Sequence[socket.socket | Door]) -> None:
        until_ns = self._began_ns + int(self.limit_seconds * NS_PER_S)
        seats: list[Seat] = []
        try:
            for arm, (launch, end) in enumerate(zip(launches, ends, strict=True)):
                if isinstance(end, Door):
                    connection = end.entered(arm, launch, self.clock, until_ns, self._tick, TICK_SECONDS)
                    seats.append(GroupSeat(arm, connection, self.clock, until_ns, self.folders[arm]))
                else:
                    seats.append(Seat(arm, end, self.clock, until_ns))
            a, b = seats
            for seat in (a, b):
                seat.wait_until_ready(self._tick, TICK_SECONDS)
            for seat in (a, b):
                seat.rest()
            self._referee(a, b).play()
        except ArmLost:
            return  # its own record says what became of it
        except ArmStuck as stuck:
            self._stuck[stuck.arm] = True
        finally:
            for seat in seats:
                seat.dismiss()

    def _referee(self, a: Seat, b: Seat) -> Referee:
        spec, duel = self.cells[0].spec, self.head.plan.duel
        asked_ns = 0 if duel is None else int(duel.turn_seconds * NS_PER_S)
        return Referee(
            players=(a, b),
            clock=self.clock,
            random=Random(f"{spec.seed} {self.cells[0].pair}"),  # the same seed plays the same order
            seconds=spec.budget.seconds,
            settled=settled_so_far,
            tick=self._tick,
            least_rounds=1 if asked_ns else LEAST_ROUNDS,
            turn_ns=max(TURN_NS, asked_ns),
        )

    def _see_off(self, launches: Sequence[Launch]) -> None:
        for arm, launch in enumerate(launches):
            if self._stuck[arm] or not launch.wait(LEAVE_SECONDS):
                self._stuck[arm] = True
                launch.stop()

    def _tick(self, log_ratios: Sequence[float] = ()) -> None:
        """Between turns, so that drawing disturbs none."""
        now_ns = self.clock.now_ns()
        if now_ns < self._next_tick_ns:
            return
        self._next_tick_ns = now_ns + int(TICK_SECONDS * NS_PER_S)
        seconds = seconds_of_ns(now_ns - self._began_ns)
        expected = sum(cell.seconds for cell in self.cells)
        figure = f"B {signed_percent(exp(median(log_ratios)))}, {len(log_ratios)} rounds" if log_ratios else None
        share = min(0.99, seconds / max(expected, 0.1))
        self.observer.progress(Progress(self.cells[0], seconds, share, figure=figure))


def _group(cell: Cell, folder: Path, beside: tuple[Path, ...]) -> Launch:
    """The ranks of an arm, by the launcher of its arrangement."""
    with listening_at(LOOPBACK) as listener:
        return starter_for(cell).start_part(Part(cell, folder, meeting=meeting_at(listener), beside=beside))
