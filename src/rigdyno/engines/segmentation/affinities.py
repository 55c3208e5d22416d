"""Nearest-neighbour affinities of a label volume, and the loss and the accuracy of predicted affinities.

An affinity says whether a voxel and its neighbour along an axis belong to the same object.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Background = Literal["ignored", "cut"]

BACKGROUND = 0

SAME, CUT, IGNORED = 1, 0, -1

AXES = 3

_SMOOTH = 1.0  # voxels; gives a patch without any cut a finite loss and gradient


def compute_affinities(labels: NDArray[Any], background: Background = "ignored") -> NDArray[np.int8]:
    """Compute the affinities along z, y and x.

    They are SAME if a voxel and the preceding one along the axis have the same label, CUT if not, and IGNORED at the
    first voxel. A pair with a background voxel is IGNORED if background means 'not labelled', as in CREMI, and CUT if
    it means membrane. Labels are compared in their own type: large ones must not become equal as floats.
    """
    if labels.dtype.kind not in "iu" or labels.ndim != AXES:
        raise ValueError(f"labels are whole numbers in three dimensions, not {labels.dtype} in {labels.ndim}")
    found = np.full((AXES, *labels.shape), IGNORED, np.int8)
    without = np.int8(IGNORED if background == "ignored" else CUT)
    for axis in range(AXES):
        before, here = _neighbours(labels, axis)
        pairs = np.where(before == here, np.int8(SAME), np.int8(CUT))
        pairs[(before == BACKGROUND) | (here == BACKGROUND)] = without
        _neighbours(found[axis], axis)[1][...] = pairs
    return found


def _neighbours(values: NDArray[Any], axis: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return views of all voxels but the last along an axis, and of all but the first."""
    first: list[slice] = [slice(None)] * AXES
    second = first.copy()
    first[axis], second[axis] = slice(None, -1), slice(1, None)
    return values[tuple(first)], values[tuple(second)]


def dice_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 minus the Sorensen-Dice coefficient of the cuts, averaged over the three channels.

    Cuts are used because nine pairs of ten are the same object: a network that predicts 'same' everywhere would have
    a good coefficient for 'same'. Ignored pairs don't count on either side.
    """
    known = targets != IGNORED
    predicted = (1 - outputs.float()) * known
    true = (targets == CUT).float()
    over = (0, *range(2, outputs.ndim))
    both = (predicted * true).sum(over)
    either = predicted.square().sum(over) + true.sum(over)
    return (1 - (2 * both + _SMOOTH) / (either + _SMOOTH)).mean()


class AccuracyTally:
    """Count correct predictions of both kinds separately.

    Nine of ten pairs are the same object, so always predicting that would look good otherwise.
    """

    def __init__(self) -> None:
        self._right = {SAME: 0, CUT: 0}
        self._all = {SAME: 0, CUT: 0}

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch of outputs; those above one half mean 'same'."""
        predicted = outputs > 0.5
        for kind in (SAME, CUT):
            there = targets == kind
            self._all[kind] += int(there.sum())
            self._right[kind] += int((there & (predicted == (kind == SAME))).sum())

    @property
    def balanced(self) -> float | None:
        """Return the balanced accuracy: the mean of the shares that are correct of each kind.

        Chance gives one half, whichever kind is more frequent. None if one of the kinds doesn't occur.
        """
        if not all(self._all.values()):
            return None
        return sum(self._right[kind] / self._all[kind] for kind in (SAME, CUT)) / 2

    @property
    def pairs(self) -> int:
        """Return the number of pairs, without ignored ones."""
        return sum(self._all.values())


def make_targets(labels: NDArray[Any], background: Background = "ignored") -> Tensor:
    return torch.from_numpy(compute_affinities(labels, background))
