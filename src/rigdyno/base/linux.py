"""Reads from /proc, from /sys and from control groups; any file there may be missing or unreadable."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path("/")

_MOST_BYTES = 1 << 16  # of one read: /proc/stat of 500 cores fits

# Folders in which the groups of a controller are mounted; '' stands for version 2, which has one tree for all.
_GROUP_MOUNTS = {"": (".", "unified"), "memory": ("memory",), "cpu": ("cpu", "cpu,cpuacct")}


class OpenFile:
    """A file that stays open and is read from its start each time: opening it again would take much longer.

    After a failed read the file is closed for good.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path | str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1

    def read(self) -> bytes | None:
        """Return the content, or None if it can't be read (any more)."""
        if self._descriptor < 0:
            return None
        try:
            return os.pread(self._descriptor, _MOST_BYTES, 0)
        except OSError:  # the process ended, the sensor was removed, or the kernel's pressure counts were switched off
            self.close()
            return None

    def close(self) -> None:
        """Close the file; reads then return None."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def is_open(self) -> bool:
        """Return whether the file can still be read."""
        return self._descriptor >= 0


def read_once(path: str) -> bytes:
    """Return a file's content, or nothing if it can't be read. Faster than `read_text`."""
    file = OpenFile(path)
    try:
        return file.read() or b""
    finally:
        file.close()


def read_text(path: Path) -> str:
    """Return a file's text without surrounding blanks and null bytes, or '' if it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \t\n\r\v\f")
    except OSError:
        return ""


def read_int(path: Path) -> int | None:
    """Return the integer that a file consists of, or None if it can't be read or is something else, such as 'max'."""
    try:
        return int(read_text(path))
    except ValueError:
        return None


def read_field(path: Path, name: str) -> str:
    """Return the rest of the first line whose first word is `name`, or '' if there is none."""
    for line in read_text(path).splitlines():
        words = line.split(None, 1)
        if words and words[0] == name:
            return words[1].strip() if len(words) > 1 else ""
    return ""


def read_count(path: Path, name: str) -> int | None:
    """Return the number on the line 'NAME NUMBER' of a file, or None if there is no such line."""
    text = read_field(path, name)
    return int(text) if text.isdecimal() else None


def read_field_bytes(path: Path, name: str) -> int | None:
    """Return the size on the line 'NAME NUMBER kB' of a file in bytes, or None if there is no such line."""
    text = read_field(path, name)
    return int(text.split()[0]) * 1024 if text else None


def parse_number(text: bytes | None) -> float:
    """Return a number, or NaN for anything else: zero would be a measurement."""
    try:
        return float(text) if text is not None else math.nan
    except ValueError:
        return math.nan


def parse_core_list(text: str) -> set[int]:
    """Return the cores that the kernel writes as '0-3,8,10-11'."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def parse_selected_word(text: str) -> str | None:
    """Return the choice that the kernel marks by brackets, as in 'always [madvise] never', or None."""
    return next((word.strip("[]") for word in text.split() if word.startswith("[")), None)


def has_hypervisor_flag(root: Path = ROOT) -> bool:
    """Return whether the processor says that it is a virtual machine's; only x86 does."""
    return "hypervisor" in read_text(root / "proc/cpuinfo").partition("flags")[2].partition("\n")[0].split()


def offer_to_oom_killer() -> None:
    """Ask the kernel to end this process first if memory runs out, before the shell or the desktop."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return  # not Linux, or not allowed: the kernel then chooses by size, which is the worker as well


def peak_memory_bytes() -> int | None:
    """Return the peak resident memory of this process: ru_maxrss would include its parent's before exec."""
    return read_field_bytes(Path("/proc/self/status"), "VmHWM:")


def tree_memory_bytes(pid: int, *, peak: bool) -> int | None:
    """Return the sum of the peak or present resident memory of a process and all its living descendants.

    Memory that they share counts for each of them. None: it can't be read here, or they are gone.
    """
    field = "VmHWM:" if peak else "VmRSS:"
    sizes = [read_field_bytes(Path(f"/proc/{each}/status"), field) for each in process_tree([pid])]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def process_tree(pids: Sequence[int], proc: str = "/proc") -> list[int]:
    """Return the processes and all their descendants.

    Paths are plain strings here and in `task_folders`: they are read every second, and Path objects cost more.
    """
    found: dict[int, None] = {}
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = None
            tasks = task_folders(f"{proc}/{pid}")
            waiting += [int(child) for task in tasks for child in read_once(f"{task}/children").split()]
    return list(found)


def task_folders(process: str) -> list[str]:
    """Return the folders of a process's threads, given its folder in /proc; none if it has ended."""
    try:
        return [f"{process}/task/{name}" for name in os.listdir(f"{process}/task")]  # noqa: PTH208
    except OSError:
        return []


def group_folders(controller: str, root: Path = ROOT, membership: str | None = None) -> Iterator[Path]:
    """Yield the folder of a process's control group, then those of the groups above it, for every possible mount.

    `controller` is 'cpu' or 'memory' for version 1 and '' for version 2. `membership` is the text of the process's
    /proc/PID/cgroup, by default that of this process. Inside a container the group's path may be the host's: then
    the mounts alone exist.
    """
    if membership is None:
        membership = read_text(root / "proc/self/cgroup")
    group = _parse_membership(membership).get(controller)
    if group is None or ".." in group:  # a group outside of this container's view starts with /..
        group = "/"
    for mount in _GROUP_MOUNTS[controller]:
        top = root / "sys/fs/cgroup" / mount
        folder = top / group.lstrip("/")
        while folder != top:
            yield folder
            folder = folder.parent
        yield top


def _parse_membership(text: str) -> dict[str, str]:
    """Return the group's path for each controller."""
    paths = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def process_age_seconds() -> float | None:
    """Return the time since this process was started, the interpreter's start included, or None if it is unknown."""
    try:
        start = int(read_text(Path("/proc/self/stat")).rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - start
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def count_oom_kills(root: Path = ROOT) -> int:
    """Return how many processes the kernel has ended because memory ran out, or 0 if it doesn't say.

    Where the kernel counts by control group, only those of this process's group count; else those of the machine.
    """
    files = [
        *(folder / "memory.events" for folder in group_folders("", root)),
        *(folder / "memory.oom_control" for folder in group_folders("memory", root)),
        root / "proc/vmstat",
    ]
    counts = (read_count(file, "oom_kill") for file in files)
    return next((count for count in counts if count is not None), 0)
