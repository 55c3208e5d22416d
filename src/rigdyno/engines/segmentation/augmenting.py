"""Changes a patch at random, raw values and labels alike: flips, quarter turns, elastic deformation of the slices.

The deformation is the one of the published benchmark: each voxel of a slice is fetched from where a smooth random field
points, the same field for all slices. What lies outside of the patch is the patch, mirrored.
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

REACH = 4.0  # standard deviations of the Gaussian, behind which it is cut off


@dataclass(frozen=True)
class Augmentation:
    flips: bool = True
    turns: bool = True  # by quarters, of the slices; only by halves where they aren't square
    alpha: float = 2000.0  # of the elastic deformation; 0: none
    sigma: float = 50.0  # voxels over which the deformation changes

    def apply(self, raw: Floats, labels: Labels, chance: np.random.Generator) -> tuple[Floats, Labels]:
        if self.alpha > 0:
            field = elastic_field(raw.shape[1:], self.alpha, self.sigma, chance)
            raw, labels = deformed(raw, field), deformed_labels(labels, field)
        if self.flips:
            axes = tuple(axis for axis in range(3) if chance.random() < 0.5)
            raw, labels = np.flip(raw, axes), np.flip(labels, axes)
        if self.turns:
            square = raw.shape[1] == raw.shape[2]
            turns = int(chance.integers(4)) if square else 2 * int(chance.integers(2))
            raw, labels = (np.rot90(each, turns, axes=(1, 2)) for each in (raw, labels))
        return np.ascontiguousarray(raw), np.ascontiguousarray(labels)


NONE = Augmentation(flips=False, turns=False, alpha=0.0)


def elastic_field(shape: tuple[int, ...], alpha: float, sigma: float, chance: np.random.Generator) -> Floats:
    """By how many voxels each place of a slice is fetched from elsewhere, along y and x: uniform noise between -1 and
    1, smoothed by a Gaussian, times alpha. Outside of the slice the noise is 0."""
    rows, columns = shape
    noise = chance.uniform(-1, 1, (2, rows, columns)).astype(np.float32)
    down, across = _smoother(rows, sigma), _smoother(columns, sigma)
    return np.asarray(alpha * (down @ noise @ across.T), np.float32)


@lru_cache(maxsize=8)
def _smoother(length: int, sigma: float) -> Floats:
    """The matrix that smooths along an axis: for a patch that is quicker than a convolution with hundreds of taps."""
    reach = int(REACH * sigma + 0.5)
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    taps /= taps.sum()
    apart = np.arange(length)[:, None] - np.arange(length)[None, :]
    inside = np.abs(apart) <= reach
    return np.where(inside, taps[np.clip(apart + reach, 0, 2 * reach)], 0.0).astype(np.float32)


def deformed(raw: Floats, field: Floats) -> Floats:
    """Between voxels by bilinear interpolation; the slices are the channels of one image."""
    rows, columns = raw.shape[1:]
    y, x = _fetched_from(field)
    grid = np.stack([_from_minus_one_to_one(x, columns), _from_minus_one_to_one(y, rows)], axis=-1)
    image = torch.from_numpy(np.ascontiguousarray(raw, np.float32))[None]
    moved: Tensor = torch.nn.functional.grid_sample(
        image, torch.from_numpy(grid)[None], mode="bilinear", padding_mode="reflection", align_corners=True
    )
    return moved[0].numpy()


def deformed_labels(labels: Labels, field: Floats) -> Labels:
    """The nearest voxel's, in the labels' own type: between two objects there is no third one."""
    rows, columns = labels.shape[1:]
    y, x = _fetched_from(field)
    return labels[:, _mirrored(y, rows), _mirrored(x, columns)]


def _fetched_from(field: Floats) -> tuple[Floats, Floats]:
    rows, columns = field.shape[1:]
    y, x = np.meshgrid(np.arange(rows, dtype=np.float32), np.arange(columns, dtype=np.float32), indexing="ij")
    return y + field[0], x + field[1]


def _from_minus_one_to_one(places: Floats, length: int) -> Floats:
    return places * np.float32(2 / (length - 1)) - np.float32(1) if length > 1 else np.zeros_like(places)


def _mirrored(places: Floats, length: int) -> NDArray[np.int64]:
    whole = np.rint(places).astype(np.int64)
    if length == 1:
        return np.zeros_like(whole)
    period = 2 * (length - 1)
    whole %= period
    return np.minimum(whole, period - whole)
