"""Progress reports of a run, and its summary."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.journal import BlockCounts

MOST_FAILURES = 100  # failures kept with their reasons; if a store disappears, every block fails


@dataclass(frozen=True)
class Failure:
    box: Box
    reason: str


@dataclass(frozen=True)
class Summary:
    """Results of this worker alone; the journal also counts the blocks of other workers on the same volume.

    The calling thread predicts, waits for input or waits for writers; together these are nearly all of `wall_seconds`.
    """

    done: int
    skipped: int
    failed: int
    failures: tuple[Failure, ...]  # the first MOST_FAILURES of them
    missing: int  # blocks that are done, although chunks of their input were never stored
    voxels: int  # in the blocks that are done
    predict_seconds: float
    input_wait_seconds: float  # includes the wait for blocks of other workers at the end
    writer_wait_seconds: float  # includes the wait for the last blocks to be written
    wall_seconds: float


class Watcher(Protocol):
    """Observer of a run. Several threads call it, but never two at once; an exception that it raises ends the run."""

    def started(self, counts: BlockCounts) -> None:
        """Report the state of all blocks, before the first claim. Blocks that failed before will be tried again."""

    def block_done(
        self, box: Box, seconds_reading: float, seconds_predicting: float, seconds_writing: float
    ) -> None: ...

    def block_skipped(self, box: Box) -> None:
        """Report a block where the mask is empty."""

    def block_failed(self, box: Box, error: Exception) -> None:
        """Report a block that couldn't be read; the run continues with the others."""

    def waiting_for_others(self, blocks: int) -> None:
        """Report, repeatedly, how many blocks are left that other workers have claimed."""

    def over(self, summary: Summary) -> None:
        """Report the end. This is always the last call, also after an error."""


class SilentWatcher:
    def started(self, counts: BlockCounts) -> None:
        pass

    def block_done(self, box: Box, seconds_reading: float, seconds_predicting: float, seconds_writing: float) -> None:
        pass

    def block_skipped(self, box: Box) -> None:
        pass

    def block_failed(self, box: Box, error: Exception) -> None:
        pass

    def waiting_for_others(self, blocks: int) -> None:
        pass

    def over(self, summary: Summary) -> None:
        pass


class BlockTally:
    """Add up the reports of readers and writers, and pass them on to the watcher, one thread at a time."""

    def __init__(self, watcher: Watcher) -> None:
        self.predict_seconds = self.input_wait_seconds = self.writer_wait_seconds = (
            0.0  # only the calling thread changes these
        )
        self._watcher, self._mutex = watcher, threading.Lock()
        self._done = self._skipped = self._failed = self._missing = self._voxels = 0
        self._failures: list[Failure] = []

    def block_done(self, box: Box, missing: bool, reading: float, predicting: float, writing: float) -> None:
        with self._mutex:
            self._done += 1
            self._missing += missing
            self._voxels += box.voxels
            self._watcher.block_done(box, reading, predicting, writing)

    def block_skipped(self, box: Box) -> None:
        with self._mutex:
            self._skipped += 1
            self._watcher.block_skipped(box)

    def block_failed(self, box: Box, error: Exception) -> None:
        with self._mutex:
            self._failed += 1
            if len(self._failures) < MOST_FAILURES:
                self._failures.append(Failure(box, " ".join(str(error).split())))
            self._watcher.block_failed(box, error)

    def waiting_for_others(self, blocks: int) -> None:
        with self._mutex:
            self._watcher.waiting_for_others(blocks)

    def summary(self, wall_seconds: float) -> Summary:
        with self._mutex:
            return Summary(
                done=self._done,
                skipped=self._skipped,
                failed=self._failed,
                failures=tuple(self._failures),
                missing=self._missing,
                voxels=self._voxels,
                predict_seconds=self.predict_seconds,
                input_wait_seconds=self.input_wait_seconds,
                writer_wait_seconds=self.writer_wait_seconds,
                wall_seconds=wall_seconds,
            )
