"""Memory layout of feature maps, and reuse of freed memory between steps.

On a CPU, feature maps are kept channels-last.

glibc returns large freed blocks to the system, which hands them out again page by page, filled with zeros. If a step
frees gigabytes, that takes up to a third of its time; Poisson batches, whose sizes vary, are affected most. So blocks
of up to 32 MB are kept for the next step. Keeping larger blocks would leave holes that nothing else fits into, a tenth
of the memory. So these still come from the system, but in pages of 2 MB, which are as fast as writing to memory.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from functools import cache, lru_cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt

NEVER, LARGE_BYTES = -1, 32 << 20  # LARGE_BYTES is the largest threshold that glibc accepts

USUAL_TRIM_BYTES = 2 * LARGE_BYTES  # glibc's own value after it has seen large blocks

HUGE_PAGES, HUGE_BYTES = 14, 2 << 20  # advice of madvise, and size of a huge page

SETTINGS = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")

LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by number of axes

_trainings = 0  # private trainings in this process


def keep_freed_memory() -> None:
    """Make glibc keep freed memory until `return_freed_memory` was called as often.

    If the user has set the allocator by environment variables, nothing is changed.
    """
    global _trainings
    _trainings += 1
    library = _load_glibc()
    if library is not None:
        library.mallopt(TRIM_THRESHOLD, NEVER)
        library.mallopt(MMAP_THRESHOLD, LARGE_BYTES)


def return_freed_memory() -> None:
    """Undo one `keep_freed_memory`; after the last one, return freed memory to the system."""
    global _trainings
    _trainings -= 1
    library = _load_glibc()
    if library is not None and not _trainings:
        library.mallopt(TRIM_THRESHOLD, USUAL_TRIM_BYTES)
        library.malloc_trim(0)


def request_huge_pages(values: Tensor) -> Tensor:
    """Ask the system to use huge pages for a large tensor that isn't filled yet, and return the tensor."""
    memory = values.untyped_storage()
    library = _load_glibc() if memory.nbytes() >= LARGE_BYTES and values.device.type == "cpu" else None
    if library is not None:
        first = -(-memory.data_ptr() // HUGE_BYTES) * HUGE_BYTES
        last = (memory.data_ptr() + memory.nbytes()) // HUGE_BYTES * HUGE_BYTES
        # This is only advice: if the system ignores it, nothing changes.
        library.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), HUGE_PAGES)
    return values


@cache
def _load_glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux") or any(os.environ.get(name) for name in SETTINGS):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def to_channels_last(values: Tensor) -> Tensor:
    """Convert feature maps to channels-last on a CPU, where most layers take half the time in this layout.

    On other devices the user's layout is kept.
    """
    layout = LAYOUTS.get(values.dim())
    if layout is None or values.device.type != "cpu":
        return values
    # Not .contiguous: that doesn't change maps of one channel, and the next layer would use the other layout.
    return values.to(memory_format=layout)


def find_layout(values: Tensor) -> torch.memory_format:
    """Return the layout that the tensor already has, if it is one that torch's kernels on its device support."""
    layout = LAYOUTS.get(values.dim())
    if layout is None or values.device.type != "cpu" or values.is_contiguous():
        return torch.contiguous_format
    return layout


def empty_channels_last(samples: int, channels: int, places: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialised tensor (samples, channels, *places) in channels-last layout."""
    strides = _strides(channels, tuple(places))
    return request_huge_pages(
        torch.empty_strided((samples, channels, *places), strides, dtype=like.dtype, device=like.device)
    )


@lru_cache(maxsize=4096)  # called several times per layer and step
def _strides(channels: int, places: tuple[int, ...]) -> tuple[int, ...]:
    inner = [math.prod(places[number + 1 :]) * channels for number in range(len(places))]
    return (math.prod(places) * channels, 1, *inner)


def to_rows(values: Tensor) -> Tensor:
    """Return (samples, T, channels); a view if the tensor is channels-last."""
    if not _is_channels_last(values):
        return values.flatten(2).mT.contiguous()
    samples, channels, *places = values.shape
    length = math.prod(places)
    return values.as_strided((samples, length, channels), (length * channels, channels, 1))


def to_matrix(rows: Tensor) -> Tensor:
    """Reshape (samples, T, features) to (samples * T, features)."""
    samples, length, features = rows.shape
    return rows.view(samples * length, features)


def to_maps(values: Tensor) -> NDArray[Any]:
    """Return (samples, height, width, channels), for kernels; a view if the tensor is channels-last."""
    if not _is_channels_last(values):
        return values.detach().permute(0, 2, 3, 1).contiguous().numpy()
    samples, channels, height, width = values.shape
    line = width * channels
    shape, strides = (samples, height, width, channels), (height * line, line, channels, 1)
    return values.detach().as_strided(shape, strides).numpy()


def _is_channels_last(values: Tensor) -> bool:
    """Return True if the tensor is contiguous in channels-last layout.

    Then the functions above need a single call each; there are hundreds of them in a step.
    """
    layout = LAYOUTS.get(values.dim())
    return layout is not None and values.is_contiguous(memory_format=layout)


def sum_over_positions(values: Tensor) -> Tensor:
    """Sum over all spatial positions: (samples, channels)."""
    return values.flatten(2).sum(dim=2) if values.dim() > 2 else values
