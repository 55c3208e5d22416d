"""From volume to volume: readers, one predictor, writers, and never more than so many blocks in memory.

claims -> `readers` threads: read -> the calling thread: predict -> `writers` threads: encode, write, mark

A block is alive from before it is read until it is marked. At any moment there are at most
    ahead     that are being read, or have been and wait to be predicted,
    1         that is being predicted, or has been and waits for a writer, by then without its input,
    writers   that are being encoded and written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.crew import Crew, Stopped, places, raise_all
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting
from rigdyno.engines.blockwise.grid import Grid
from rigdyno.engines.blockwise.journal import Journal
from rigdyno.engines.blockwise.watching import Summary, Tally, Watcher


class Skip(Enum):
    SKIP = "nothing is to be predicted there"


SKIP: Final = Skip.SKIP


class Readied(Protocol):
    """What `read` returns and `predict` takes: anything that says whether chunks were missing, as `Reading` does."""

    @property
    def missing(self) -> bool: ...


T = TypeVar("T", bound=Readied)  # what was read
P = TypeVar("P")  # what was predicted
E = TypeVar("E")  # what is written


def most_blocks_alive(*, ahead: int, writers: int) -> int:
    return ahead + 1 + writers


def run_blocks(
    *,
    journal: Journal,
    grid: Grid,
    read: Callable[[Box], T | Skip],
    predict: Callable[[T], P],
    encode: Callable[[P], E],
    write: Callable[[Box, E], None],
    readers: int,
    writers: int,
    ahead: int,
    watcher: Watcher,
    clock: Callable[[], float] = time.perf_counter,
) -> Summary:
    """Does what the journal has to do, together with all other workers on it; returns when nothing is left.

    A BadRegion from `read` marks its block as failed. Whatever else is raised ends the run: nothing more is claimed,
    what is being written is finished, the rest stays to do, and the error is raised here. So does Ctrl-C; a second one
    waits for nothing, and only then may a thread outlive this, until its read or its write returns.
    """
    if min(readers, writers, ahead) < 1:
        raise BadSetting(f"{readers} readers, {writers} writers, {ahead} blocks ahead: each must be at least 1")
    if journal.blocks != len(grid):
        raise BadSetting(f"{journal.path} is for {journal.blocks} blocks, and this grid has {len(grid)}")
    steps = _Steps(read, predict, encode, write, clock)
    return _Run(journal, grid, steps, readers, writers, ahead, watcher).to_the_end()


@dataclass(frozen=True)
class _Steps(Generic[T, P, E]):
    read: Callable[[Box], T | Skip]
    predict: Callable[[T], P]
    encode: Callable[[P], E]
    write: Callable[[Box, E], None]
    clock: Callable[[], float]


@dataclass(frozen=True)
class _Read(Generic[T]):
    block: int
    values: T
    seconds: float


@dataclass(frozen=True)
class _Predicted(Generic[P]):
    block: int
    values: P
    missing: bool
    seconds_reading: float
    seconds: float


class _Run(Generic[T, P, E]):
    def __init__(
        self,
        journal: Journal,
        grid: Grid,
        steps: _Steps[T, P, E],
        readers: int,
        writers: int,
        ahead: int,
        watcher: Watcher,
    ) -> None:
        self._journal, self._grid, self._steps, self._watcher = journal, grid, steps, watcher
        self._tally = Tally(watcher)
        self._claims = journal.claims(wait=self._wait, waiting=self._tally.waiting_for_others)
        self._claiming = threading.Lock()
        self._places_ahead, self._free_writers = places(ahead), places(writers)
        self._to_predict: SimpleQueue[_Read[T] | None] = SimpleQueue()  # None: a reader has ended
        self._to_write: SimpleQueue[_Predicted[P] | None] = SimpleQueue()  # None: a writer is to end
        self._readers, self._writers, self._readers_at_work = readers, writers, readers
        self._stopping, self._crew = threading.Event(), Crew(self._stop)

    def to_the_end(self) -> Summary:
        began = self._steps.clock()
        self._watcher.started(self._journal.counts())
        try:
            self._run()
        finally:
            if not self._crew.at_work:  # a block that is still being written mustn't be claimed by others
                self._journal.give_back()
            summary = self._tally.summary(self._steps.clock() - began)
            self._watcher.over(summary)
        return summary

    def _run(self) -> None:
        try:
            self._crew.start(self._readers, self._read_all)
            self._crew.start(self._writers, self._write_all)
            while self._predict_next():
                pass
            self._let_all_end()
        except BaseException as error:  # noqa: BLE001 (raised again, with what the crew met)
            self._stop()
            self._let_all_end()
            raise_all([error, *self._crew.errors])
        if self._crew.errors:
            raise_all(self._crew.errors)

    def _predict_next(self) -> bool:
        began = self._steps.clock()
        read = self._next_read()
        self._tally.input_wait_seconds += self._steps.clock() - began
        if read is None:
            return False
        self._places_ahead.put(None)
        predicted = self._predicted(read)
        del read  # a writer may be long in coming, and only the output is still needed
        began = self._steps.clock()
        self._free_writers.get()
        self._tally.writer_wait_seconds += self._steps.clock() - began
        if self._stopping.is_set():
            return False
        self._to_write.put(predicted)
        return True

    def _next_read(self) -> _Read[T] | None:
        while self._readers_at_work:
            read = self._to_predict.get()
            if self._stopping.is_set():
                return None
            if read is not None:
                return read
            self._readers_at_work -= 1
        return None

    def _predicted(self, read: _Read[T]) -> _Predicted[P]:
        began = self._steps.clock()
        values = self._steps.predict(read.values)
        seconds = self._steps.clock() - began
        self._tally.predict_seconds += seconds
        return _Predicted(read.block, values, read.values.missing, read.seconds, seconds)

    def _read_all(self) -> None:
        while (block := self._next_claim()) is not None:
            self._read(block)  # what it has read must not live on in this frame, which waits for a place
        self._places_ahead.put(None)  # for the next reader, which is to end as well
        self._to_predict.put(None)

    def _next_claim(self) -> int | None:
        self._places_ahead.get()
        with self._claiming:
            return None if self._stopping.is_set() else next(self._claims, None)

    def _read(self, block: int) -> None:
        box, began = self._grid[block], self._steps.clock()
        try:
            values = self._steps.read(box)
        except BadRegion as error:
            self._journal.failed(block)
            self._tally.block_failed(box, error)
            self._places_ahead.put(None)
            return
        if values is SKIP:
            self._journal.skipped(block)
            self._tally.block_skipped(box)
            self._places_ahead.put(None)
        else:
            self._to_predict.put(_Read(block, values, self._steps.clock() - began))

    def _write_all(self) -> None:
        while self._write_next():
            self._free_writers.put(None)

    def _write_next(self) -> bool:
        predicted = self._to_write.get()
        if predicted is None:
            return False
        box, began = self._grid[predicted.block], self._steps.clock()
        self._steps.write(box, self._steps.encode(predicted.values))
        self._journal.done(predicted.block)
        seconds = self._steps.clock() - began
        self._tally.block_done(box, predicted.missing, predicted.seconds_reading, predicted.seconds, seconds)
        return True

    def _wait(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise Stopped

    def _stop(self) -> None:
        """Wakes all who wait for a place; what has been handed to the writers is still written."""
        self._stopping.set()
        for _ in range(self._readers):
            self._places_ahead.put(None)
        self._free_writers.put(None)
        self._to_predict.put(None)

    def _let_all_end(self) -> None:
        began = self._steps.clock()
        for _ in range(self._writers):
            self._to_write.put(None)
        self._crew.join()
        self._tally.writer_wait_seconds += self._steps.clock() - began
