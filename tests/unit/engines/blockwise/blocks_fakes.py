"""A small volume, a network that anybody can compute, and an output that counts how often it was written."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.engines.blockwise.grid import Grid
from rigdyno.engines.blockwise.journal import Journal
from rigdyno.engines.blockwise.pipeline import run_blocks
from rigdyno.engines.blockwise.ports import Array, Reading
from rigdyno.engines.blockwise.watching import Silent, Summary


class Work:
    """Each step may be exchanged by assigning to it; `run` is one run of a worker."""

    def __init__(self, folder: Path, shape: Zyx = (9, 10, 11), block: Zyx = (4, 4, 4)) -> None:
        self.grid = Grid(shape, block)
        self.folder = folder
        self.volume = np.random.default_rng(0).integers(0, 1000, shape)
        self.output = np.zeros(shape, np.int64)
        self.times_written = np.zeros(shape, int)
        Journal.lay_out(folder, len(self.grid))

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
                write=self.write, readers=readers, writers=writers, ahead=ahead, **{"watcher": Silent(), **options},
            )  # fmt: skip

    @property
    def marks(self) -> bytes:
        return (self.folder / "blocks").read_bytes()

    def is_complete(self) -> bool:
        return bool((self.output == self.volume * 3 + 1).all() and (self.times_written == 1).all())


class Notes:
    """A watcher that writes everything down, and finds out if two threads tell it something at once."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self._alone = threading.Lock()

    def started(self, *told: object) -> None:
        self._note("started", *told)

    def block_done(self, *told: object) -> None:
        self._note("done", *told)

    def block_skipped(self, *told: object) -> None:
        self._note("skipped", *told)

    def block_failed(self, *told: object) -> None:
        self._note("failed", *told)

    def waiting_for_others(self, *told: object) -> None:
        self._note("waiting", *told)

    def over(self, *told: object) -> None:
        self._note("over", *told)

    def _note(self, *told: object) -> None:
        assert self._alone.acquire(blocking=False)
        self.told.append(told)
        self._alone.release()

    def of(self, kind: str) -> list[tuple[object, ...]]:
        return [rest for what, *rest in self.told if what == kind]
