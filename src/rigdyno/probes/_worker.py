"""What the worker's own threads went through: how long they ran, and how long they stood in the run queue."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from rigdyno.probes._files import OpenFile, read_once
from rigdyno.units import NS_PER_S

PAGE_BYTES = mmap.PAGESIZE
TICK_NS = NS_PER_S // os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat behind the command's name, which may itself hold spaces and brackets.
STATE, MAJOR_FAULTS, RESIDENT_PAGES = 0, 9, 21
STOPPED = (b"T", b"t")  # by a signal, by a debugger
TICKS = slice(11, 15)  # user and system, its own and those of children that have ended


class Usage(NamedTuple):
    """Of a process with all its threads and ended children, those included that nobody has listed yet."""

    major_faults: int
    ran_ns: int
    resident_bytes: int
    stopped: bool = False


class _Thread:
    """Counts from when it was first seen: what a thread did before belongs to no interval."""

    def __init__(self, folder: str) -> None:
        self.schedule = OpenFile(f"{folder}/schedstat")
        self.status = OpenFile(f"{folder}/status")
        self.waited_ns = _waited(self.schedule.read()) or 0
        self.switches = _involuntary(self.status.read())

    def close(self) -> None:
        self.schedule.close()
        self.status.close()


class _Process:
    def __init__(self, folder: str) -> None:
        self.stat = OpenFile(f"{folder}/stat")
        self.major_faults = (_usage(self.stat.read()) or Usage(0, 0, 0)).major_faults

    def close(self) -> None:
        self.stat.close()


Followed = TypeVar("Followed", _Thread, _Process)


class Worker:
    """The worker's processes with all their children; every method gives what has been since it was last asked."""

    def __init__(self, proc: Path, pids: Callable[[], Sequence[int]]) -> None:
        self._proc, self._pids = str(proc), pids
        self._threads: dict[str, _Thread] = {}
        self._processes: dict[str, _Process] = {}
        self._ran_ns = 0
        self.refresh()
        self.usage()  # what was before counts for nothing

    def refresh(self) -> None:
        """Lists the tree anew: threads come and go."""
        processes = _tree(self._proc, self._pids())
        _follow(self._processes, processes, _Process)
        _follow(self._threads, [folder for process in processes for folder in _tasks(process)], _Thread)

    def waited_ns(self) -> float:
        """Time in the run queue, summed over the threads."""
        waited = 0
        readable = False
        for thread in self._threads.values():
            now = _waited(thread.schedule.read())
            if now is not None:
                readable = True
                waited += now - thread.waited_ns
                thread.waited_ns = now
        return waited if readable else math.nan

    def usage(self) -> tuple[float, float, float, float]:
        """Major faults, time on the cores in ns, the memory that is resident now in bytes, and whether one of the
        processes is stopped now."""
        faults = ran = resident = 0
        readable = stopped = False
        for process in self._processes.values():
            now = _usage(process.stat.read())
            if now is not None:
                readable = True
                faults += now.major_faults - process.major_faults
                ran += now.ran_ns
                resident += now.resident_bytes
                stopped |= now.stopped
                process.major_faults = now.major_faults
        if not readable:
            return math.nan, math.nan, math.nan, math.nan
        # Of the whole tree: what a child ran before it was listed counts when it is, what it ran before it ended moves
        # to its parent, and so nothing is taken for another tenant's for long.
        before, self._ran_ns = self._ran_ns, ran
        return faults, max(0, ran - before), resident, float(stopped)

    def involuntary_switches(self) -> float:
        switches = 0.0
        readable = False
        for thread in self._threads.values():
            now = _involuntary(thread.status.read())
            if now is not None:
                readable = True
                switches += now - (thread.switches or 0)
                thread.switches = now
        return switches if readable else math.nan

    def close(self) -> None:
        _follow(self._threads, [], _Thread)
        _follow(self._processes, [], _Process)


def _follow(known: dict[str, Followed], now: Sequence[str], kind: Callable[[str], Followed]) -> None:
    """Closes those that are gone, opens those that are new."""
    for gone in known.keys() - set(now):
        known.pop(gone).close()
    for folder in now:
        if folder not in known:
            known[folder] = kind(folder)


def _tree(proc: str, pids: Sequence[int]) -> list[str]:
    """Folders of the processes. As text, like everything here that is done every second: paths cost more."""
    found: dict[int, str] = {}
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = f"{proc}/{pid}"
            waiting += [int(child) for task in _tasks(found[pid]) for child in read_once(f"{task}/children").split()]
    return list(found.values())


def _tasks(process: str) -> list[str]:
    try:
        return [f"{process}/task/{name}" for name in os.listdir(f"{process}/task")]  # noqa: PTH208
    except OSError:  # it ended
        return []


def _waited(text: bytes | None) -> int | None:
    fields = (text or b"").split()
    return int(fields[1]) if len(fields) >= 2 else None


def _usage(text: bytes | None) -> Usage | None:
    fields = (text or b"").rpartition(b")")[2].split()
    if len(fields) <= RESIDENT_PAGES:
        return None
    ticks = sum(map(int, fields[TICKS]))
    resident_bytes = int(fields[RESIDENT_PAGES]) * PAGE_BYTES
    return Usage(int(fields[MAJOR_FAULTS]), ticks * TICK_NS, resident_bytes, fields[STATE] in STOPPED)


def _involuntary(text: bytes | None) -> int | None:
    _, found, rest = (text or b"").partition(b"nonvoluntary_ctxt_switches:")
    return int(rest.split(None, 1)[0]) if found else None
