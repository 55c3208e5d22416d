"""What one step has freed is kept for the next, as far as that takes no more memory.

Glibc hands large blocks back to the system, which gives them out again page by page, filled with zeros. Where a step
frees gigabytes, that is up to a third of its time, and Poisson batches, none as large as the last, fare worst. Blocks
of up to 32 MB are kept. Larger ones would leave holes that nothing else fits into, a tenth of the memory, so they still
come from the system, but in pages of 2 MB, which are given out as quickly as memory can be written.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

from torch import Tensor

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt
NEVER, LARGE_BYTES = -1, 32 << 20  # the most that glibc takes for a threshold
USUAL_TRIM_BYTES = 2 * LARGE_BYTES  # as glibc itself has it after it has seen large blocks
HUGE_PAGES, HUGE_BYTES = 14, 2 << 20  # of madvise
SETTINGS = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")

_trainings = 0  # under way in this process


def keep() -> None:
    """Until as many have let go. Whoever has set the allocator by hand is left alone."""
    global _trainings
    _trainings += 1
    library = _glibc()
    if library is not None:
        library.mallopt(TRIM_THRESHOLD, NEVER)
        library.mallopt(MMAP_THRESHOLD, LARGE_BYTES)


def let_go() -> None:
    global _trainings
    _trainings -= 1
    library = _glibc()
    if library is not None and not _trainings:
        library.mallopt(TRIM_THRESHOLD, USUAL_TRIM_BYTES)
        library.malloc_trim(0)


def in_large_pages(values: Tensor) -> Tensor:
    """The same, not yet filled."""
    memory = values.untyped_storage()
    library = _glibc() if memory.nbytes() >= LARGE_BYTES and values.device.type == "cpu" else None
    if library is not None:
        first = -(-memory.data_ptr() // HUGE_BYTES) * HUGE_BYTES
        last = (memory.data_ptr() + memory.nbytes()) // HUGE_BYTES * HUGE_BYTES
        # A wish: a no changes nothing.
        library.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), HUGE_PAGES)
    return values


@cache
def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux") or any(os.environ.get(name) for name in SETTINGS):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
