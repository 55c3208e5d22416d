"""What one step has freed is kept for the next.

Glibc hands large blocks back to the system, which gives them out again page by page, filled with zeros. Where a step
frees gigabytes, that is up to a third of its time, and Poisson batches, none as large as the last, fare worst.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # of mallopt
NEVER, NONE = -1, 0
# As glibc itself has them after it has seen large blocks. It no longer adapts them once anybody has set one.
USUAL = {TRIM_THRESHOLD: 64 << 20, MMAP_THRESHOLD: 32 << 20, MMAP_MAX: 65_536}
SETTINGS = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")

_trainings = 0  # under way in this process


def keep() -> None:
    """Until as many have let go. Whoever has set the allocator by hand is left alone."""
    global _trainings
    _trainings += 1
    library = _glibc()
    if library is not None:
        library.mallopt(TRIM_THRESHOLD, NEVER)
        library.mallopt(MMAP_MAX, NONE)


def let_go() -> None:
    global _trainings
    _trainings -= 1
    library = _glibc()
    if library is not None and not _trainings:
        for setting, value in USUAL.items():
            library.mallopt(setting, value)
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux") or any(os.environ.get(name) for name in SETTINGS):
        return None
    library = ctypes.CDLL(None)
    return (
        library if all(hasattr(library, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")) else None
    )
