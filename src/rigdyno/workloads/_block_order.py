"""Which block comes next: a random order of all of them, shared out over the ranks; and whether each voxel was written
once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rigdyno.contracts import Place
from rigdyno.engines.blockwise.boxes import Box, Zyx, whole
from rigdyno.engines.blockwise.grid import Grid

SEED = 20_18


class Order:
    """All ranks know the same order, and each takes every n-th block of it. After the last one it begins anew."""

    def __init__(self, volume: Zyx, block: Zyx, place: Place) -> None:
        self.grid = Grid(volume, block)
        self._order = np.random.default_rng([SEED, place.seed]).permutation(len(self.grid))
        self._rank, self._ranks = place.rank, place.world_size
        self._steps, self._written, self._fits = 0, list[Box](), True

    @property
    def steps(self) -> int:
        """Of each rank, until all blocks are done."""
        return -(-len(self.grid) // self._ranks)

    def next(self) -> Box | None:
        """None: the others have the last ones, until all begin anew."""
        number = self._steps % self.steps * self._ranks + self._rank
        self._steps += 1
        return self.grid[int(self._order[number])] if number < len(self.grid) else None

    def written(self, box: Box, fits: bool) -> None:
        self._fits &= fits
        if self._steps <= self.steps:
            self._written.append(box)

    def is_right(self) -> bool:
        """No voxel was written twice, and where it came to the end, none of its blocks was left out."""
        written, twice = covered(self._written, self.grid.shape)
        return self._fits and twice == 0 and (self._steps < self.steps or written == self._share_voxels())

    def _share_voxels(self) -> int:
        mine = self._order[self._rank :: self._ranks]
        return sum(self.grid[int(number)].voxels for number in mine)


def covered(boxes: Iterable[Box], shape: Zyx) -> tuple[int, int]:
    """Voxels of a volume that boxes cover, and those that several of them do; what lies outside counts as twice."""
    found = list(boxes)
    inside = [box.within(whole(shape)) for box in found]
    outside = sum(box.voxels for box in found) - sum(box.voxels for box in inside)
    edges = [
        np.unique([0, length, *(at for box in inside for at in box.spans()[axis])]) for axis, length in enumerate(shape)
    ]
    counts = np.zeros([len(each) - 1 for each in edges], np.int32)
    for box in inside:
        spans = [np.searchsorted(each, ends) for each, ends in zip(edges, box.spans(), strict=True)]
        counts[tuple(slice(first, last) for first, last in spans)] += 1
    sizes = np.einsum("i,j,k->ijk", *(np.diff(each) for each in edges))
    return int(sizes[counts > 0].sum()), int(sizes[counts > 1].sum()) + outside
