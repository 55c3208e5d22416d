"""Measures how fast data is copied between the host's memory and a device's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rigdyno.base.errors import BadValue
from rigdyno.base.units import bytes_from
from rigdyno.contracts import Options, Step, Steps, WorkerPlace, Workload
from rigdyno.schema.system import System
from rigdyno.workloads.common.options import parse_size
from rigdyno.workloads.common.torch import IMPORT_BYTES, IMPORT_SECONDS, is_filled_with, is_host, waiter

if TYPE_CHECKING:
    import torch

_PATTERN = 137


@dataclass(frozen=True, kw_only=True)
class HostDeviceCopy(Workload):
    """Copies to and from a device, pageable and pinned."""

    unit: ClassVar[str] = "byte"
    small: ClassVar[Options] = {"buffer": "4kB"}

    buffer: str = "256MB"

    def __post_init__(self) -> None:
        super().__post_init__()
        if parse_size("buffer", self.buffer) < 1:
            raise BadValue(f"buffer must be at least one byte, not '{self.buffer}'", key="set.buffer")

    def refuses(self, system: System, device: str) -> str | None:
        return "needs an accelerator: this device is the host itself" if is_host(device) else None

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES + 4 * bytes_from(self.buffer)

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0  # the device's context, and pinning memory

    def step_seconds(self, device: str) -> float | None:
        return 0.1

    def build(self, place: WorkerPlace) -> Steps:
        import torch

        size = bytes_from(self.buffer)
        copies = _Copies(torch.zeros(size, dtype=torch.uint8, device=place.device), waiter(place.device))
        copies.add("pageable", *_host_buffers(size, pinned=False))
        notes = ["bytes are counted once per copy"]
        try:
            copies.add("pinned", *_host_buffers(size, pinned=True))
        except RuntimeError as error:
            notes.append(f"no pinned memory here: {str(error).splitlines()[0]}")
        return Steps(kinds=copies.kinds, items_per_step=float(size), notes=notes, check=copies.is_correct)


def _host_buffers(size: int, *, pinned: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the buffer that is sent and the one that receives the data back."""
    import torch

    sent = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(_PATTERN)
    return sent, torch.zeros(size, dtype=torch.uint8).pin_memory() if pinned else torch.zeros(size, dtype=torch.uint8)


class _Copies:
    def __init__(self, on_device: torch.Tensor, wait: Callable[[], None]) -> None:
        self.kinds: dict[str, Step] = {}
        self._on_device, self._wait = on_device, wait
        self._returned: dict[str, torch.Tensor] = {}

    def add(self, memory: str, sent: torch.Tensor, returned: torch.Tensor) -> None:
        self.kinds[f"{memory}_to_device"] = self._make_step(self._on_device, sent)
        self.kinds[f"device_to_{memory}"] = self._make_step(returned, self._on_device)
        self._returned[memory] = returned

    def is_correct(self) -> bool:
        return all(is_filled_with(buffer, _PATTERN) for buffer in (self._on_device, *self._returned.values()))

    def _make_step(self, target: torch.Tensor, source: torch.Tensor) -> Step:
        wait = self._wait

        def copy() -> None:
            target.copy_(source, non_blocking=True)
            wait()

        return copy
