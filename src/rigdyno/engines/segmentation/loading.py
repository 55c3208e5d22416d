"""Load and augment patches of a volume in separate processes, so that a step rarely waits for them."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from rigdyno.engines.blockwise.boxes import Box, Zyx, zyx
from rigdyno.engines.blockwise.errors import BadSetting
from rigdyno.engines.segmentation.affinities import Background, make_targets
from rigdyno.engines.segmentation.augmenting import NO_AUGMENTATION, Augmentation
from rigdyno.engines.segmentation.pairs import LabelledVolume

SHARED = Path("/dev/shm")

AHEAD = 2  # patches that each loader process prepares in advance

BYTES_PER_VOXEL = 4 + 3  # a float and three affinities

Batch = tuple[Tensor, Tensor]


class LoaderLost(RuntimeError):
    """A loader process ended before the training did."""


@dataclass(frozen=True)
class PatchSource:
    """Random patches of a volume. The n-th patch of a rank depends only on the seed, not on the number of processes."""

    pair: LabelledVolume
    part: Box  # of the volume, from which patches are taken
    patch: Zyx
    seed: int = 0
    rank: int = 0
    augmentation: Augmentation = NO_AUGMENTATION
    background: Background = "ignored"

    def __post_init__(self) -> None:
        if any(edge > length for edge, length in zip(self.patch, self.part.shape, strict=True)):
            sizes = ("x".join(map(str, each)) for each in (self.patch, self.part.shape))
            raise BadSetting("a patch of {} doesn't fit into the {} voxels that it is taken from".format(*sizes))

    def patch_number(self, number: int) -> Batch:
        """Return the raw values (1, z, y, x) and the affinities (3, z, y, x) of the n-th patch."""
        generator = np.random.default_rng([self.seed, self.rank, number])
        raw, labels = self.pair.read(self._draw_box(generator))
        raw, labels = self.augmentation.apply(raw, labels, generator)
        return torch.from_numpy(raw)[None], make_targets(labels, self.background)

    def _draw_box(self, generator: np.random.Generator) -> Box:
        room = (length - edge for length, edge in zip(self.part.shape, self.patch, strict=True))
        start = zyx(
            first + int(generator.integers(more + 1)) for first, more in zip(self.part.start, room, strict=True)
        )
        return Box((0, 0, 0), self.patch).moved(start)


class _Stream(IterableDataset[Batch]):
    """The batches of one loader process. The loader takes one of each process in turn, so that they stay in order."""

    def __init__(self, patches: PatchSource, batch_size: int) -> None:
        self._patches, self._batch_size = patches, batch_size

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        number, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while True:
            first = number * self._batch_size
            made = [self._patches.patch_number(first + each) for each in range(self._batch_size)]
            yield torch.stack([raw for raw, _ in made]), torch.stack([target for _, target in made])
            number += step


@dataclass
class Loader:
    """Endless batches from several processes, which `close` ends."""

    patches: PatchSource
    batch_size: int = 1
    workers: int = 4
    device: str = "cpu"
    _batches: Iterator[Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        require_shared_memory(self.needed_bytes)

    @property
    def needed_bytes(self) -> int:
        """Return the bytes of memory that the processes share: the volume, and batches that are ready."""
        if not self.workers:
            return 0
        each = BYTES_PER_VOXEL * int(np.prod(self.patches.patch)) * self.batch_size
        return self.patches.pair.shared_bytes + each * self.workers * (AHEAD + 1)

    def __iter__(self) -> Iterator[Batch]:
        on_gpu = self.device.partition(":")[0] != "cpu"
        self._batches = iter(self._loader(pinned=on_gpu))
        try:
            while True:
                raw, targets = self._next(self._batches)
                yield raw.to(self.device, non_blocking=on_gpu), targets.to(self.device, non_blocking=on_gpu)
        finally:
            self.close()

    @staticmethod
    def _next(batches: Iterator[Batch]) -> Batch:
        """Return the next batch. A lost loader process shows as a signal or as a broken pipe."""
        try:
            return next(batches)
        except (OSError, EOFError, RuntimeError) as error:
            if str(error).startswith("Caught "):  # raised in a loader process that still runs
                raise
            raise LoaderLost(
                f"a loader process was lost ({' '.join(str(error).split()) or type(error).__name__}); if the kernel "
                "killed it because memory ran out, use fewer: --set workers=1"
            ) from error

    def close(self) -> None:
        batches, self._batches = self._batches, None
        end = getattr(batches, "_shutdown_workers", None)  # torch calls this at garbage collection; call it now
        if end is not None:
            end()

    def _loader(self, *, pinned: bool) -> DataLoader[Batch]:
        stream = _Stream(self.patches, self.batch_size)
        if not self.workers:
            return DataLoader(stream, batch_size=None)
        # The threads of this process and of its readers don't survive a fork. The fork server forks before there are
        # any, and imports torch once for all loaders.
        multiprocessing.set_forkserver_preload([__name__])
        return DataLoader(
            stream,
            batch_size=None,
            num_workers=self.workers,
            prefetch_factor=AHEAD,
            pin_memory=pinned and torch.cuda.is_available(),
            multiprocessing_context="forkserver",
        )


def require_shared_memory(needed: int) -> None:
    """Refuse to start without enough shared memory: a loader that exhausts it is killed without a message.

    Containers often have 64 MB.
    """
    if not SHARED.is_dir():
        return
    free = shutil.disk_usage(SHARED).free
    if needed > free:
        raise BadSetting(
            f"loader processes need {needed / 1e6:.0f} MB in {SHARED}, and {free / 1e6:.0f} are free; give the "
            "container more (docker run --shm-size), or use fewer: --set workers=0 needs none"
        )
