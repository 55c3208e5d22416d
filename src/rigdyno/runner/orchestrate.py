"""Carry out a plan: launch each cell, collect its results and store them.

It draws nothing, but reports progress to an observer, with the current rate of the running cell.
"""

from __future__ import annotations

import shutil
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rigdyno.base.clock import Clock, Stopwatch, SystemClock, utc_now
from rigdyno.base.errors import Interrupted, StoreError
from rigdyno.base.files import disk_errors, write_json
from rigdyno.base.processes import termination_as_interrupt
from rigdyno.base.units import NS_PER_S, seconds_of_ns
from rigdyno.contracts import Launch, Observer, Progress
from rigdyno.plan.build import workload_of
from rigdyno.runner.collect import CellExit, Stamp, measured_record, record_of
from rigdyno.runner.course import Course, DuelCourse, PlannedCourse, Settle, SpareCourse
from rigdyno.runner.pairs.pair import PairRun
from rigdyno.runner.schedule import Schedule, still_to_run
from rigdyno.runner.sessions import Sessions
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import COUNTED, UNNAMED, RunHead, RunRecord, Skipped
from rigdyno.schema.samples import STEP_STRUCT
from rigdyno.schema.spec import Cell, RunPlan, ranks_among
from rigdyno.store.folder import RunFolder

RECENT_NS = 2 * NS_PER_S  # the window of the live rate

TICK_SECONDS = 0.5

_ROW = struct.Struct(STEP_STRUCT)


