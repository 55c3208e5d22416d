"""What Rigdyno's child processes have in common."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
ROOT, CGROUPS = Path("/"), Path("sys/fs/cgroup")


def child_command(module: str, folder: Path, *more: str, python: str | None = None) -> list[str]:
    """Runs a module of Rigdyno on a cell's folder, as a child of this process; `python`: of another environment."""
    # -P: the working folder's own `random.py` must not shadow the library's.
    return [python or sys.executable, "-P", "-m", module, str(folder.resolve()), str(os.getpid()), *more]


def die_with_parent(parent_pid: int) -> None:
    """So that `kill -9` of `rigdyno` leaves no worker behind that keeps the machine busy."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died while this process was starting
        sys.exit("rigdyno: whoever started this process is gone")


def offer_to_oom_killer() -> None:
    """If memory runs out, the kernel takes the worker, not the shell or the desktop."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return  # not Linux, or not allowed: the kernel then chooses by size, which is the worker as well


def peak_memory_bytes() -> int | None:
    """VmHWM of this process: ru_maxrss would include what its parent was before exec."""
    return _memory_bytes("/proc/self", "VmHWM:")


def tree_memory_bytes(pid: int, *, peak: bool) -> int | None:
    """Of a process and all below it that live: what each has ever held, or holds now. What they share counts for
    each of them. None: it can't be read here, or they are gone."""
    field = "VmHWM:" if peak else "VmRSS:"
    found = [_memory_bytes(f"/proc/{each}", field) for each in tree_of(pid)]
    known = [size for size in found if size is not None]
    return sum(known) if known else None


def _memory_bytes(process: str, field: str) -> int | None:
    for line in (_text(Path(process, "status")) or "").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return None


def tree_of(pid: int) -> list[int]:
    """The process and all below it."""
    found: dict[int, None] = {}
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = None
            waiting += [int(child) for task in _tasks(each) for child in (_text(task / "children") or "").split()]
    return list(found)


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it ended
        return []


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def group_folders(controller: str, mounts: Iterable[str], root: Path = ROOT) -> Iterator[Path]:
    """Of this process's own control group, then of those above it. The controller of version 2 is ''."""
    group = _groups(root).get(controller)
    if group is None or ".." in group:  # a group outside of this container's view starts with /..
        group = "/"
    for mount in mounts:
        yield from _upwards(root / CGROUPS / mount, group)


def _groups(root: Path) -> dict[str, str]:
    """Controller -> path of this process's group."""
    paths = {}
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """The group's folder and those above. Inside a container the path may be the host's: then only the mount exists."""
    folder = mount / group.lstrip("/")
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def process_age_seconds() -> float | None:
    """Since this process was started, the interpreter's own start included; None where the system doesn't tell."""
    try:
        began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def write_pid(path: Path) -> None:
    path.write_text(str(os.getpid()))


def signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def oom_kills(root: Path = ROOT) -> int:
    """How many processes the kernel has ended for want of memory: in this process's control group, where it counts by
    group, so that somebody else's don't count; else on the whole machine; 0 where it doesn't say."""
    kinds = (("", (".", "unified"), "memory.events"), ("memory", ("memory",), "memory.oom_control"))
    files = (
        folder / events for controller, mounts, events in kinds for folder in group_folders(controller, mounts, root)
    )
    counts = (count_in(file, "oom_kill") for file in (*files, root / "proc/vmstat"))
    return next((count for count in counts if count is not None), 0)


def count_in(file: Path, name: str) -> int | None:
    """Of a file whose lines are names and numbers; None: it has no such line."""
    lines = (line.split() for line in (_text(file) or "").splitlines())
    return next((int(words[1]) for words in lines if len(words) == 2 and words[0] == name), None)
