"""How many bytes this process can still allocate, limited by the machine and by its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from rigdyno.base.linux import ROOT, group_folders, read_count, read_int

# For versions 2 and 1 of control groups: the controller, the files of limit and usage, and the name under which
# memory.stat counts the part of the usage that is a cache of files, which the kernel gives up if it must.
_VERSIONS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_bytes(root: Path = ROOT) -> int:
    """Return the bytes that are available on the machine and within every control group of this process."""
    return max(0, min([int(psutil.virtual_memory().available), *_free_in_groups(root)]))


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield what is left of each limit: those of this process's groups and of all groups above them."""
    for controller, limit_file, usage_file, cache in _VERSIONS:
        for folder in group_folders(controller, root):
            limit, usage = read_int(folder / limit_file), read_int(folder / usage_file)
            if limit is not None and usage is not None:  # None: no such group, or 'max', which is no limit
                yield limit - usage + (read_count(folder / "memory.stat", cache) or 0)
