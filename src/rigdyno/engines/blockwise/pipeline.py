"""Read, predict and write blocks in parallel, with a bounded number of blocks in memory.

claims -> `readers` threads: read -> the calling thread: predict -> `writers` threads: encode, write, mark

A block is in memory from before it is read until it is marked. At any moment there are at most
    ahead     blocks that are being read, or were read and wait to be predicted,
    1         block that is being predicted, or was predicted, freed its input and waits for a writer,
    writers   blocks that are being encoded and written.

Ctrl-C may interrupt the calling thread anywhere. So that thread only waits for SimpleQueues, which are written in C: a
Semaphore or an Event may be left in an inconsistent state, and a `Thread.join` that is interrupted, up to Python 3.12,
regards its thread as ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Final, Generic, NoReturn, Protocol, TypeVar

from rigdyno.engines.blockwise.boxes import Box, Grid
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting
from rigdyno.engines.blockwise.journal import Journal
from rigdyno.engines.blockwise.watching import BlockTally, Summary, Watcher

LOOK_AGAIN_SECONDS = 0.5  # a Ctrl-C that arrives just before the thread sleeps is handled when it wakes

Slots = SimpleQueue[None]  # a semaphore: `get` acquires a slot, `put` releases it


class Skip(Enum):
    SKIP = "nothing to predict in this block"


SKIP: Final = Skip.SKIP


class ReadBlock(Protocol):
    """Type that `read` returns and `predict` takes: anything that says whether chunks were missing, like `Reading`."""

    @property
    def missing(self) -> bool: ...


T = TypeVar("T", bound=ReadBlock)  # a block that was read

P = TypeVar("P")  # a block that was predicted

E = TypeVar("E")  # a block as it is written


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
    """Process the blocks that the journal lists as to do, sharing them with other workers, until none is left.

    A BadRegion from `read` marks its block as failed. Any other error ends the run: no more blocks are claimed, blocks
    that are being written are finished, the rest stays to do, and the error is raised here. Ctrl-C does the same; a
    second Ctrl-C returns at once, and only then may a thread outlive this call, until its read or write returns.
    """
    if min(readers, writers, ahead) < 1:
        raise BadSetting(f"{readers} readers, {writers} writers, {ahead} blocks ahead: each must be at least 1")
    if journal.blocks != len(grid):
        raise BadSetting(f"{journal.path} is for {journal.blocks} blocks, and this grid has {len(grid)}")
    steps = _Steps(read, predict, encode, write, clock)
    return _Run(journal, grid, steps, readers, writers, ahead, watcher).run()


def max_blocks_in_memory(*, ahead: int, writers: int) -> int:
    return ahead + 1 + writers


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
        self._tally = BlockTally(watcher)
        self._claims = journal.claims(wait=self._wait, waiting=self._tally.waiting_for_others)
        self._claiming = threading.Lock()
        self._slots_ahead, self._free_writers = make_slots(ahead), make_slots(writers)
        self._to_predict: SimpleQueue[_Read[T] | None] = SimpleQueue()  # None: a reader has ended
        self._to_write: SimpleQueue[_Predicted[P] | None] = SimpleQueue()  # None: a writer must end
        self._readers, self._writers, self._readers_running = readers, writers, readers
        self._stopping, self._group = threading.Event(), ThreadGroup(self._stop)

    def run(self) -> Summary:
        began = self._steps.clock()
        self._watcher.started(self._journal.count())
        try:
            self._run_threads()
        finally:
            if not self._group.is_running:  # a block that is still being written mustn't be claimed by others
                self._journal.release()
            summary = self._tally.summary(self._steps.clock() - began)
            self._watcher.over(summary)
        return summary

    def _run_threads(self) -> None:
        try:
            self._group.start(self._readers, self._read_all)
            self._group.start(self._writers, self._write_all)
            while self._predict_next():
                pass
            self._join_threads()
        except BaseException as error:  # noqa: BLE001 (raised again, with the errors of the threads)
            self._stop()
            self._join_threads()
            raise_all([error, *self._group.errors])
        if self._group.errors:
            raise_all(self._group.errors)

    def _predict_next(self) -> bool:
        began = self._steps.clock()
        read = self._next_block()
        self._tally.input_wait_seconds += self._steps.clock() - began
        if read is None:
            return False
        self._slots_ahead.put(None)
        predicted = self._predict(read)
        del read  # free the input: waiting for a writer may take long
        began = self._steps.clock()
        self._free_writers.get()
        self._tally.writer_wait_seconds += self._steps.clock() - began
        if self._stopping.is_set():
            return False
        self._to_write.put(predicted)
        return True

    def _next_block(self) -> _Read[T] | None:
        while self._readers_running:
            read = self._to_predict.get()
            if self._stopping.is_set():
                return None
            if read is not None:
                return read
            self._readers_running -= 1
        return None

    def _predict(self, read: _Read[T]) -> _Predicted[P]:
        began = self._steps.clock()
        values = self._steps.predict(read.values)
        seconds = self._steps.clock() - began
        self._tally.predict_seconds += seconds
        return _Predicted(read.block, values, read.values.missing, read.seconds, seconds)

    def _read_all(self) -> None:
        while (block := self._next_claim()) is not None:
            self._read(block)  # a separate frame: this one waits for a slot and must not keep the block alive
        self._slots_ahead.put(None)  # wake the next reader, which ends as well
        self._to_predict.put(None)

    def _next_claim(self) -> int | None:
        self._slots_ahead.get()
        with self._claiming:
            return None if self._stopping.is_set() else next(self._claims, None)

    def _read(self, block: int) -> None:
        box, began = self._grid[block], self._steps.clock()
        try:
            values = self._steps.read(box)
        except BadRegion as error:
            self._journal.mark_failed(block)
            self._tally.block_failed(box, error)
            self._slots_ahead.put(None)
            return
        if values is SKIP:
            self._journal.mark_skipped(block)
            self._tally.block_skipped(box)
            self._slots_ahead.put(None)
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
        self._journal.mark_done(predicted.block)
        seconds = self._steps.clock() - began
        self._tally.block_done(box, predicted.missing, predicted.seconds_reading, predicted.seconds, seconds)
        return True

    def _wait(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise StopThread

    def _stop(self) -> None:
        """Wake all threads that wait for a slot; blocks already handed to the writers are still written."""
        self._stopping.set()
        for _ in range(self._readers):
            self._slots_ahead.put(None)
        self._free_writers.put(None)
        self._to_predict.put(None)

    def _join_threads(self) -> None:
        began = self._steps.clock()
        for _ in range(self._writers):
            self._to_write.put(None)
        self._group.join()
        self._tally.writer_wait_seconds += self._steps.clock() - began


def make_slots(count: int) -> Slots:
    free: Slots = SimpleQueue()
    for _ in range(count):
        free.put(None)
    return free


class StopThread(Exception):
    """End a thread of a `ThreadGroup` without an error."""


class ThreadGroup:
    """Threads that end together with one run, and whose errors are raised in it.

    A thread that fails calls `stop`, which must make the others end.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self.errors: list[BaseException] = []
        self._stop = stop
        self._threads: list[threading.Thread] = []
        self._running: set[threading.Thread] = set()
        self._ended: SimpleQueue[None] = SimpleQueue()

    def start(self, count: int, work: Callable[[], None]) -> None:
        for _ in range(count):
            # A daemon: after a second Ctrl-C the process must not wait for a disk that hangs.
            thread = threading.Thread(target=self._run_guarded, args=(work,), daemon=True)
            self._running.add(thread)
            try:
                thread.start()
            except RuntimeError:  # too many threads
                self._running.remove(thread)
                raise
            self._threads.append(thread)

    def join(self) -> None:
        """Wait until all threads have ended. This may be interrupted and called again."""
        while self._running:
            with suppress(Empty):
                self._ended.get(timeout=LOOK_AGAIN_SECONDS)
        for thread in self._threads:
            thread.join()

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    def _run_guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StopThread:
            pass
        except BaseException as error:  # noqa: BLE001 (raised again in the calling thread, whatever it is)
            self.errors.append(error)
            self._stop()
        finally:
            self._running.remove(threading.current_thread())
            self._ended.put(None)


def raise_all(errors: list[BaseException]) -> NoReturn:
    """Raise the first error with the others as its context, so that a traceback shows all of them."""
    first, *others = errors
    try:
        if others:
            raise_all(others)
    finally:
        raise first
