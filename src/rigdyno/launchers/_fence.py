"""A fence around the processes of a cell: if they take far more memory than they may, they end, and nobody else does.

The kernel keeps it for the whole tree where a control group can be made. Else RLIMIT_DATA turns an overrun into an
error in the process that wants more. In any case the tree is looked at with every tick of whoever waits for it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from rigdyno.processes import ROOT, count_in, group_folders, tree_memory_bytes, tree_of
from rigdyno.units import show_bytes

SLACK = 1.25  # times what may be filled: what is a little too large still tells how much it took
UNTOUCHED_BYTES = 2**30  # of address space that a framework maps and never uses, which RLIMIT_DATA counts
RESERVE = 0.03  # of the machine's memory: below this, the cell ends before the machine is in need
_PREFIX = "rigdyno-"


class Fence:
    """`allowed_bytes`: what the cell's processes may fill; None: a device's memory is what is scarce, and here it is
    only seen to that the machine keeps its reserve."""

    def __init__(self, pid: int, allowed_bytes: int | None) -> None:
        self._pid = pid
        self.peak_bytes: int | None = None
        self.overrun: str | None = None  # why it was ended from here
        self._limit = None if allowed_bytes is None else round(SLACK * allowed_bytes)
        self.group = None if self._limit is None else ControlGroup.around(pid, self._limit)
        if self._limit is not None and self.group is None:
            _limit_data(pid, self._limit + UNTOUCHED_BYTES)

    def look(self) -> None:
        peak = tree_memory_bytes(self._pid, peak=True)
        if peak is not None:
            self.peak_bytes = max(self.peak_bytes or 0, peak)
        held, memory = tree_memory_bytes(self._pid, peak=False), psutil.virtual_memory()
        if self._limit is not None and held is not None and held > self._limit:
            self._end(f"ended at {show_bytes(held)}: so much more than it may take")
        elif memory.available < RESERVE * memory.total:
            self._end(f"ended before the machine ran out: {show_bytes(memory.available)} were left")

    def _end(self, why: str) -> None:
        self.overrun = self.overrun or why
        for pid in tree_of(self._pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> bool:
        """Once the processes are gone; whether the kernel ended one of them at the fence."""
        return self.group is not None and self.group.close()


class ControlGroup:
    """Below this process's own group: all other limits of that one hold for it as well."""

    def __init__(self, folder: Path, events: str) -> None:
        self.folder, self._events = folder, events

    @classmethod
    def around(cls, pid: int, limit_bytes: int, root: Path = ROOT) -> ControlGroup | None:
        """None: none can be made here, for want of rights or of the controller."""
        for version in (_VERSION_1, _VERSION_2):
            parent = next(group_folders(version.controller, version.mounts, root), None)
            if parent is None or not parent.is_dir():
                continue
            _remove_left_over(parent)
            group = cls(parent / f"{_PREFIX}{os.getpid()}-{pid}", version.events)
            try:
                group._make(version, pid, limit_bytes)
            except OSError:
                group.close()
                continue
            return group
        return None

    def _make(self, version: _Version, pid: int, limit_bytes: int) -> None:
        if version.controller == "":
            (self.folder.parent / "cgroup.subtree_control").write_text("+memory")
        self.folder.mkdir()
        (self.folder / version.limit).write_text(str(limit_bytes))
        for name, value in version.others.items():
            with suppress(OSError):  # about swap, which a kernel may not count
                (self.folder / name).write_text(value.format(limit_bytes))
        (self.folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> bool:
        killed = count_in(self.folder / self._events, "oom_kill")
        with suppress(OSError):
            self.folder.rmdir()
        return bool(killed)


class _Version(NamedTuple):
    controller: str
    mounts: tuple[str, ...]
    limit: str
    others: Mapping[str, str]
    events: str


_VERSION_1 = _Version(
    controller="memory",
    mounts=("memory",),
    limit="memory.limit_in_bytes",
    others={"memory.memsw.limit_in_bytes": "{}"},
    events="memory.oom_control",
)
_VERSION_2 = _Version(
    controller="",
    mounts=(".", "unified"),
    limit="memory.max",
    others={"memory.swap.max": "0", "memory.oom.group": "1"},
    events="memory.events",
)


def _remove_left_over(parent: Path) -> None:
    """Of a Rigdyno that was killed: its workers went with it, and their empty groups stayed."""
    for folder in parent.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            with suppress(OSError):
                folder.rmdir()


def _limit_data(pid: int, limit_bytes: int) -> None:
    try:
        import resource

        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        limit = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, hard))
    except (ImportError, AttributeError, OSError, ValueError):
        return  # not Linux, or it is gone: the tree is looked at all the same
