"""Nearest-neighbour affinities of a label volume: whether a voxel and the one before it belong to the same object."""

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
_SMOOTH = 1.0  # voxels: a patch without a single cut has a loss and a gradient, too


def affinities(labels: NDArray[Any], background: Background = "ignored") -> NDArray[np.int8]:
    """For z, y and x: SAME where a voxel and its neighbour before it along that axis have the same label, else CUT;
    IGNORED where there is no neighbour.

    A pair with a voxel of the background is IGNORED where that means 'nobody has labelled this', as in CREMI, and CUT
    where it means membrane. Labels are compared in their own type: large ones must not become equal as floats.
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
    """Views of all voxels that have one behind them, and of those behind."""
    first: list[slice] = [slice(None)] * AXES
    second = first.copy()
    first[axis], second[axis] = slice(None, -1), slice(1, None)
    return values[tuple(first)], values[tuple(second)]


def dice_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 - the Sorensen-Dice coefficient of the cuts, for each of the three channels, averaged.

    Of the cuts, because nine pairs of ten are the same object: a network that answers 'same' everywhere has a good
    coefficient of those. Pairs that are ignored don't count on either side.
    """
    known = targets != IGNORED
    said = (1 - outputs.float()) * known
    true = (targets == CUT).float()
    over = (0, *range(2, outputs.ndim))
    both = (said * true).sum(over)
    either = said.square().sum(over) + true.sum(over)
    return (1 - (2 * both + _SMOOTH) / (either + _SMOOTH)).mean()


class Tally:
    """Counts right answers of both kinds apart: nine of ten pairs are the same object, so that always answering that
    would look good otherwise."""

    def __init__(self) -> None:
        self._right = {SAME: 0, CUT: 0}
        self._all = {SAME: 0, CUT: 0}

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Outputs above one half say 'same'."""
        said = outputs > 0.5
        for kind in (SAME, CUT):
            there = targets == kind
            self._all[kind] += int(there.sum())
            self._right[kind] += int((there & (said == (kind == SAME))).sum())

    @property
    def balanced(self) -> float | None:
        """The mean of the shares that are right of each kind: chance gives one half, whatever is more frequent. None:
        one of the kinds does not occur."""
        if not all(self._all.values()):
            return None
        return sum(self._right[kind] / self._all[kind] for kind in (SAME, CUT)) / 2

    @property
    def pairs(self) -> int:
        return sum(self._all.values())


def targets_of(labels: NDArray[Any], background: Background = "ignored") -> Tensor:
    return torch.from_numpy(affinities(labels, background))
