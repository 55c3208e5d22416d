"""PyTorch, by `torch.accelerator`: one way for CUDA, ROCm, XPU and MPS, and a reason where one needs another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, ClassVar

from rigdyno.contracts import Requirement
from rigdyno.schema.record import DeviceMemory
from rigdyno.schema.system import Accelerator
from rigdyno.units import NS_PER_MS

# Of errors that have no type of their own: the CPU's allocator (Linux, then Windows), and MPS.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


@dataclass(frozen=True, kw_only=True)
class Torch:
    """PyTorch on CPUs and on every kind of accelerator that it knows"""

    module: ClassVar[str] = "torch"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)

    api: Any = None  # in place of torch itself: a device that isn't there

    @property
    def _torch(self) -> Any:
        if self.api is not None:
            return self.api
        import torch

        return torch

    def has_no_accelerator(self) -> bool:
        try:
            return sys.platform == "linux" and metadata.version("torch").endswith("+cpu")
        except metadata.PackageNotFoundError:
            return False

    def accelerators(self) -> tuple[Accelerator, ...]:
        kind = self._kind()
        if kind is None:
            return ()
        count = self._torch.accelerator.device_count()
        return tuple(self._accelerator(f"{kind}:{index}") for index in range(count))

    def versions(self) -> dict[str, str]:
        torch = self._torch
        found = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "rocm": torch.version.hip,
            "cudnn": torch.backends.cudnn.version() if self._kind() == "cuda" else None,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }
        return {name: str(version) for name, version in found.items() if version is not None}

    def threads(self) -> int | None:
        count: int = self._torch.get_num_threads()
        return count

    def prepare(self, seed: int, threads: int | None) -> None:
        if threads is not None:
            self._torch.set_num_threads(threads)
        self._torch.manual_seed(seed)

    def waiter(self, device: str) -> Callable[[], None] | None:
        return None if _is_cpu(device) else partial(self._torch.accelerator.synchronize, device)

    def in_use(self) -> Sequence[str]:
        """Those that hold memory: asking for a card's name is enough to initialise all of them."""
        kind = self._kind()
        if kind is None:
            return ()
        module = self._torch.get_device_module(kind)
        if kind == "mps":  # one device, whose allocator tells of what is allocated alone
            return (kind,) if module.current_allocated_memory() > 0 else ()
        count = self._torch.accelerator.device_count()
        return [f"{kind}:{index}" for index in range(count) if module.memory_reserved(index) > 0]

    def event(self, device: str) -> Any:
        """In the stream of this device: without one it would be the stream of whichever device is the current one."""
        event = self._torch.Event(device, enable_timing=True)
        event.record(self._torch.accelerator.current_stream(device))
        return event

    def elapsed_ns(self, first: Any, last: Any) -> int:
        if first is last:  # which MPS refuses
            return 0
        try:
            elapsed_ms: float = first.elapsed_time(last)
            return round(elapsed_ms * NS_PER_MS)
        except RuntimeError as error:
            # MPS stamps an event in a listener on the host, one a thread: of two that are close, the second may come
            # out as the earlier one, and then there is an error in place of a time.
            if "was not recorded after" not in str(error):
                raise
            return 0

    def forget_peak_memory(self, device: str) -> None:
        if not _is_cpu(device):
            self._asked_for_memory("reset_peak_memory_stats", device)

    def memory(self, device: str) -> DeviceMemory | None:
        if _is_cpu(device):
            return None
        peak = self._asked_for_memory("max_memory_allocated", device)
        return DeviceMemory(peak_bytes=peak, limit_bytes=self._accelerator(device).memory_bytes)

    def is_out_of_memory(self, error: BaseException) -> bool:
        words = str(error).lower()
        return isinstance(error, self._torch.OutOfMemoryError) or any(sign in words for sign in _OUT_OF_MEMORY)

    def limit_memory(self, device: str, size: int) -> None:
        if _is_cpu(device):
            return
        has = self._accelerator(device).memory_bytes
        limit = getattr(self._torch.get_device_module(device), "set_per_process_memory_fraction", None)
        if has and limit is not None:
            where = () if device.startswith("mps") else (device,)  # of which there is one
            limit(min(1.0, size / has), *where)

    def _kind(self) -> str | None:
        """Of the accelerator; torch 2.6 raises an error where there is none to be asked for."""
        accelerator = self._torch.accelerator
        return str(accelerator.current_accelerator().type) if accelerator.is_available() else None

    def _accelerator(self, device: str) -> Accelerator:
        kind, module = device.partition(":")[0], self._torch.get_device_module(device)
        if kind == "mps":  # memory is shared with the CPU; this is what Metal advises to stay below
            return Accelerator(kind=kind, name="Apple GPU", memory_bytes=module.recommended_max_memory())
        card = module.get_device_properties(device)
        if self._torch.version.hip:
            return Accelerator(kind="rocm", name=card.name, memory_bytes=card.total_memory, capability=card.gcnArchName)
        capability = f"{card.major}.{card.minor}" if kind == "cuda" else None
        return Accelerator(kind=kind, name=card.name, memory_bytes=card.total_memory, capability=capability)

    def _asked_for_memory(self, function: str, device: str) -> Any:
        """From torch 2.9 on by torch.accelerator, and before by the device's own module, under the same names. None of
        MPS until its allocator counts: the module has no such function, and torch.accelerator raises an error."""
        generic = self._torch.accelerator
        ask = getattr(generic if hasattr(generic, function) else self._torch.get_device_module(device), function, None)
        try:
            return None if ask is None else ask(device)
        except RuntimeError:
            return None


def _is_cpu(device: str) -> bool:
    return device.partition(":")[0] == "cpu"
