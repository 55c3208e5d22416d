"""How maps lie in memory: with the channels innermost wherever a CPU works on them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from rigdyno.engines.dp.heap import in_large_pages

LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of axes


def channels_last(values: Tensor) -> Tensor:
    """On a CPU most layers take half the time in this layout; elsewhere the user's choice stands."""
    layout = LAYOUTS.get(values.dim())
    if layout is None or values.device.type != "cpu":
        return values
    # Not .contiguous: that leaves maps of one channel as they are, and what follows would take the other layout.
    return values.to(memory_format=layout)


def own_layout(values: Tensor) -> torch.memory_format:
    """The one that a tensor is in already, as far as the kernels of its device know it."""
    layout = LAYOUTS.get(values.dim())
    if layout is None or values.device.type != "cpu" or values.is_contiguous():
        return torch.contiguous_format
    return layout


def channels_inside(samples: int, channels: int, places: tuple[int, ...], like: Tensor) -> Tensor:
    """(samples, channels, places ...), laid out with the channels innermost."""
    strides = _strides(channels, tuple(places))
    return in_large_pages(
        torch.empty_strided((samples, channels, *places), strides, dtype=like.dtype, device=like.device)
    )


@lru_cache(maxsize=4096)  # asked for several times a layer and step
def _strides(channels: int, places: tuple[int, ...]) -> tuple[int, ...]:
    inner = [math.prod(places[number + 1 :]) * channels for number in range(len(places))]
    return (math.prod(places) * channels, 1, *inner)


def rows_of(values: Tensor) -> Tensor:
    """(samples, T, channels); a view where the channels are innermost already."""
    if not _channels_innermost(values):
        return values.flatten(2).mT.contiguous()
    samples, channels, *places = values.shape
    length = math.prod(places)
    return values.as_strided((samples, length, channels), (length * channels, channels, 1))


def matrix_of(rows: Tensor) -> Tensor:
    """(samples * T, features) of (samples, T, features)."""
    samples, length, features = rows.shape
    return rows.view(samples * length, features)


def maps_of(values: Tensor) -> NDArray[Any]:
    """(samples, height, width, channels), for kernels; a view where the channels are innermost already."""
    if not _channels_innermost(values):
        return values.detach().permute(0, 2, 3, 1).contiguous().numpy()
    samples, channels, height, width = values.shape
    line = width * channels
    shape, strides = (samples, height, width, channels), (height * line, line, channels, 1)
    return values.detach().as_strided(shape, strides).numpy()


def _channels_innermost(values: Tensor) -> bool:
    """In one piece. A single call each for what follows then, of which there are hundreds in a step."""
    layout = LAYOUTS.get(values.dim())
    return layout is not None and values.is_contiguous(memory_format=layout)


def over_places(values: Tensor) -> Tensor:
    """(samples, channels): the sum over all places."""
    return values.flatten(2).sum(dim=2) if values.dim() > 2 else values