class LiveRate:
    """Reads the current rate from the rows of a running worker. It reads only new rows, so it costs very little."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset: int | None = None  # of the next row; None until the header is written
        self._recent: deque[tuple[int, int, float]] = deque()
        self.counts = False  # whether any step has a number of items other than one

    def rate(self) -> float | None:
        """Return the items per second over the last two seconds; None before the first row."""
        for start_ns, end_ns, items, steps, *_ in _ROW.iter_unpack(self._read_new_rows()):
            self._recent.append((start_ns, end_ns, items))
            self.counts = self.counts or items != steps
        while len(self._recent) > 1 and self._recent[-1][1] - self._recent[0][1] > RECENT_NS:
            self._recent.popleft()
        spent_ns = sum(end_ns - start_ns for start_ns, end_ns, _ in self._recent)
        return sum(items for *_, items in self._recent) / seconds_of_ns(spent_ns) if spent_ns else None

    def _read_new_rows(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                if self._offset is None:
                    header = file.readline()
                    self._offset = len(header) if header.endswith(b"\n") else None
                if self._offset is None:
                    return b""
                file.seek(self._offset)
                rows = file.read()
        except FileNotFoundError:
            return b""
        whole = len(rows) - len(rows) % _ROW.size
        self._offset += whole
        return rows[:whole]


def time_limit_seconds(expected: float) -> float:
    """Return the time after which a cell is stopped, so that an endless step doesn't hang the run.

    It is generous: a machine under load is slow, not stuck."""
    return 60.0 + 5.0 * expected


@dataclass(frozen=True)
class Orchestrator:
    folder: RunFolder
    head: RunHead
    observer: Observer
    sessions: Sessions
    settle: Settle
    clock: Clock = field(default_factory=SystemClock)
    within_seconds: float | None = None  # time left of a budget shared with other runs

    def run(self) -> list[RunRecord]:
        """Run every cell that has no record yet, and return the new records.

        Cells whose nodes are gone are left for a later `--resume`."""
        records: list[RunRecord] = []
        with self.folder.locked(), termination_as_interrupt():
            self.observer.planned(self.head.plan, self.folder.path)
            left = still_to_run(self.head.plan, self.folder.is_finished)
            spent = spent_on_spares(self.head.plan, self.folder)
            schedule = Schedule(self.head.plan, left, self.clock, spent, self.within_seconds)
            try:
                for course in self._list_courses(schedule, [cell for cell in left if cell.spare]):
                    while cells := course.next_cells(self.folder):
                        records += self._run_cells(cells, schedule)
            except KeyboardInterrupt:
                raise Interrupted(self._describe_interruption()) from None
            finally:
                self.observer.over()
        return records

    def _list_courses(self, schedule: Schedule, spare: Sequence[Cell]) -> Iterator[Course]:
        yield PlannedCourse(self.head.plan, schedule, self.sessions, self.settle)
        yield SpareCourse(spare, schedule, self.sessions)
        if schedule.has_time_for_pairs:
            yield DuelCourse(self.head.plan, self.clock)

    def _run_cells(self, cells: Sequence[Cell], schedule: Schedule) -> list[RunRecord]:
        """Run one cell, or the two of a pair, of which the schedule only knows the total time."""
        if len(cells) == 2:
            return self._run_pair(*cells)
        record = self._run_cell(cells[0])
        schedule.note_end(cells[0], record)
        return [record]

    def _describe_interruption(self) -> str:
        cells = [cell for cell in self.head.plan.cells if not cell.spare]
        done, total = sum(self.folder.is_finished(cell) for cell in cells), len(cells)
        return f"interrupted; {done} of {total} cells are kept. Go on with: rigdyno run --resume {self.folder.path}"

    def _run_cell(self, cell: Cell) -> RunRecord:
        self.observer.started(cell)
        folder = self._prepare_folder(cell)
        stamp = Stamp(self.clock)
        if cell.refusal is not None:
            record = record_of(self.head, self.folder.name, cell, Skipped(reason=cell.refusal))
        else:
            record = self._measure(cell, folder)
        return self._store_record(stamp.on(record), cell)

    def _prepare_folder(self, cell: Cell) -> Path:
        folder = self.folder.fresh_cell_folder(cell)
        write_json(CellFolder(folder).spec, cell)
        return folder

    def _store_record(self, record: RunRecord, cell: Cell) -> RunRecord:
        self.folder.write_record(record, cell)
        self.observer.finished(record)
        return record

    def _measure(self, cell: Cell, folder: Path) -> RunRecord:
        with disk_errors(folder):
            launch = self.sessions.of(cell).start(cell, folder)
            timed_out = self._watch(launch, cell, folder)
            left = launch.collect()
        if left.lost is not None:
            self.sessions.lose(cell)
        limit = time_limit_seconds(_find_longest_seconds(cell)) if timed_out else None
        return measured_record(self.head, self.folder.name, cell, folder, CellExit(left, limit))

    def _run_pair(self, a: Cell, b: Cell) -> list[RunRecord]:
        """Run the two arms of a duel together."""
        self.observer.started(a)
        pair = PairRun(
            head=self.head,
            run=self.folder.name,
            cells=(a, b),
            folders=(self._prepare_folder(a), self._prepare_folder(b)),
            observer=self.observer,
            clock=self.clock,
            limit_seconds=time_limit_seconds(a.seconds + b.seconds),
        )
        stamp = Stamp(self.clock)
        records = pair.measure()
        return [self._store_record(stamp.on(record), cell) for record, cell in zip(records, (a, b), strict=True)]

    def _watch(self, launch: Launch, cell: Cell, folder: Path) -> bool:
        """Wait until the workers have ended. Return whether they had to be stopped."""
        ranks = ranks_among(cell.participants)
        live = LiveRate(CellFolder(folder).participant(ranks[0].id).rows("steps"))
        stopwatch = Stopwatch(self.clock)
        unit = workload_of(cell.spec).unit
        try:
            while not launch.wait(TICK_SECONDS):
                seconds = stopwatch.seconds
                if seconds > time_limit_seconds(_find_longest_seconds(cell)):
                    launch.stop()
                    return True
                share = min(0.99, seconds / max(cell.seconds, 0.1))
                rate = live.rate()
                total_rate = None if rate is None else rate * len(ranks)
                rate_unit = COUNTED if unit == UNNAMED and live.counts else unit
                self.observer.progress(Progress(cell, seconds, share, total_rate, rate_unit))
        except BaseException:
            launch.stop()
            raise
        return False


def spent_on_spares(plan: RunPlan, folder: RunFolder) -> float:
    spare = {cell.name for cell in plan.cells if cell.spare}
    return sum(cell.record.seconds for cell in folder.cells([]) if cell.record.cell in spare) if spare else 0.0


def _find_longest_seconds(cell: Cell) -> float:
    """Return the longer of the cell's planned and allotted times."""
    return max(cell.seconds, cell.spec.budget.most_seconds + (cell.spec.budget.start_seconds or 0.0))


def create_run(head: RunHead, root: Path) -> RunFolder:
    """Create the folder of a run and write its head."""
    folder = RunFolder.create(root, head.plan.name, utc_now())
    try:
        folder.write_head(head)
    except StoreError:
        shutil.rmtree(folder.path, ignore_errors=True)  # it was just created, and has no results
        raise
    return folder
