"""The state of each block, one byte per block in a file inside the output, shared by all workers on a volume.

A worker claims a block with a POSIX lock on its byte. The kernel releases the lock when the process ends, however it
ends, so other workers take over a dead worker's blocks without heartbeats or time-outs. (On another host, NFSv4 does
the same after the lease.) Linux's NFS client drops its cache when it takes a lock, and has written everything when it
releases one.
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

from rigdyno.base.files import LOCK_TAKEN
from rigdyno.engines.blockwise.errors import BadSetting, WontResume
from rigdyno.engines.blockwise.plan_file import WAY_OUT, disk_errors, replace_file

TO_DO, DONE, SKIPPED, FAILED = (bytes([state]) for state in range(4))

PIECE_BYTES = 2**16  # read again for every claim: takes microseconds, and shows what other workers did meanwhile

LOOK_AGAIN_SECONDS = 1.0

# Closing any descriptor of a file releases all POSIX locks that the process holds on it, so each file is opened once.
_open_files: set[tuple[int, int, int]] = set()  # process, device, inode; a fork has none of its parent's locks

_open_files_mutex = threading.Lock()


@dataclass(frozen=True)
class BlockCounts:
    to_do: int
    done: int
    skipped: int  # outside the mask: nothing to predict
    failed: int  # couldn't be read; the next run tries again


class Journal:
    """One worker's access to the states. One thread at a time claims blocks; any thread may finish them."""

    def __init__(self, folder: Path, blocks: int, *, start: float = 0.0) -> None:
        """Open the file. `start`, rank/world, is where in the volume this worker begins: workers rarely meet then."""
        if not 0 <= start < 1:
            raise BadSetting(f"a worker can't start at {start}: give rank/world, which is at least 0 and less than 1")
        self.path, self.blocks = folder / "blocks", blocks
        self._first = int(start * blocks)
        self._held: set[int] = set()
        self._mutex = threading.Lock()  # never write to a closed descriptor: its number may belong to another file
        self._descriptor, self._key = _open_file(self.path, blocks)
        self._is_open = True

    @staticmethod
    def create(folder: Path, blocks: int) -> None:
        """Write a file in which all blocks are to do.

        Call this in the `make` of `settle`: as long as there is no plan, no process has the file open.
        """
        replace_file(folder / "blocks", bytes(blocks))  # not sparse: marks must not need space on a full disk

    def claims(
        self,
        *,
        wait: Callable[[float], None] = time.sleep,
        waiting: Callable[[int], None] = lambda blocks: None,
    ) -> Iterator[int]:
        """Yield blocks for this worker; each is claimed until it is marked, or until `release`.

        When only blocks of other workers are left, call `waiting` with their number, wait, and take over those that
        become free. Blocks that failed in earlier runs are tried again. Blocks that fail from now on are not, unless a
        worker that starts later tries them.
        """
        self._retry_failed()
        while True:
            yield from self._claim_between(self._first, self.blocks)
            yield from self._claim_between(0, self._first)
            others = self._count_claimed_elsewhere()
            if not others:
                return
            waiting(others)
            wait(LOOK_AGAIN_SECONDS)

    # The mark isn't flushed: if it is lost in a power failure, the block is computed again with the same result. But it
    # must never reach the disk before the data, so the caller flushes the data first.
    def mark_done(self, block: int) -> None:
        self._mark(block, DONE)

    def mark_skipped(self, block: int) -> None:
        self._mark(block, SKIPPED)

    def mark_failed(self, block: int) -> None:
        self._mark(block, FAILED)

    def release(self) -> None:
        """Give up all claims that aren't finished: the blocks stay to do, for any worker."""
        with self._locked_descriptor() as descriptor:
            for block in self._held:
                fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, block)
            self._held.clear()

    def count(self) -> BlockCounts:
        """Count the blocks in each state. Other workers may change states meanwhile."""
        found = dict.fromkeys((TO_DO, DONE, SKIPPED, FAILED), 0)
        with self._locked_descriptor():
            for _, piece in self._read_pieces(0, self.blocks):
                for state in found:
                    found[state] += piece.count(state)
        unknown = self.blocks - sum(found.values())
        if unknown:
            raise WontResume(f"{self.path} is damaged: {unknown} of its marks are unknown; {WAY_OUT}")
        return BlockCounts(*found.values())

    def close(self) -> None:
        with self._mutex, disk_errors(self.path, "close"):
            if self._is_open:
                self._is_open = False
                _close_file(self._descriptor, self._key)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _claim_between(self, start: int, stop: int) -> Iterator[int]:
        while (block := self._claim_first(start, stop)) is not None:
            yield block
            start = block + 1

    def _claim_first(self, start: int, stop: int) -> int | None:
        with self._locked_descriptor() as descriptor:
            for block in self._find_marked(TO_DO, start, stop):
                if block not in self._held and _try_lock(descriptor, block):
                    # Another worker may have finished the block between the look and the lock.
                    if os.pread(descriptor, 1, block) == TO_DO:
                        self._held.add(block)
                        return block
                    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, block)
        return None

    def _retry_failed(self) -> None:
        with self._locked_descriptor() as descriptor:
            for block in self._find_marked(FAILED, 0, self.blocks):
                if _try_lock(descriptor, block):
                    if os.pread(descriptor, 1, block) == FAILED:
                        os.pwrite(descriptor, TO_DO, block)
                    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, block)

    def _count_claimed_elsewhere(self) -> int:
        with self._locked_descriptor():
            to_do = sum(piece.count(TO_DO) for _, piece in self._read_pieces(0, self.blocks))
            return to_do - len(self._held)

    def _mark(self, block: int, state: bytes) -> None:
        with self._locked_descriptor() as descriptor:
            if block not in self._held:
                raise BadSetting(f"block {block} isn't claimed by this worker, so it can't be marked")
            # Still under the lock: without it, NFS may write the whole page, with stale marks of the neighbours.
            os.pwrite(descriptor, state, block)
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, block)
            self._held.remove(block)

    def _find_marked(self, state: bytes, start: int, stop: int) -> Iterator[int]:
        for offset, piece in self._read_pieces(start, stop):
            at = piece.find(state)
            while at >= 0:
                yield offset + at
                at = piece.find(state, at + 1)

    def _read_pieces(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        for offset in range(start, stop, PIECE_BYTES):
            expected = min(PIECE_BYTES, stop - offset)
            piece = os.pread(self._descriptor, expected, offset)
            if len(piece) != expected:
                raise WontResume(f"{self.path} was cut short while it was in use: {WAY_OUT}")
            yield offset, piece

    @contextmanager
    def _locked_descriptor(self) -> Iterator[int]:
        with self._mutex, disk_errors(self.path, "keep count of blocks in"):
            if not self._is_open or self._key[0] != os.getpid():
                raise BadSetting(f"{self.path} is closed, or was opened by a parent process")
            yield self._descriptor


def _open_file(path: Path, blocks: int) -> tuple[int, tuple[int, int, int]]:
    with _open_files_mutex, disk_errors(path, "open"):
        status = path.stat()
        key = (os.getpid(), status.st_dev, status.st_ino)
        if key in _open_files:
            raise BadSetting(f"{path} is open in this process already, and opening it twice would lose its claims")
        if status.st_size != blocks:
            raise WontResume(f"{path} has {status.st_size} marks for {blocks} blocks, so it is damaged: {WAY_OUT}")
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        _open_files.add(key)
        return descriptor, key


def _close_file(descriptor: int, key: tuple[int, int, int]) -> None:
    with _open_files_mutex:
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            _open_files.discard(key)


def _try_lock(descriptor: int, block: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, block)
    except OSError as error:
        if error.errno in LOCK_TAKEN:
            return False
        raise
    return True
