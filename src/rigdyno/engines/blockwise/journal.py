"""Which blocks are done, and whose the others are: one byte for each block, in a file beside the output.

A claim is a POSIX lock on the block's byte. The kernel gives it back when its process ends, however it ends, so a dead
worker's blocks are taken over with no heartbeats and no time-outs (from another host, NFSv4 does the same after the
lease). Linux's NFS client drops what it has cached when it takes a lock, and has written all when it gives one back.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rigdyno.engines.blockwise.errors import BadSetting, WontResume
from rigdyno.engines.blockwise.plan_file import TAKEN, WAY_OUT, disk_errors, replace_file

TO_DO, DONE, SKIPPED, FAILED = (bytes([state]) for state in range(4))
PIECE_BYTES = 2**16  # read again for every claim: some microseconds, and what others did meanwhile is seen
LOOK_AGAIN_SECONDS = 1.0

# Closing any descriptor of a file gives back all POSIX locks that the process has on it: each is opened once.
_opened: set[tuple[int, int, int]] = set()  # process, device, inode: a fork has none of its parent's locks
_opening = threading.Lock()


@dataclass(frozen=True)
class Counts:
    to_do: int
    done: int
    skipped: int  # masked out: there is nothing to predict
    failed: int  # couldn't be read, and is tried again on the next run


class Journal:
    """One worker's view. Blocks are claimed by one thread at a time, and finished from any."""

    def __init__(self, folder: Path, blocks: int, *, start: float = 0.0) -> None:
        """`start`, rank/world, is where in the volume this worker begins, so that workers rarely meet."""
        if not 0 <= start < 1:
            raise BadSetting(f"a worker can't start at {start}: give rank/world, which is at least 0 and less than 1")
        self.path, self.blocks = folder / "blocks", blocks
        self._first = int(start * blocks)
        self._held: set[int] = set()
        self._mutex = threading.Lock()  # no mark may go to a descriptor that is closed, and perhaps another file's
        self._descriptor, self._key = _open(self.path, blocks)
        self._is_open = True

    @staticmethod
    def lay_out(folder: Path, blocks: int) -> None:
        """All to do. For `make` of `settle`: as long as there is no plan, nobody has the file open."""
        replace_file(folder / "blocks", bytes(blocks))  # no hole: a mark takes no space on a full disk

    def claims(
        self,
        *,
        wait: Callable[[float], None] = time.sleep,
        waiting: Callable[[int], None] = lambda blocks: None,
    ) -> Iterator[int]:
        """Blocks for this worker, each held until `done`, `skipped`, `failed` or `give_back`.

        Where only blocks of others are left, tells `waiting` how many, waits, and takes over what has become free. What
        failed before is tried again; what fails from now on isn't, unless a worker that starts later asks for it.
        """
        self._try_failed_again()
        while True:
            yield from self._free_between(self._first, self.blocks)
            yield from self._free_between(0, self._first)
            others = self._to_do_elsewhere()
            if not others:
                return
            waiting(others)
            wait(LOOK_AGAIN_SECONDS)

    # The mark isn't flushed, and needn't be: if the power goes it may be lost, and the block is done once more with the
    # same result. But it must never reach the disk before the data: who writes them flushes them, and then calls this.
    def done(self, block: int) -> None:
        self._mark(block, DONE)

    def skipped(self, block: int) -> None:
        self._mark(block, SKIPPED)

    def failed(self, block: int) -> None:
        self._mark(block, FAILED)

    def give_back(self) -> None:
        """All that is claimed and not finished: it stays to do, for anybody."""
        with self._use() as descriptor:
            for block in self._held:
                fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, block)
            self._held.clear()

    def counts(self) -> Counts:
        """Each mark is looked at once: while this counts, other workers go on."""
        found = dict.fromkeys((TO_DO, DONE, SKIPPED, FAILED), 0)
        with self._use():
            for _, piece in self._pieces(0, self.blocks):
                for state in found:
                    found[state] += piece.count(state)
        unknown = self.blocks - sum(found.values())
        if unknown:
            raise WontResume(f"{self.path} is damaged: {unknown} of its marks mean nothing; {WAY_OUT}")
        return Counts(*found.values())

    def close(self) -> None:
        with self._mutex, disk_errors(self.path, "close"):
            if self._is_open:
                self._is_open = False
                _close(self._descriptor, self._key)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _free_between(self, start: int, stop: int) -> Iterator[int]:
        while (block := self._claim_first(start, stop)) is not None:
            yield block
            start = block + 1

    def _claim_first(self, start: int, stop: int) -> int | None:
        with self._use() as descriptor:
            for block in self._marked(TO_DO, start, stop):
                if block not in self._held and _lock(descriptor, block):
                    # Between looking and locking another worker may have finished it.
                    if os.pread(descriptor, 1, block) == TO_DO:
                        self._held.add(block)
                        return block
                    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, block)
        return None

    def _try_failed_again(self) -> None:
        with self._use() as descriptor:
            for block in self._marked(FAILED, 0, self.blocks):
                if _lock(descriptor, block):
                    if os.pread(descriptor, 1, block) == FAILED:
                        os.pwrite(descriptor, TO_DO, block)
                    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, block)

    def _to_do_elsewhere(self) -> int:
        with self._use():
            to_do = sum(piece.count(TO_DO) for _, piece in self._pieces(0, self.blocks))
            return to_do - len(self._held)

    def _mark(self, block: int, state: bytes) -> None:
        with self._use() as descriptor:
            if block not in self._held:
                raise BadSetting(f"block {block} isn't claimed by this worker, so it can't be marked")
            # Under the lock: without one, NFS may write the whole page, with what it remembers of the neighbours.
            os.pwrite(descriptor, state, block)
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, block)
            self._held.remove(block)

    def _marked(self, state: bytes, start: int, stop: int) -> Iterator[int]:
        for offset, piece in self._pieces(start, stop):
            at = piece.find(state)
            while at >= 0:
                yield offset + at
                at = piece.find(state, at + 1)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        for offset in range(start, stop, PIECE_BYTES):
            expected = min(PIECE_BYTES, stop - offset)
            piece = os.pread(self._descriptor, expected, offset)
            if len(piece) != expected:
                raise WontResume(f"{self.path} was cut short while it was in use: {WAY_OUT}")
            yield offset, piece

    @contextmanager
    def _use(self) -> Iterator[int]:
        with self._mutex, disk_errors(self.path, "keep count of blocks in"):
            if not self._is_open or self._key[0] != os.getpid():
                raise BadSetting(f"{self.path} is closed, or was opened by a parent process")
            yield self._descriptor


def _open(path: Path, blocks: int) -> tuple[int, tuple[int, int, int]]:
    with _opening, disk_errors(path, "open"):
        status = path.stat()
        key = (os.getpid(), status.st_dev, status.st_ino)
        if key in _opened:
            raise BadSetting(f"{path} is open in this process already, and opening it twice would lose its claims")
        if status.st_size != blocks:
            raise WontResume(f"{path} has {status.st_size} marks for {blocks} blocks, so it is damaged: {WAY_OUT}")
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        _opened.add(key)
        return descriptor, key


def _close(descriptor: int, key: tuple[int, int, int]) -> None:
    with _opening:
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            _opened.discard(key)


def _lock(descriptor: int, block: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, block)
    except OSError as error:
        if error.errno in TAKEN:
            return False
        raise
    return True
