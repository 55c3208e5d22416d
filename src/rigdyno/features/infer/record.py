"""Store what `rigdyno infer` did: one row per finished block, and a record at the end."""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rigdyno.base.clock import Clock, ClockWatch
from rigdyno.base.errors import StoreError
from rigdyno.base.units import NS_PER_S, seconds_of_ns
from rigdyno.contracts import Observer, Progress
from rigdyno.runner.here import RunHere, outcome_from_error, warn
from rigdyno.schema.record import Completed, Facts, Quality, RunHead, RunRecord
from rigdyno.schema.samples import CLOCK_JUMPED, STEP_STRUCT, RowFile

if TYPE_CHECKING:
    from rigdyno.engines.blockwise.boxes import Box
    from rigdyno.engines.blockwise.journal import BlockCounts
    from rigdyno.engines.blockwise.watching import Summary

TICK_NS = NS_PER_S // 2  # between two updates of the display, which cost time on the measured machine

_ROW = struct.Struct(STEP_STRUCT)


class BlockRows:
    """Writes a row per finished block: the time since the block before it was finished, and its voxels.

    Blocks overlap: while one is predicted, the next is read and the last is written. Rows from the start of reading to
    the end of writing would count the same second two or three times, and voxels over seconds would be a fraction of
    the real rate. The times between completions add up to the elapsed time, however many threads share the work. The
    time to fill the pipeline is in the first row, which is cut as warm-up.
    """

    def __init__(self, file: RowFile, clock: Clock) -> None:
        self._file, self._clock, self._watch = file, clock, ClockWatch(clock)
        self._start_ns, self._voxels, self._blocks = clock.now_ns(), 0, 0

    def add(self, voxels: int) -> None:
        now_ns = self._clock.now_ns()
        self._voxels += voxels
        self._blocks += 1
        if now_ns <= self._start_ns:
            return  # at the same moment, or the clock was set back: count it in the next row
        flags = CLOCK_JUMPED if self._watch.has_jumped() else 0
        self._file.append(_ROW.pack(self._start_ns, now_ns, self._voxels, self._blocks, 0, flags))
        self._start_ns, self._voxels, self._blocks = now_ns, 0, 0


class BlockRun:
    """A Watcher of the blockwise engine that stores a run and informs an observer.

    Neither a store that can't be written nor a closed terminal ends an inference of hours.
    """

    def __init__(self, root: Path, head: RunHead, observer: Observer, clock: Clock, voxels: int, blocks: int) -> None:
        self._root, self._head, self._observer, self._clock = root, head, observer, clock
        self._whole, self._blocks = voxels, blocks
        self._run: RunHere | None = None
        self._rows: BlockRows | None = None
        self._voxels = self._voxels_before = 0
        self._began_ns = self._told_ns = clock.now_ns()
        self.before: BlockCounts | None = None  # blocks when it began; None: it didn't begin
        self.summary: Summary | None = None

    def started(self, counts: BlockCounts) -> None:
        """Begin a run, unless nothing is left to do."""
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
            self._rows.add(box.voxels)
        self._progress()

    def block_skipped(self, box: Box) -> None:
        self._voxels_before += box.voxels  # nothing was computed: the rate must not include it
        self._progress()

    def block_failed(self, box: Box, error: Exception) -> None:
        self._tell(lambda: self._observer.noticed(f"can't read {box}: {' '.join(str(error).split())}"))

    def waiting_for_others(self, blocks: int) -> None:
        self._progress(f"waiting for {blocks:,} block{'' if blocks == 1 else 's'} of other processes")

    def over(self, summary: Summary) -> None:
        self.summary = summary

    def end(self, error: BaseException | None, facts: Facts, *, correct: bool | None = None) -> Path | None:
        """Write the record and return its path; None if there is none. The traceback of an error goes into the log."""
        record = None if self._run is None else self._write_record(self._run, error, facts, correct)
        if record is not None:
            self._tell(lambda: self._observer.finished(record))
        self._tell(self._observer.over)
        return self._run.path if self._run is not None and record is not None else None

    def _write_record(
        self, run: RunHere, error: BaseException | None, facts: Facts, correct: bool | None
    ) -> RunRecord | None:
        if isinstance(error, Exception):
            with suppress(OSError):
                run.log.write_text("".join(traceback.format_exception(error)))
        outcome = outcome_from_error(error or run.rows.error)
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
        with suppress(OSError):  # the reader may be gone (`| head`)
            call()
