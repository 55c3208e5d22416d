"""Random augmentation of raw values and labels: flips, quarter turns, elastic deformation of the slices.

The deformation is the one of the published benchmark: each voxel of a slice is taken from where a smooth random field
points, the same field for all slices. Outside its faces, the patch is mirrored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]

Labels = NDArray[Any]

REACH = 4.0  # standard deviations after which the Gaussian is cut off


@dataclass(frozen=True)
class Augmentation:
    flips: bool = True
    turns: bool = True  # quarter turns of the slices; half turns only if they aren't square
    alpha: float = 2000.0  # strength of the elastic deformation; 0 for none
    sigma: float = 50.0  # smoothness of the deformation, in voxels

    def apply(self, raw: Floats, labels: Labels, generator: np.random.Generator) -> tuple[Floats, Labels]:
        if self.alpha > 0:
            field = make_elastic_field(raw.shape[1:], self.alpha, self.sigma, generator)
            raw, labels = deform(raw, field), deform_labels(labels, field)
        if self.flips:
            axes = tuple(axis for axis in range(3) if generator.random() < 0.5)
            raw, labels = np.flip(raw, axes), np.flip(labels, axes)
        if self.turns:
            square = raw.shape[1] == raw.shape[2]
            turns = int(generator.integers(4)) if square else 2 * int(generator.integers(2))
            raw, labels = (np.rot90(each, turns, axes=(1, 2)) for each in (raw, labels))
        return np.ascontiguousarray(raw), np.ascontiguousarray(labels)


NO_AUGMENTATION = Augmentation(flips=False, turns=False, alpha=0.0)


def make_elastic_field(shape: tuple[int, ...], alpha: float, sigma: float, generator: np.random.Generator) -> Floats:
    """Return the displacement of each voxel of a slice along y and x, in voxels.

    It is uniform noise between -1 and 1, smoothed by a Gaussian, times alpha. Outside the slice the noise is 0.
    """
    rows, columns = shape
    noise = generator.uniform(-1, 1, (2, rows, columns)).astype(np.float32)
    down, across = _smoothing_matrix(rows, sigma), _smoothing_matrix(columns, sigma)
    return np.asarray(alpha * (down @ noise @ across.T), np.float32)


@lru_cache(maxsize=8)
def _smoothing_matrix(length: int, sigma: float) -> Floats:
    """Return the matrix that smooths along an axis; for a patch this is faster than hundreds of convolution taps."""
    reach = int(REACH * sigma + 0.5)
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    taps /= taps.sum()
    apart = np.arange(length)[:, None] - np.arange(length)[None, :]
    inside = np.abs(apart) <= reach
    return np.where(inside, taps[np.clip(apart + reach, 0, 2 * reach)], 0.0).astype(np.float32)


def deform(raw: Floats, field: Floats) -> Floats:
    """Deform raw values with bilinear interpolation; the slices are the channels of one image."""
    rows, columns = raw.shape[1:]
    y, x = _source_positions(field)
    grid = np.stack([_to_grid_coordinates(x, columns), _to_grid_coordinates(y, rows)], axis=-1)
    image = torch.from_numpy(np.ascontiguousarray(raw, np.float32))[None]
    moved: Tensor = torch.nn.functional.grid_sample(
        image, torch.from_numpy(grid)[None], mode="bilinear", padding_mode="reflection", align_corners=True
    )
    return moved[0].numpy()


def deform_labels(labels: Labels, field: Floats) -> Labels:
    """Deform labels by taking the nearest voxel, in the labels' own type: interpolation would make up objects."""
    rows, columns = labels.shape[1:]
    y, x = _source_positions(field)
    return labels[:, _mirror_indices(y, rows), _mirror_indices(x, columns)]


def _source_positions(field: Floats) -> tuple[Floats, Floats]:
    rows, columns = field.shape[1:]
    y, x = np.meshgrid(np.arange(rows, dtype=np.float32), np.arange(columns, dtype=np.float32), indexing="ij")
    return y + field[0], x + field[1]


def _to_grid_coordinates(places: Floats, length: int) -> Floats:
    return places * np.float32(2 / (length - 1)) - np.float32(1) if length > 1 else np.zeros_like(places)


def _mirror_indices(places: Floats, length: int) -> NDArray[np.int64]:
    whole = np.rint(places).astype(np.int64)
    if length == 1:
        return np.zeros_like(whole)
    period = 2 * (length - 1)
    whole %= period
    return np.minimum(whole, period - whole)
