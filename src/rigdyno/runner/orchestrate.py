"""Carries out a plan: for each cell launch, collect, store. Draws nothing: it tells an observer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rigdyno.clock import Clock, SystemClock, utc_now
from rigdyno.contracts import Launch, Observer, Progress
from rigdyno.errors import Interrupted
from rigdyno.plan.build import workload_of
from rigdyno.runner.collect import Ending, measured_record, record_of
from rigdyno.runner.course import Course, DuelCourse, PlannedCourse, SpareCourse
from rigdyno.runner.live import LiveRate
from rigdyno.runner.pairs import PairRun
from rigdyno.runner.schedule import Schedule, still_to_run
from rigdyno.runner.sessions import Sessions
from rigdyno.runner.signals import termination_as_interrupt
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.participant import ranks_among
from rigdyno.schema.record import COUNTED, UNNAMED, RunHead, RunRecord, Skipped
from rigdyno.schema.spec import Cell, Plan
from rigdyno.store.files import disk_errors, write_json
from rigdyno.store.folder import RunFolder
from rigdyno.units import seconds_of_ns

TICK_SECONDS = 0.5


def time_limit_seconds(expected: float) -> float:
    """Generous: a machine under load is slow, not stuck. A step that never ends must not hang the run."""
    return 60.0 + 5.0 * expected


@dataclass(frozen=True)
class Orchestrator:
    folder: RunFolder
    head: RunHead
    observer: Observer
    sessions: Sessions
    clock: Clock = field(default_factory=SystemClock)
    within_seconds: float | None = None  # that are left, where other runs share them

    def run(self) -> list[RunRecord]:
        """Every cell that has no record yet; the records just made. Cells whose nodes are gone are left for later."""
        records: list[RunRecord] = []
        with self.folder.locked(), termination_as_interrupt():
            self.observer.planned(self.head.plan, self.folder.path)
            left = still_to_run(self.head.plan, self.folder.is_finished)
            spent = spent_on_spares(self.head.plan, self.folder)
            schedule = Schedule(self.head.plan, left, self.clock, spent, self.within_seconds)
            try:
                for course in self._courses(schedule, [cell for cell in left if cell.spare]):
                    while cells := course.next_cells(self.folder):
                        records += self._measured_together(cells, schedule)
            except KeyboardInterrupt:
                raise Interrupted(self._interrupted_message()) from None
            finally:
                self.observer.over()
        return records

    def _courses(self, schedule: Schedule, spare: Sequence[Cell]) -> Iterator[Course]:
        yield PlannedCourse(self.head.plan, schedule, self.sessions)
        yield SpareCourse(spare, schedule, self.sessions)
        if schedule.has_time_for_pairs:
            yield DuelCourse(self.head.plan, self.clock)

    def _measured_together(self, cells: Sequence[Cell], schedule: Schedule) -> list[RunRecord]:
        """One cell; or the two of a pair, of which the schedule knows the sum only."""
        if len(cells) == 2:
            return self._pair(*cells)
        record = self._cell(cells[0])
        schedule.ended(cells[0], record)
        return [record]

    def _interrupted_message(self) -> str:
        cells = [cell for cell in self.head.plan.cells if not cell.spare]
        done, total = sum(self.folder.is_finished(cell) for cell in cells), len(cells)
        return f"interrupted; {done} of {total} cells are kept. Go on with: rigdyno run --resume {self.folder.path}"

    def _cell(self, cell: Cell) -> RunRecord:
        self.observer.started(cell)
        folder = self._prepared(cell)
        stamp = Stamp(self.clock)
        if cell.refusal is not None:
            record = record_of(self.head, self.folder.name, cell, Skipped(reason=cell.refusal))
        else:
            record = self._measured(cell, folder)
        return self._kept(stamp.on(record), cell)

    def _prepared(self, cell: Cell) -> Path:
        folder = self.folder.fresh_cell_folder(cell)
        write_json(CellFolder(folder).spec, cell)
        return folder

    def _kept(self, record: RunRecord, cell: Cell) -> RunRecord:
        self.folder.write_record(record, cell)
        self.observer.finished(record)
        return record

    def _measured(self, cell: Cell, folder: Path) -> RunRecord:
        with disk_errors(folder):
            launch = self.sessions.of(cell).start(cell, folder)
            timed_out = self._watch(launch, cell, folder)
            left = launch.collect()
        if left.lost is not None:
            self.sessions.lose(cell)
        limit = time_limit_seconds(_longest(cell)) if timed_out else None
        return measured_record(self.head, self.folder.name, cell, folder, Ending(left, limit))

    def _pair(self, a: Cell, b: Cell) -> list[RunRecord]:
        """The two arms of a duel, which run together."""
        self.observer.started(a)
        pair = PairRun(
            head=self.head,
            run=self.folder.name,
            cells=(a, b),
            folders=(self._prepared(a), self._prepared(b)),
            observer=self.observer,
            clock=self.clock,
            limit_seconds=time_limit_seconds(a.seconds + b.seconds),
        )
        stamp = Stamp(self.clock)
        records = pair.measure()
        return [self._kept(stamp.on(record), cell) for record, cell in zip(records, (a, b), strict=True)]

    def _watch(self, launch: Launch, cell: Cell, folder: Path) -> bool:
        """Sleeps until the workers are gone; whether they had to be stopped."""
        ranks = ranks_among(cell.participants)
        live = LiveRate(CellFolder(folder).participant(ranks[0].id).rows("steps"))
        began_ns = self.clock.now_ns()
        unit = workload_of(cell.spec).unit
        try:
            while not launch.wait(TICK_SECONDS):
                seconds = seconds_of_ns(self.clock.now_ns() - began_ns)
                if seconds > time_limit_seconds(_longest(cell)):
                    launch.stop()
                    return True
                share = min(0.99, seconds / max(cell.seconds, 0.1))
                rate = live.rate()
                everybody = None if rate is None else rate * len(ranks)
                shown = COUNTED if unit == UNNAMED and live.counts else unit
                self.observer.progress(Progress(cell, seconds, share, everybody, shown))
        except BaseException:
            launch.stop()
            raise
        return False


def spent_on_spares(plan: Plan, folder: RunFolder) -> float:
    spare = {cell.name for cell in plan.cells if cell.spare}
    return sum(cell.record.seconds for cell in folder.cells([]) if cell.record.cell in spare) if spare else 0.0


def _longest(cell: Cell) -> float:
    """What it may take as it was planned, or as it was allotted."""
    return max(cell.seconds, cell.spec.budget.most_seconds + (cell.spec.budget.start_seconds or 0.0))


class Stamp:
    """When something began, and how long it took when it is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._began_ns = clock, clock.now_ns()
        self._started_at = utc_now().isoformat(timespec="seconds")

    def on(self, record: RunRecord) -> RunRecord:
        seconds = round(seconds_of_ns(self._clock.now_ns() - self._began_ns), 3)
        return msgspec.structs.replace(record, started_at=self._started_at, seconds=seconds)
