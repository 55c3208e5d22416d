"""How much memory there is to be had: of the machine, and of the control group that a container or a job is put in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")
# Of cgroups 2 and 1: where they are mounted, the limit, what is used, and what of that is only a cache of files.
MOUNTS = (
    ("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_bytes(root: Path = ROOT) -> int:
    return max(0, min([int(psutil.virtual_memory().available), *_left_in_groups(root)]))


def _left_in_groups(root: Path) -> Iterator[int]:
    """The group of this process and all above it: each of their limits holds."""
    for controller, mount, limit, used, cache in MOUNTS:
        top = root / mount
        own = top / _group(root, controller)
        for folder in (own, *own.parents):
            if not folder.is_relative_to(top):
                break
            try:
                yield _number(folder / limit) - _number(folder / used) + _stated(folder / "memory.stat", cache)
            except (OSError, ValueError):  # no such group, or 'max', which is no limit
                continue


def _group(root: Path, controller: str) -> str:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and ".." not in path:
            return path.lstrip("/")
    return ""


def _number(file: Path) -> int:
    return int(file.read_text())


def _stated(file: Path, name: str) -> int:
    numbers = dict(line.split() for line in file.read_text().splitlines())
    return int(numbers.get(name, 0))
