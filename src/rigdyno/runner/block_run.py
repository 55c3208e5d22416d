"""What `rigdyno infer` leaves in the store: a row for each block as it is done, and a record when it is over."""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rigdyno.clock import Clock, ClockWatch
from rigdyno.contracts import Observer, Progress
from rigdyno.errors import StoreError
from rigdyno.runner.run_here import RunHere, outcome_of, warn
from rigdyno.schema.record import Completed, Facts, Quality, RunHead, RunRecord
from rigdyno.schema.samples import CLOCK_JUMPED, STEP_STRUCT, RowFile
from rigdyno.units import NS_PER_S, seconds_of_ns

if TYPE_CHECKING:
    from rigdyno.engines.blockwise.boxes import Box
    from rigdyno.engines.blockwise.journal import Counts
    from rigdyno.engines.blockwise.watching import Summary

TICK_NS = NS_PER_S // 2  # drawing costs time on the machine that is being measured
_ROW = struct.Struct(STEP_STRUCT)


class BlockRows:
    """A row for each block that is done: from when the one before it was done until now, with its voxels.

    Blocks overlap: while one is predicted, the next is read and the last is written. Rows from the begin of a block's
    reading to the end of its writing would count the same second two or three times, and their sum of voxels over sum
    of seconds would be a fraction of the rate that the user saw. The times between completions add up to the time that
    passed, however many threads share the work. What it takes to fill the pipeline falls into the first row, where the
    warm-up is cut.
    """

    def __init__(self, file: RowFile, clock: Clock) -> None:
        self._file, self._clock, self._watch = file, clock, ClockWatch(clock)
        self._start_ns, self._voxels, self._blocks = clock.now_ns(), 0, 0

    def done(self, voxels: int) -> None:
        now_ns = self._clock.now_ns()
        self._voxels += voxels
        self._blocks += 1
        if now_ns <= self._start_ns:
            return  # two at the same moment, or a clock that was set back: they are one row with the next
        flags = CLOCK_JUMPED if self._watch.jumped() else 0
        self._file.append(_ROW.pack(self._start_ns, now_ns, self._voxels, self._blocks, 0, flags))
        self._start_ns, self._voxels, self._blocks = now_ns, 0, 0


class BlockRun:
    """A Watcher of the blockwise engine: makes a run of what it is told, and tells an observer. Neither a store that
    can't be written nor a terminal that was closed ends an inference of hours."""

    def __init__(self, root: Path, head: RunHead, observer: Observer, clock: Clock, voxels: int, blocks: int) -> None:
        self._root, self._head, self._observer, self._clock = root, head, observer, clock
        self._whole, self._blocks = voxels, blocks
        self._run: RunHere | None = None
        self._rows: BlockRows | None = None
        self._voxels = self._voxels_before = 0
        self._began_ns = self._told_ns = clock.now_ns()
        self.before: Counts | None = None  # what was done when it began; None: it didn't
        self.summary: Summary | None = None

    def started(self, counts: Counts) -> None:
        """Where nothing is left to do there is nothing to record."""
        self.before = counts
        self._voxels_before = self._whole * (counts.done + counts.skipped) // max(1, self._blocks)
        if counts.to_do or counts.failed:
            self._begin()
        self._began_ns = self._told_ns = self._clock.now_ns()

    def _begin(self) -> None:
        try:
            self._run = RunHere(self._root, self._head.plan.name, self._head)
            self._rows = BlockRows(self._run.rows, self._clock)
        except StoreError as trouble:
            warn(f"{trouble}; the volume is computed all the same, and no record is kept")
        (cell,) = self._head.plan.cells
        self._tell(lambda: self._observer.planned(self._head.plan, self._root))
        self._tell(lambda: self._observer.started(cell))

    def block_done(self, box: Box, seconds_reading: float, seconds_predicting: float, seconds_writing: float) -> None:
        self._voxels += box.voxels
        if self._rows is not None:
            self._rows.done(box.voxels)
        self._progress()

    def block_skipped(self, box: Box) -> None:
        self._voxels_before += box.voxels  # nothing was computed: the rate must not rise by it
        self._progress()

    def block_failed(self, box: Box, error: Exception) -> None:
        self._tell(lambda: self._observer.noticed(f"can't read {box}: {' '.join(str(error).split())}"))

    def waiting_for_others(self, blocks: int) -> None:
        self._progress(f"waiting for {blocks:,} block{'' if blocks == 1 else 's'} of other processes")

    def over(self, summary: Summary) -> None:
        self.summary = summary

    def end(self, error: BaseException | None, facts: Facts, *, correct: bool | None = None) -> Path | None:
        """Where the record lies; None: there is none. What was raised by a network of the user's goes into the log."""
        record = None if self._run is None else self._recorded(self._run, error, facts, correct)
        if record is not None:
            self._tell(lambda: self._observer.finished(record))
        self._tell(self._observer.over)
        return self._run.path if self._run is not None and record is not None else None

    def _recorded(
        self, run: RunHere, error: BaseException | None, facts: Facts, correct: bool | None
    ) -> RunRecord | None:
        if isinstance(error, Exception):
            with suppress(OSError):
                run.log.write_text("".join(traceback.format_exception(error)))
        outcome = outcome_of(error or run.rows.error)
        if isinstance(outcome, Completed):
            outcome = Completed(quality=Quality(correct=correct))
        return run.end(outcome, facts)

    def _progress(self, figure: str | None = None) -> None:
        now_ns = self._clock.now_ns()
        if now_ns - self._told_ns < TICK_NS:
            return
        self._told_ns = now_ns
        (cell,), seconds = self._head.plan.cells, seconds_of_ns(now_ns - self._began_ns)
        share = min(1.0, (self._voxels_before + self._voxels) / self._whole)
        rate = self._voxels / seconds if self._voxels else None
        left = (1 - share) * self._whole / rate if rate else None
        self._tell(lambda: self._observer.progress(Progress(cell, seconds, share, rate, "voxel", figure, left)))

    def _tell(self, call: Callable[[], None]) -> None:
        with suppress(OSError):  # whoever read it may have gone away (`| head`)
            call()
