"""How much cache and free memory a device has, as far as it can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rigdyno.schema.system import System
from rigdyno.workloads._torch import is_host

_CPUS = Path("/sys/devices/system/cpu")
_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_SUFFIX = {"K": 2**10, "M": 2**20, "G": 2**30}


def cache_bytes(device: str) -> int | None:
    """All of the last-level cache, or None where it can't be read."""
    if is_host(device):
        return host_cache_bytes(_CPUS)
    properties = getattr(_torch_module(device), "get_device_properties", None)
    return getattr(properties(device), "L2_cache_size", None) if properties else None


def available_bytes(device: str) -> int:
    """Free memory of the device; of the host where the device shares the host's or doesn't tell."""
    report = None if is_host(device) else getattr(_torch_module(device), "mem_get_info", None)
    return int(report(device)[0]) if report else _host_available_bytes()


def system_cache_bytes(system: System) -> int | None:
    """The same as `cache_bytes("cpu")`, from what is known while planning."""
    data = [cache for cache in system.cpu.caches if cache.kind != "instruction"]
    if not data:
        return None
    last = max(data, key=lambda cache: cache.level)
    return last.size_bytes * -(-system.cpu.logical_cores // last.shared_by)


def host_cache_bytes(cpus: Path) -> int | None:
    """A processor with several dies has several last-level caches, and threads on all of them fill all of them."""
    instances: dict[tuple[int, str], int] = {}
    for folder in cpus.glob("cpu[0-9]*/cache/index*"):
        try:
            level, size, shared = (_text(folder / name) for name in ("level", "size", "shared_cpu_list"))
            instances[int(level), shared] = int(size[:-1]) * _SUFFIX[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    last = max((level for level, _ in instances), default=0)
    return sum(size for (level, _), size in instances.items() if level == last) or None


def _host_available_bytes() -> int:
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in _CGROUP_FILES:
        try:
            free = min(free, int(_text(Path(limit))) - int(_text(Path(used))))
        except (OSError, ValueError):  # no such control group, or "max": no limit
            continue
    return max(free, 0)


def _torch_module(device: str) -> Any:
    import torch

    return getattr(torch, device.partition(":")[0], None)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
