"""Runs the participants of one cell on one node: its sampler and its ranks, with a memory limit.

If a cell's processes exceed their memory limit, they are ended, and no others. The kernel enforces the limit for the
whole process tree if a control group can be made. Else RLIMIT_DATA makes further allocations fail. In any case the
memory of the tree is checked regularly while waiting for it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from rigdyno.base.clock import Deadline
from rigdyno.base.linux import ROOT, count_oom_kills, group_folders, process_tree, read_count, tree_memory_bytes
from rigdyno.base.processes import child_command
from rigdyno.base.units import show_bytes
from rigdyno.contracts import Exit, Left
from rigdyno.launchers.nodes.children import Child, worker_environment
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.spec import Cell, Participant, on_node, sampler_among

# Modules that participants run, by role.
WORKER, SAMPLER = "rigdyno.runner.worker", "rigdyno.runner.sampler"

SAMPLER_START_SECONDS = 10.0  # a sampler that needs longer has a meter that hangs

SLACK = 1.25  # factor above the allowed memory: a cell that is slightly too large can still report how much it took

UNTOUCHED_BYTES = 2**30  # address space that a framework maps and never uses, which RLIMIT_DATA counts

RESERVE = 0.03  # share of the machine's memory that must stay free; else the cell is ended

_PREFIX = "rigdyno-"


class MemoryLimit:
    """Limits the memory of a process tree to `allowed_bytes`. None: the cell is limited by its device's memory, and
    here only the machine's reserve is protected."""

    def __init__(self, pid: int, allowed_bytes: int | None) -> None:
        self._pid = pid
        self.peak_bytes: int | None = None
        self.overrun: str | None = None  # why it was ended, if it was
        self._limit = None if allowed_bytes is None else round(SLACK * allowed_bytes)
        self.group = None if self._limit is None else ControlGroup.create(pid, self._limit)
        if self._limit is not None and self.group is None:
            _limit_data(pid, self._limit + UNTOUCHED_BYTES)

    def check(self) -> None:
        """Record the peak, and end the processes if they exceed the limit or the machine is short of memory."""
        peak = tree_memory_bytes(self._pid, peak=True)
        if peak is not None:
            self.peak_bytes = max(self.peak_bytes or 0, peak)
        used, memory = tree_memory_bytes(self._pid, peak=False), psutil.virtual_memory()
        if self._limit is not None and used is not None and used > self._limit:
            self._kill(f"ended at {show_bytes(used)}: it exceeded its memory limit")
        elif memory.available < RESERVE * memory.total:
            self._kill(f"ended before the machine ran out of memory: {show_bytes(memory.available)} were left")

    def _kill(self, why: str) -> None:
        self.overrun = self.overrun or why
        for pid in process_tree([self._pid]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> bool:
        """Remove the limit once the processes are gone. Return whether the kernel killed one of them at the limit."""
        return self.group is not None and self.group.close()


class ControlGroup:
    """A control group below this process's own group, whose other limits apply to it as well."""

    def __init__(self, folder: Path, events: str) -> None:
        self.folder, self._events = folder, events

    @classmethod
    def create(cls, pid: int, limit_bytes: int, root: Path = ROOT) -> ControlGroup | None:
        """Make a group with the process in it; None without the rights or the controller for it."""
        for version in (_VERSION_1, _VERSION_2):
            parent = next(group_folders(version.controller, root), None)
            if parent is None or not parent.is_dir():
                continue
            _remove_stale_groups(parent)
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
            with suppress(OSError):  # some are about swap, which a kernel may not count
                (self.folder / name).write_text(value.format(limit_bytes))
        (self.folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> bool:
        killed = read_count(self.folder / self._events, "oom_kill")
        with suppress(OSError):
            self.folder.rmdir()
        return bool(killed)


class _Version(NamedTuple):
    controller: str
    limit: str
    others: Mapping[str, str]
    events: str


_VERSION_1 = _Version(
    controller="memory",
    limit="memory.limit_in_bytes",
    others={"memory.memsw.limit_in_bytes": "{}"},
    events="memory.oom_control",
)

_VERSION_2 = _Version(
    controller="",
    limit="memory.max",
    others={"memory.swap.max": "0", "memory.oom.group": "1"},
    events="memory.events",
)


def _remove_stale_groups(parent: Path) -> None:
    """Remove empty groups of a killed Rigdyno, whose workers ended with it."""
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
        return  # not Linux, or the process is gone: the tree is checked all the same


class MeetingPoint(NamedTuple):
    """Address at which the ranks of a cell find each other."""

    address: str  # node 0's address
    port: int
    listening: int | None = None  # on node 0: descriptor of a socket that is bound there already


class NodeShare(NamedTuple):
    """One node's share of a cell."""

    cell: Cell
    folder: Path  # the cell's folder on this node
    node: int = 0
    meeting: MeetingPoint | None = None  # None: there is a single rank
    own_address: str = "127.0.0.1"  # address at which other nodes reach this one
    beside: tuple[Path, ...] = ()  # folders of cells that run at the same time and share this cell's sampler

    @property
    def participants(self) -> list[Participant]:
        return on_node(self.cell.participants, self.node)

    @property
    def ranks(self) -> list[Participant]:
        return [each for each in self.participants if each.rank is not None]

    @property
    def sampler(self) -> Participant | None:
        return sampler_among(self.participants)


class Starter(Protocol):
    """A launcher that can start one node's ranks; launchers for several nodes use it on each node."""

    def start_part(self, part: NodeShare) -> NodeLaunch: ...


class NodeSampler:
    """Runs this node's sampler until it is stopped. It also covers the workers of cells that run at the same time."""

    def __init__(self, part: NodeShare) -> None:
        self._sampler, self._exits = part.sampler, list[Exit]()
        if self._sampler is not None:
            beside = (str(folder.resolve()) for folder in part.beside)
            home = CellFolder(part.folder).participant(self._sampler.id)
            self._rows, self._start_deadline = home.rows("telemetry"), Deadline(SAMPLER_START_SECONDS)
            self._child = Child(
                child_command(SAMPLER, part.folder, self._sampler.id, *beside),
                home.log,
                worker_environment(part.cell.spec),
            )

    def _wait_until_started(self) -> None:
        """Wait until the sampler has recorded which meters there are: a cell can be shorter than its start-up."""
        while not self._rows.exists() and not self._start_deadline.passed and not self._child.wait(0.01):
            pass

    def stop(self) -> list[Exit]:
        if self._sampler is not None and not self._exits:
            self._wait_until_started()
            early = self._child.code
            code = self._child.stop(for_good=False)  # a sensor read that hangs in the kernel can't be ended
            # If it was still starting, it died only of our signal.
            self._exits = [Exit(0 if early is None and code == -signal.SIGTERM else code, self._sampler.id)]
        return self._exits


class NodeLaunch:
    """A cell that runs on this node."""

    def __init__(
        self, part: NodeShare, start: Callable[[NodeShare], Child], exits: Callable[[NodeShare, int], Sequence[Exit]]
    ) -> None:
        """`start` returns the process that is the rank, or that starts the ranks; `exits` returns how the ranks ended,
        given its exit code. The sampler starts first, so that it covers all steps."""
        self._part, self._exits, self._oom_kills = part, exits, count_oom_kills()
        make_folders(part)
        self._sampler = NodeSampler(part)
        try:
            self.ranks = start(part)
        except BaseException:
            self._sampler.stop()
            raise
        self._limit = _make_memory_limit(part.cell, self.ranks)

    def wait(self, seconds: float) -> bool:
        over = self.ranks.wait(seconds)
        if self._limit is not None and not over:
            self._limit.check()
        return over

    def stop(self) -> None:
        self.ranks.stop()
        self._sampler.stop()
        if self._limit is not None:
            self._limit.close()

    def collect(self) -> Left:
        exits = [*self._exits(self._part, self.ranks.code or 0), *self._sampler.stop()]
        limit = self._limit
        killed = limit is not None and limit.close()
        ran_out = killed or count_oom_kills() > self._oom_kills
        return Left(
            exits=exits,
            out_of_memory=(self._part.node,) if ran_out else (),
            overrun=None if limit is None else limit.overrun,
            peak_bytes=None if limit is None else limit.peak_bytes,
        )


def _make_memory_limit(cell: Cell, ranks: Child) -> MemoryLimit | None:
    if cell.allowed_bytes is None:
        return None
    return MemoryLimit(ranks.pid, cell.allowed_bytes if cell.spec.device == "cpu" else None)


def make_folders(part: NodeShare) -> None:
    """Make a folder for each participant of this node."""
    for each in part.participants:
        CellFolder(part.folder).participant(each.id).path.mkdir(exist_ok=True)
