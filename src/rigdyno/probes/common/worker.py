"""Measures the worker's processes from outside: CPU time, time in the run queue, memory, faults, and throttling by the
CPU quota of their control groups (v1 and v2)."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from rigdyno.base.linux import OpenFile, group_folders, process_tree, read_once, task_folders
from rigdyno.base.units import NS_PER_S

_QUOTA_FILES = {"": "cpu.max", "cpu": "cpu.cfs_quota_us"}  # by controller: of version 2, of version 1

_UNLIMITED = (b"max", b"-1")

_TIMES = ((b"throttled_usec ", 1000), (b"throttled_time ", 1))  # field in cpu.stat, and its unit in nanoseconds

PAGE_BYTES = mmap.PAGESIZE

TICK_NS = NS_PER_S // os.sysconf("SC_CLK_TCK")

# Fields of /proc/PID/stat after the command's name, which may itself contain spaces and brackets.
STATE, MAJOR_FAULTS, RESIDENT_PAGES = 0, 9, 21

STOPPED = (b"T", b"t")  # stopped by a signal, by a debugger

TICKS = slice(11, 15)  # user and system time, of the process and of its ended children


class _ControlGroup:
    def __init__(self, quota: Path) -> None:
        self._quota, self._stat = OpenFile(quota), OpenFile(quota.parent / "cpu.stat")
        self._last_ns = self._total_ns() or 0
        self.is_limited = False

    def refresh(self) -> None:
        text = self._quota.read() or _UNLIMITED[0]
        self.is_limited = not text.startswith(_UNLIMITED)

    def throttled_ns(self) -> int:
        """Return the throttled time since the last call, summed over the cores."""
        last_ns, self._last_ns = self._last_ns, self._total_ns() or self._last_ns
        return self._last_ns - last_ns

    def _total_ns(self) -> int | None:
        text = self._stat.read() or b""
        for name, factor in _TIMES:
            _, found, rest = text.partition(name)
            if found:
                return int(rest.split(None, 1)[0]) * factor
        return None

    def close(self) -> None:
        self._quota.close()
        self._stat.close()


class Quota:
    """CPU quotas of the worker's control groups and of all groups above them: all of them apply."""

    def __init__(self, root: Path, pids: Callable[[], Sequence[int]]) -> None:
        self._root, self._pids = root, pids
        self._groups: dict[Path, _ControlGroup] = {}
        self._memberships: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Look up groups and quotas again: a worker can be moved, and a quota set, while it runs."""
        texts = {read_once(f"{self._root}/proc/{pid}/cgroup").decode() for pid in self._pids()} - {""}
        if texts != self._memberships:
            self._memberships = texts
            self._follow({path for text in texts for path in _quota_files(self._root, text)})
        for group in self._groups.values():
            group.refresh()

    def _follow(self, now: set[Path]) -> None:
        for gone in self._groups.keys() - now:
            self._groups.pop(gone).close()
        for path in now - self._groups.keys():
            self._groups[path] = _ControlGroup(path)

    def throttled_ns(self) -> float:
        """Return the throttled core time since the last call. Groups without a quota aren't read: it can't change."""
        if not self._memberships:
            return math.nan
        return sum(group.throttled_ns() for group in self._groups.values() if group.is_limited)

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self._groups.clear()


def _quota_files(root: Path, membership: str) -> Iterator[Path]:
    for controller, name in _QUOTA_FILES.items():
        for folder in group_folders(controller, root, membership):
            if (folder / name).exists():
                yield folder / name


class CpuUsage(NamedTuple):
    """Usage of a process with all its threads and its ended children, including children that were never listed."""

    major_faults: int
    ran_ns: int
    resident_bytes: int
    stopped: bool = False


class _Thread:
    """Counters of a thread, from when it was first seen: what it did before belongs to no interval."""

    def __init__(self, folder: str) -> None:
        self.schedule = OpenFile(f"{folder}/schedstat")
        self.status = OpenFile(f"{folder}/status")
        self.waited_ns = _parse_waited_ns(self.schedule.read()) or 0
        self.switches = _parse_switches(self.status.read())

    def close(self) -> None:
        self.schedule.close()
        self.status.close()


class _Process:
    def __init__(self, folder: str) -> None:
        self.stat = OpenFile(f"{folder}/stat")
        self.major_faults = (_parse_usage(self.stat.read()) or CpuUsage(0, 0, 0)).major_faults

    def close(self) -> None:
        self.stat.close()


Followed = TypeVar("Followed", _Thread, _Process)


class WorkerUsage:
    """Usage of the worker's processes with all their children. Every method returns the usage since its last call."""

    def __init__(self, proc: Path, pids: Callable[[], Sequence[int]]) -> None:
        self._proc, self._pids = str(proc), pids
        self._threads: dict[str, _Thread] = {}
        self._processes: dict[str, _Process] = {}
        self._ran_ns = 0
        self.refresh()
        self.usage()  # discard the usage so far

    def refresh(self) -> None:
        """Lists the tree anew: threads come and go."""
        processes = [f"{self._proc}/{pid}" for pid in process_tree(self._pids(), self._proc)]
        _follow(self._processes, processes, _Process)
        _follow(self._threads, [folder for process in processes for folder in task_folders(process)], _Thread)

    def waited_ns(self) -> float:
        """Return the time in the run queue, summed over the threads."""
        waited = 0
        readable = False
        for thread in self._threads.values():
            now = _parse_waited_ns(thread.schedule.read())
            if now is not None:
                readable = True
                waited += now - thread.waited_ns
                thread.waited_ns = now
        return waited if readable else math.nan

    def usage(self) -> tuple[float, float, float, float]:
        """Return major faults, CPU time in ns, current resident memory in bytes, and 1.0 if one of the processes is
        stopped now."""
        faults = ran = resident = 0
        readable = stopped = False
        for process in self._processes.values():
            now = _parse_usage(process.stat.read())
            if now is not None:
                readable = True
                faults += now.major_faults - process.major_faults
                ran += now.ran_ns
                resident += now.resident_bytes
                stopped |= now.stopped
                process.major_faults = now.major_faults
        if not readable:
            return math.nan, math.nan, math.nan, math.nan
        # CPU time of the whole tree: what a child used before it was listed counts once it is, and what it used before
        # it ended moves to its parent, so nothing is attributed to other processes for long.
        before, self._ran_ns = self._ran_ns, ran
        return faults, max(0, ran - before), resident, float(stopped)

    def involuntary_switches(self) -> float:
        switches = 0.0
        readable = False
        for thread in self._threads.values():
            now = _parse_switches(thread.status.read())
            if now is not None:
                readable = True
                switches += now - (thread.switches or 0)
                thread.switches = now
        return switches if readable else math.nan

    def close(self) -> None:
        _follow(self._threads, [], _Thread)
        _follow(self._processes, [], _Process)


def _follow(known: dict[str, Followed], now: Sequence[str], kind: Callable[[str], Followed]) -> None:
    """Close those that are gone, and open those that are new."""
    for gone in known.keys() - set(now):
        known.pop(gone).close()
    for folder in now:
        if folder not in known:
            known[folder] = kind(folder)


def _parse_waited_ns(text: bytes | None) -> int | None:
    fields = (text or b"").split()
    return int(fields[1]) if len(fields) >= 2 else None


def _parse_usage(text: bytes | None) -> CpuUsage | None:
    fields = (text or b"").rpartition(b")")[2].split()
    if len(fields) <= RESIDENT_PAGES:
        return None
    ticks = sum(map(int, fields[TICKS]))
    resident_bytes = int(fields[RESIDENT_PAGES]) * PAGE_BYTES
    return CpuUsage(int(fields[MAJOR_FAULTS]), ticks * TICK_NS, resident_bytes, fields[STATE] in STOPPED)


def _parse_switches(text: bytes | None) -> int | None:
    _, found, rest = (text or b"").partition(b"nonvoluntary_ctxt_switches:")
    return int(rest.split(None, 1)[0]) if found else None
