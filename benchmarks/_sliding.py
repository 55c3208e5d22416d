"""Sliding-window inference as MONAI's users call it, or, where MONAI isn't installed, the same recipe written out here.

Windows of one size overlap their neighbours by a quarter; each answer is weighted with a Gaussian,
added up, and divided by the sum of weights in the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

SIGMA = 0.125  # of a window's edge, as MONAI has it
LEAST_WEIGHT = 1e-3

Predict = Callable[[Tensor], Tensor]


def monai_version() -> str | None:
    try:
        import monai
    except ImportError:
        return None
    return str(monai.__version__)


def sliding_window(volume: Tensor, edge: int, overlap: float, predict: Predict) -> Tensor:
    if monai_version() is None:
        return _written_out(volume, edge, overlap, predict)
    from monai.inferers import sliding_window_inference

    answer: Tensor = sliding_window_inference(volume, (edge,) * 3, 1, predict, overlap=overlap, mode="gaussian")
    return answer


def windows(length: int, edge: int, overlap: float) -> list[int]:
    """Return where windows begin along an axis; the last one ends with the volume."""
    step = max(1, int(edge * (1 - overlap)))
    count = max(0, -(-(length - edge) // step)) + 1
    return [min(number * step, max(0, length - edge)) for number in range(count)]


def _written_out(volume: Tensor, edge: int, overlap: float, predict: Predict) -> Tensor:
    weight = _gaussian(edge)
    total: Tensor | None = None
    weights = torch.zeros(volume.shape[2:])
    for place in itertools.product(*(windows(length, edge, overlap) for length in volume.shape[2:])):
        box = tuple(slice(start, start + edge) for start in place)
        answer = predict(volume[(..., *box)])
        if total is None:
            total = torch.zeros(1, answer.shape[1], *volume.shape[2:])
        total[(..., *box)] += answer * weight
        weights[box] += weight
    assert total is not None
    return total / weights


def _gaussian(edge: int) -> Tensor:
    line = torch.arange(edge, dtype=torch.float32) - (edge - 1) / 2
    bell = torch.exp(-0.5 * (line / (SIGMA * edge)) ** 2)
    weight = bell[:, None, None] * bell[None, :, None] * bell[None, None, :]
    return weight.clamp_min(LEAST_WEIGHT * float(weight.max()))
