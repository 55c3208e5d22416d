"""How fast memory can be read and written here: the limit that other figures are held against.

Which kind of access is quickest differs from machine to machine, so three take turns over the same working set. Bytes
read and written are counted; the line that a cache fetches before it is overwritten isn't.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.contracts import Options, Place, Requirement, Step, Steps
from rigdyno.errors import BadValue
from rigdyno.schema.system import System
from rigdyno.units import bytes_from, show_bytes
from rigdyno.workloads._options import size_bytes
from rigdyno.workloads._room import available_bytes, cache_bytes, system_cache_bytes
from rigdyno.workloads._torch import IMPORT_BYTES, IMPORT_SECONDS, is_everywhere, is_host, waiter

_LEAST_HOST_BYTES = 256_000_000
_LEAST_DEVICE_BYTES = 1_000_000_000  # a few milliseconds for a fast accelerator
_TIMES_CACHE = 4
_SMALLEST_BYTES = 1_000_000
_LINE_BYTES = 64
_ONES_END = 2**24  # adding 1 to this float32 changes nothing


@dataclass(frozen=True, kw_only=True)
class MemoryBandwidth:
    """The memory's limit: in-place add, copy and read."""

    unit: ClassVar[str] = "byte"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = False
    small: ClassVar[Options] = {"working_set": "1MB"}

    working_set: str = "auto"

    def __post_init__(self) -> None:
        if self.working_set != "auto" and size_bytes("working_set", self.working_set) < _SMALLEST_BYTES:
            least = show_bytes(_SMALLEST_BYTES)
            raise BadValue(f"working_set must be at least {least}, not '{self.working_set}'", key="set.working_set")

    def refuses(self, system: System, device: str) -> str | None:
        return None

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int:
        limit = system.limits.memory_bytes or system.memory_bytes
        return IMPORT_BYTES + self._size(_LEAST_HOST_BYTES, system_cache_bytes(system), limit)

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 1.0

    def step_seconds(self, device: str) -> float | None:
        return 0.15 if is_host(device) else 0.02  # a round of three kinds

    def build(self, place: Place) -> Steps:
        least = _LEAST_HOST_BYTES if is_host(place.device) else _LEAST_DEVICE_BYTES
        cache = cache_bytes(place.device)
        size = self._size(least, cache, available_bytes(place.device))
        moves = _Moves(size, place.device, place.threads)
        return Steps(
            kinds=moves.kinds(),
            settled={"working_set_bytes": moves.size_bytes},
            notes=_notes(moves.size_bytes, cache),
            check=moves.canary,
        )

    def _size(self, least: int, cache: int | None, available: int) -> int:
        if self.working_set != "auto":
            return bytes_from(self.working_set)
        return min(max(_TIMES_CACHE * (cache or 0), least), available // 4)


def _notes(size: int, cache: int | None) -> tuple[str, ...]:
    counted = f"bytes read and bytes written are counted, over a working set of {show_bytes(size)}"
    if cache is None:
        return counted, "the size of the last-level cache can't be read here: the working set may lie within it"
    if size < _TIMES_CACHE * cache:
        return counted, f"less than {_TIMES_CACHE} times the last-level cache of {show_bytes(cache)}: partly cached"
    return (counted,)


class _Moves:
    """One buffer; each kind goes over the whole of it, the copy from its first half to its second."""

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
        self._last_read: tuple[torch.Tensor, float] | None = None

    def kinds(self) -> dict[str, Step]:
        copy = "memmove" if self._memmove else "copy"
        return {"in_place_add": self._in_place_add, copy: self._copy, "read": self._read}

    def canary(self) -> bool:
        right = is_everywhere(self._values, self._value())
        if self._last_read is None:
            return right
        total, expected = self._last_read
        return right and abs(total.item() / expected - 1) < 1e-3

    def _value(self) -> float:
        return float(min(1 + self._added, _ONES_END))

    def _in_place_add(self) -> float:
        self._values.add_(1.0)
        self._wait()
        self._added += 1
        return 2.0 * self.size_bytes

    def _read(self) -> float:
        total = self._values.sum()
        self._wait()
        self._last_read = total, self._value() * self._values.numel()
        return float(self.size_bytes)

    def _copy(self) -> float:
        if self._memmove:
            self._memmove()
        else:
            self._second.copy_(self._first)
            self._wait()
        return float(self.size_bytes)


def _threaded_memmove(target: int, source: int, size: int, threads: int) -> Callable[[], None]:
    """Calls through ctypes let go of the interpreter's lock, so that plain threads copy at the same time."""
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
    """(begin, length) of at most `count` parts that cover `size`, on boundaries of cache lines."""
    lines = -(-size // _LINE_BYTES)
    each = -(-lines // count) * _LINE_BYTES
    return [(begin, min(each, size - begin)) for begin in range(0, size, each)]
