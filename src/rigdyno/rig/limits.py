"""What a container or cgroup leaves of the machine, for both versions of cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rigdyno.processes import group_folders
from rigdyno.rig._files import ROOT, listed, read_int, read_text
from rigdyno.schema.system import Limits

# cgroup v1 writes 'no limit' as the largest page-aligned 64-bit number.
UNLIMITED_BYTES = 2**60


def describe_limits(root: Path = ROOT) -> Limits:
    """The tightest limit on the way from this process's group up to the root: each of them holds."""
    quotas = [*_quotas_v2(root), *_quotas_v1(root)]
    sizes = [*_memory_v2(root), *_memory_v1(root)]
    return Limits(cpu_quota=min(quotas, default=None), memory_bytes=min(sizes, default=None))


def usable_cores(logical_cores: int, quota: float | None, root: Path = ROOT) -> int:
    """Rounded down: a thread beyond the quota makes all threads wait for the next period."""
    allowed = _allowed_cores(root) or logical_cores
    return min(allowed, max(1, int(quota))) if quota is not None else allowed


def _allowed_cores(root: Path) -> int | None:
    for line in (read_text(root / "proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return len(listed(line.partition(":")[2])) or None
    return None


def _quotas_v2(root: Path) -> Iterator[float]:
    for folder in group_folders("", (".", "unified"), root):
        quota, _, period = (read_text(folder / "cpu.max") or "max").partition(" ")
        if quota.isdigit() and period.isdigit():
            yield int(quota) / int(period)


def _memory_v2(root: Path) -> Iterator[int]:
    for folder in group_folders("", (".", "unified"), root):
        size = read_int(folder / "memory.max")
        if size is not None:
            yield size


def _quotas_v1(root: Path) -> Iterator[float]:
    for folder in group_folders("cpu", ("cpu", "cpu,cpuacct"), root):
        quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            yield quota / period


def _memory_v1(root: Path) -> Iterator[int]:
    for folder in group_folders("memory", ("memory",), root):
        size = read_int(folder / "memory.limit_in_bytes")
        if size is not None and size < UNLIMITED_BYTES:
            yield size
