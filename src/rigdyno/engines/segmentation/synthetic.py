"""Synthetic cells with dark membranes, for training when no annotated volume is available.

Cells are the Voronoi regions of random centres, one centre in each box of a grid. The membrane is where two centres
are nearly equally near. Cells continue at the opposite face, so that a volume can be repeated without a seam.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigdyno.engines.blockwise.boxes import Box, Zyx, whole_box, zyx
from rigdyno.engines.blockwise.interfaces import Reading, VoxelSize
from rigdyno.engines.blockwise.volumes.messages import check_inside, missing_extra

CELL: Zyx = (8, 24, 24)  # voxels along the edges of a box of the grid; a slice counts as 3 voxel widths

FEWEST = 3  # boxes along an axis, so that a cell has neighbours other than itself

JITTER = 0.8  # share of a box in which its centre may be

MEMBRANE = 2.5  # voxels of a slice, from the middle of one cell's half of the membrane to the other's

BRIGHT, DARK, CELLS_DIFFER, NOISE = 160.0, 70.0, 15.0, 12.0  # grey values, of 255

TILE: Zyx = (40, 240, 240)

VOXEL_SIZE = VoxelSize((40.0, 4.0, 4.0), "nanometer")

Values = NDArray[Any]


@dataclass(frozen=True)
class Synthetic:
    shape: Zyx = TILE
    seed: int = 0

    @cached_property
    def both(self) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
        """Return the raw values, and the labels, which are never 0."""
        generator = np.random.default_rng([self.seed, *self.shape])
        centres = self._draw_centres(generator)
        tint = generator.normal(0, CELLS_DIFFER, int(np.prod(centres.shape[:3])))
        raw, labels = np.empty(self.shape, np.float32), np.empty(self.shape, np.uint32)
        for place in np.ndindex(centres.shape[:3]):
            box = self._grid_slices(centres.shape[:3], place)
            labels[box], raw[box] = self._fill_slices(box, place, centres, tint)
        raw += generator.standard_normal(self.shape, np.float32) * np.float32(NOISE)
        return np.clip(np.rint(raw), 0, 255).astype(np.uint8), labels

    def _grid_shape(self) -> Zyx:
        return zyx(max(FEWEST, round(length / edge)) for length, edge in zip(self.shape, CELL, strict=True))

    def _draw_centres(self, generator: np.random.Generator) -> NDArray[np.float32]:
        """Draw the centres, in voxels; the last axis is z, y, x."""
        counts = self._grid_shape()
        within = 0.5 + JITTER * (generator.random((*counts, 3), np.float32) - 0.5)
        grid = np.moveaxis(np.indices(counts, np.float32), 0, -1)
        return (grid + within) * self._grid_edges(counts)

    def _grid_edges(self, counts: tuple[int, ...]) -> NDArray[np.float32]:
        return np.array([length / count for length, count in zip(self.shape, counts, strict=True)], np.float32)

    def _grid_slices(self, counts: tuple[int, ...], place: tuple[int, ...]) -> tuple[slice, ...]:
        spans = zip(self.shape, counts, place, strict=True)
        return tuple(slice(at * length // count, (at + 1) * length // count) for length, count, at in spans)

    def _fill_slices(
        self, box: tuple[slice, ...], place: tuple[int, ...], centres: NDArray[np.float32], tint: NDArray[np.float64]
    ) -> tuple[Values, Values]:
        """Return labels and raw values of one box of the grid.

        Only the centres in this box and its neighbours are compared: one farther away is hardly ever the nearest.
        """
        counts = centres.shape[:3]
        weight = np.array([CELL[1] / CELL[0], 1.0, 1.0], np.float32)
        around = list(self._neighbouring_centres(place, counts, centres))
        axes = [np.arange(part.start, part.stop, dtype=np.float32) for part in box]
        distances = []
        for _, centre in around:
            z, y, x = ((axis - at) ** 2 * each**2 for axis, at, each in zip(axes, centre, weight, strict=True))
            distances.append(z[:, None, None] + y[:, None] + x)
        ordered = np.sqrt(np.stack(distances))
        nearest = ordered.argmin(0)
        names = np.array([name for name, _ in around])[nearest]
        two = np.partition(ordered, 1, axis=0)[:2]
        inside = 1 - np.exp(-(((two[1] - two[0]) / MEMBRANE) ** 2))
        return names + 1, DARK + (BRIGHT - DARK + tint[names]) * inside

    def _neighbouring_centres(
        self, place: tuple[int, ...], counts: tuple[int, ...], centres: NDArray[np.float32]
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        lengths = np.array(self.shape, np.float32)
        for step in itertools.product((-1, 0, 1), repeat=3):
            there = [at + by for at, by in zip(place, step, strict=True)]
            wrapped = tuple(at % count for at, count in zip(there, counts, strict=True))
            turns = np.array([at // count for at, count in zip(there, counts, strict=True)], np.float32)
            yield int(np.ravel_multi_index(wrapped, counts)), centres[wrapped] + turns * lengths


class Endless:
    """A volume of any size for timing, made chunk by chunk when it is read.

    Each chunk is the same synthetic piece, mirrored and shifted by random numbers that depend on its position. So
    reading is as fast as memory, two chunks are hardly ever equal, and each is the same every time.
    """

    channels = 1
    dtype = np.dtype(np.uint8)
    voxel_size = VOXEL_SIZE

    def __init__(self, shape: Zyx, piece: Synthetic | None = None) -> None:
        self.shape, self._piece = shape, piece or Synthetic()
        self.location = f"synthetic cells, {'x'.join(map(str, shape))}"
        self.chunk: Zyx = self._piece.shape

    def read(self, box: Box) -> Reading:
        check_inside(self.location, box, self.shape)
        values = np.empty(box.shape, self.dtype)
        for place in self._find_chunks(box):
            part = self._chunk_box(place).within(box)
            into = part.moved(zyx(-start for start in box.start))
            values[into.slices()] = self._piece.both[0][np.ix_(*self._source_indices(place, part))]
        return Reading(values[None])

    def identity(self) -> str:
        return f"{self.location}, piece {self._piece.shape}, seed {self._piece.seed}"

    def _find_chunks(self, box: Box) -> Iterator[Zyx]:
        spans = zip(box.spans(), self.chunk, strict=True)
        for place in itertools.product(*(range(start // edge, -(-stop // edge)) for (start, stop), edge in spans)):
            yield zyx(place)

    def _chunk_box(self, place: Zyx) -> Box:
        return whole_box(self.chunk).moved(zyx(at * edge for at, edge in zip(place, self.chunk, strict=True)))

    def _source_indices(self, place: Zyx, part: Box) -> list[NDArray[np.int64]]:
        """Return, along each axis, the indices of the piece that make up a part of this chunk."""
        generator = np.random.default_rng([self._piece.seed, *place])
        moves, mirrored = generator.integers(0, self.chunk), generator.integers(0, 2, 3)
        axes = zip(part.spans(), moves, mirrored, self.chunk, strict=True)
        return [(move + np.arange(*span) * (1 - 2 * turn)) % edge for span, move, turn, edge in axes]


def write_synthetic(path: str | Path, shape: Zyx = TILE, seed: int = 0) -> None:
    """Write a synthetic volume to an HDF5 file in CREMI's layout: volumes/raw, volumes/labels/neuron_ids."""
    try:
        import h5py
    except ImportError as error:
        raise missing_extra("h5py") from error
    with h5py.File(path, "x") as file:
        raw, labels = Synthetic(shape, seed).both
        for name, values in (("volumes/raw", raw), ("volumes/labels/neuron_ids", labels.astype(np.uint64))):
            stored = file.create_dataset(name, data=values, chunks=True, compression="gzip", compression_opts=1)
            stored.attrs["resolution"] = np.array(VOXEL_SIZE.zyx)
