"""A small volume, a trivial network, and an output that counts how often each voxel was written."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from rigdyno.engines.blockwise.boxes import Box, Grid, Zyx
from rigdyno.engines.blockwise.interfaces import Array, Reading
from rigdyno.engines.blockwise.journal import Journal
from rigdyno.engines.blockwise.pipeline import run_blocks
from rigdyno.engines.blockwise.watching import SilentWatcher, Summary


class Work:
    """A job whose steps tests may replace; `run` is one run of a worker."""

    def __init__(self, folder: Path, shape: Zyx = (9, 10, 11), block: Zyx = (4, 4, 4)) -> None:
        self.grid = Grid(shape, block)
        self.folder = folder
        self.volume = np.random.default_rng(0).integers(0, 1000, shape)
        self.output = np.zeros(shape, np.int64)
        self.times_written = np.zeros(shape, int)
        Journal.create(folder, len(self.grid))

    def read(self, box: Box) -> Reading:
        return Reading(self.volume[box.slices()].copy())

    def predict(self, reading: Reading) -> Array:
        return reading.values * 3

    def encode(self, values: Array) -> Array:
        return values + 1

    def write(self, box: Box, values: Array) -> None:
        self.output[box.slices()] = values
        self.times_written[box.slices()] += 1

    def run(self, *, readers: int = 2, writers: int = 2, ahead: int = 3, **options: object) -> Summary:
        with Journal(self.folder, len(self.grid)) as self.journal:
            return run_blocks(
                journal=self.journal, grid=self.grid, read=self.read, predict=self.predict, encode=self.encode,
                write=self.write, readers=readers, writers=writers, ahead=ahead,
                **{"watcher": SilentWatcher(), **options},
            )  # fmt: skip

    @property
    def marks(self) -> bytes:
        return (self.folder / "blocks").read_bytes()

    def is_complete(self) -> bool:
        return bool((self.output == self.volume * 3 + 1).all() and (self.times_written == 1).all())


class Notes:
    """A watcher that records all calls, and checks that no two threads call it at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._mutex = threading.Lock()

    def started(self, *values: object) -> None:
        self._note("started", *values)

    def block_done(self, *values: object) -> None:
        self._note("done", *values)

    def block_skipped(self, *values: object) -> None:
        self._note("skipped", *values)

    def block_failed(self, *values: object) -> None:
        self._note("failed", *values)

    def waiting_for_others(self, *values: object) -> None:
        self._note("waiting", *values)

    def over(self, *values: object) -> None:
        self._note("over", *values)

    def _note(self, *values: object) -> None:
        assert self._mutex.acquire(blocking=False)
        self.calls.append(values)
        self._mutex.release()

    def find(self, kind: str) -> list[tuple[object, ...]]:
        return [rest for what, *rest in self.calls if what == kind]
