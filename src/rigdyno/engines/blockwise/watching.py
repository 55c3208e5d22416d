"""What a run tells while it goes on, and what it says in the end."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.journal import Counts

MOST_FAILURES = 100  # kept with their reasons; a store that went away fails every block


@dataclass(frozen=True)
class Failure:
    box: Box
    reason: str


@dataclass(frozen=True)
class Summary:
    """Of this worker alone: what others did to the same volume is in the journal's counts.

    The calling thread predicts, waits for input or waits for writers: together nearly all of the wall's seconds.
    """

    done: int
    skipped: int
    failed: int
    failures: tuple[Failure, ...]  # the first of them
    missing: int  # done, though chunks of their input were never stored
    voxels: int  # of the blocks that are done
    predict_seconds: float
    input_wait_seconds: float  # also for blocks of other workers, at the end
    writer_wait_seconds: float  # also for the last blocks, when nothing is left to predict
    wall_seconds: float


class Watcher(Protocol):
    """Called from several threads, but never by two at once; what it raises ends the run."""

    def started(self, counts: Counts) -> None:
        """What is left of the volume, before the first claim. What failed before will be tried again."""

    def block_done(
        self, box: Box, seconds_reading: float, seconds_predicting: float, seconds_writing: float
    ) -> None: ...

    def block_skipped(self, box: Box) -> None:
        """The mask is empty there."""

    def block_failed(self, box: Box, error: Exception) -> None:
        """It couldn't be read; the others go on."""

    def waiting_for_others(self, blocks: int) -> None:
        """So many are left, and other workers have them. Told again at every look."""

    def over(self, summary: Summary) -> None:
        """Always the last call, also when an error is on its way."""


class Silent:
    def started(self, counts: Counts) -> None:
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


class Tally:
    """Adds up what readers and writers report, and passes it on to the watcher, one thread at a time."""

    def __init__(self, watcher: Watcher) -> None:
        self.predict_seconds = self.input_wait_seconds = self.writer_wait_seconds = 0.0  # by the calling thread alone
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
