"""Measures how fast memory can be read and written: the limit that other figures are compared with.

Which kind of access is fastest differs between machines, so three kinds take turns over the same working set. Bytes
read and written are counted; the cache line that is fetched before it is overwritten isn't.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rigdyno.base.errors import BadValue
from rigdyno.base.units import bytes_from, show_bytes
from rigdyno.contracts import Options, Step, Steps, WorkerPlace, Workload
from rigdyno.schema.system import System
from rigdyno.workloads.common.options import parse_size
from rigdyno.workloads.common.torch import IMPORT_BYTES, IMPORT_SECONDS, is_filled_with, is_host, waiter

_CPUS = Path("/sys/devices/system/cpu")

_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)

_SUFFIX = {"K": 2**10, "M": 2**20, "G": 2**30}

_LEAST_HOST_BYTES = 256_000_000

_LEAST_DEVICE_BYTES = 1_000_000_000  # takes a fast accelerator a few milliseconds

_TIMES_CACHE = 4

_SMALLEST_BYTES = 1_000_000

_LINE_BYTES = 64

_ONES_END = 2**24  # adding 1 to this float32 doesn't change it


@dataclass(frozen=True, kw_only=True)
class MemoryBandwidth(Workload):
    """The memory's limit: in-place add, copy and read."""

    unit: ClassVar[str] = "byte"
    small: ClassVar[Options] = {"working_set": "1MB"}

    working_set: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.working_set != "auto" and parse_size("working_set", self.working_set) < _SMALLEST_BYTES:
            least = show_bytes(_SMALLEST_BYTES)
            raise BadValue(f"working_set must be at least {least}, not '{self.working_set}'", key="set.working_set")

    def memory_bytes(self, system: System) -> int:
        limit = system.limits.memory_bytes or system.memory_bytes
        return IMPORT_BYTES + self._size(_LEAST_HOST_BYTES, system_cache_bytes(system), limit)

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 1.0

    def step_seconds(self, device: str) -> float | None:
        return 0.15 if is_host(device) else 0.02  # all three kinds together

    def build(self, place: WorkerPlace) -> Steps:
        least = _LEAST_HOST_BYTES if is_host(place.device) else _LEAST_DEVICE_BYTES
        cache = cache_bytes(place.device)
        size = self._size(least, cache, available_bytes(place.device))
        moves = _Moves(size, place.device, place.threads)
        return Steps(
            kinds=moves.kinds(),
            settled={"working_set_bytes": moves.size_bytes},
            notes=_notes(moves.size_bytes, cache),
            check=moves.is_correct,
        )

    def _size(self, least: int, cache: int | None, available: int) -> int:
        if self.working_set != "auto":
            return bytes_from(self.working_set)
        return min(max(_TIMES_CACHE * (cache or 0), least), available // 4)


def _notes(size: int, cache: int | None) -> tuple[str, ...]:
    counted = f"bytes read and bytes written are counted, over a working set of {show_bytes(size)}"
    if cache is None:
        return counted, "the size of the last-level cache can't be read here: the working set may fit into it"
    if size < _TIMES_CACHE * cache:
        return counted, f"less than {_TIMES_CACHE} times the last-level cache of {show_bytes(cache)}: partly cached"
    return (counted,)


class _Moves:
    """Steps over one buffer: each kind goes over the whole buffer, the copy from its first half to its second."""

    def __init__(self, size_bytes: int, device: str, threads: int) -> None:
        import torch

        half = size_bytes // 2 // _LINE_BYTES * _LINE_BYTES
        self.size_bytes = 2 * half
        self._values = torch.ones(self.size_bytes // 4, dtype=torch.float32, device=device)
        self._first, self._second = self._values.chunk(2)
        self._wait = waiter(device)
        self._memmove = None
        if is_host(device):
            self._memmove = _threaded_memmove(self._second.data_ptr(), self._first.data_ptr(), half, threads)
        self._added = 0
        self._last_read: tuple[torch.Tensor, float] | None = None  # sum as read, and as expected

    def kinds(self) -> dict[str, Step]:
        copy = "memmove" if self._memmove else "copy"
        return {"in_place_add": self._in_place_add, copy: self._copy, "read": self._read}

    def is_correct(self) -> bool:
        correct = is_filled_with(self._values, self._expected_value())
        if self._last_read is None:
            return correct
        total, expected = self._last_read
        return correct and abs(total.item() / expected - 1) < 1e-3

    def _expected_value(self) -> float:
        return float(min(1 + self._added, _ONES_END))

    def _in_place_add(self) -> float:
        self._values.add_(1.0)
        self._wait()
        self._added += 1
        return 2.0 * self.size_bytes

    def _read(self) -> float:
        total = self._values.sum()
        self._wait()
        self._last_read = total, self._expected_value() * self._values.numel()
        return float(self.size_bytes)

    def _copy(self) -> float:
        if self._memmove:
            self._memmove()
        else:
            self._second.copy_(self._first)
            self._wait()
        return float(self.size_bytes)


def _threaded_memmove(target: int, source: int, size: int, threads: int) -> Callable[[], None]:
    """Return a function that copies with several threads. Calls through ctypes release the GIL, so threads run in
    parallel."""
    slices = _slices(size, threads)
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads)  # starts its threads on first use

    def move(part: tuple[int, int]) -> None:
        begin, length = part
        ctypes.memmove(target + begin, source + begin, length)

    def move_all() -> None:
        for _ in pool.map(move, slices):
            pass

    return move_all


def _slices(size: int, count: int) -> list[tuple[int, int]]:
    """Split `size` at cache lines into at most `count` parts, each (begin, length)."""
    lines = -(-size // _LINE_BYTES)
    each = -(-lines // count) * _LINE_BYTES
    return [(begin, min(each, size - begin)) for begin in range(0, size, each)]


def cache_bytes(device: str) -> int | None:
    """Return the size of all last-level caches, or None if it can't be read."""
    if is_host(device):
        return host_cache_bytes(_CPUS)
    properties = getattr(_torch_module(device), "get_device_properties", None)
    return getattr(properties(device), "L2_cache_size", None) if properties else None


def available_bytes(device: str) -> int:
    """Return the free memory of the device, or of the host if the device shares it or doesn't report its own."""
    report = None if is_host(device) else getattr(_torch_module(device), "mem_get_info", None)
    return int(report(device)[0]) if report else _host_available_bytes()


def system_cache_bytes(system: System) -> int | None:
    """Return the same as `cache_bytes("cpu")`, from what is known while planning."""
    data = [cache for cache in system.cpu.caches if cache.kind != "instruction"]
    if not data:
        return None
    last = max(data, key=lambda cache: cache.level)
    return last.size_bytes * -(-system.cpu.logical_cores // last.shared_by)


def host_cache_bytes(cpus: Path) -> int | None:
    """Return the sum of all last-level caches: a processor with several dies has several, and threads on all dies
    fill them all."""
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
        except (OSError, ValueError):  # no such control group, or "max", which means no limit
            continue
    return max(free, 0)


def _torch_module(device: str) -> Any:
    import torch

    return getattr(torch, device.partition(":")[0], None)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
