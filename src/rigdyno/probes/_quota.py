"""How long the worker was held back because the quota of its own control group was used up, for both versions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rigdyno.probes._files import OpenFile, read_once

# Where a controller's groups are mounted, and the files that hold the quota and what came of it.
_V1_MOUNTS, _V2_MOUNTS = ("cpu", "cpu,cpuacct"), (".", "unified")
_QUOTA_FILES = ("cpu.max", "cpu.cfs_quota_us")
_UNLIMITED = (b"max", b"-1")
_TIMES = ((b"throttled_usec ", 1000), (b"throttled_time ", 1))  # in microseconds, in nanoseconds


class _Group:
    def __init__(self, quota: Path) -> None:
        self._quota, self._stat = OpenFile(quota), OpenFile(quota.parent / "cpu.stat")
        self._last_ns = self._total_ns() or 0
        self.is_limited = False

    def refresh(self) -> None:
        text = self._quota.read() or _UNLIMITED[0]
        self.is_limited = not text.startswith(_UNLIMITED)

    def throttled_ns(self) -> int:
        """Summed over the cores."""
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
    """Of the groups that the worker is in, and of those above them: each of their quotas holds."""

    def __init__(self, root: Path, pids: Callable[[], Sequence[int]]) -> None:
        self._root, self._pids = root, pids
        self._groups: dict[Path, _Group] = {}
        self._memberships: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Looks anew: a worker can be moved, and a quota be set while it runs."""
        texts = {read_once(f"{self._root}/proc/{pid}/cgroup").decode() for pid in self._pids()} - {""}
        if texts != self._memberships:
            self._memberships = texts
            self._follow({path for text in texts for path in _quota_files(self._root / "sys/fs/cgroup", text)})
        for group in self._groups.values():
            group.refresh()

    def _follow(self, now: set[Path]) -> None:
        for gone in self._groups.keys() - now:
            self._groups.pop(gone).close()
        for path in now - self._groups.keys():
            self._groups[path] = _Group(path)

    def throttled_ns(self) -> float:
        """Core time since it was last asked. A group without a quota costs nothing: its count stands still."""
        if not self._memberships:
            return math.nan
        return sum(group.throttled_ns() for group in self._groups.values() if group.is_limited)

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self._groups.clear()


def _quota_files(mounts: Path, text: str) -> Iterator[Path]:
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "" or "cpu" in controllers.split(","):
            for mount in _V1_MOUNTS if controllers else _V2_MOUNTS:
                yield from _upwards(mounts / mount, group)


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """Inside a container the group's path may be the host's: then only the mount itself exists."""
    parts = [part for part in group.split("/") if part]
    depths = range(len(parts), -1, -1) if ".." not in parts else (0,)  # outside of this container's view
    for depth in depths:
        folder = mount.joinpath(*parts[:depth])
        yield from (folder / name for name in _QUOTA_FILES if (folder / name).exists())
