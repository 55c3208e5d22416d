"""PyTorch through `torch.accelerator`, the same for CUDA, ROCm, XPU and MPS; comments explain each exception."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, ClassVar

from rigdyno.base.units import NS_PER_MS
from rigdyno.contracts import Framework, Requirement
from rigdyno.schema.record import DeviceMemory
from rigdyno.schema.system import Accelerator

# Messages of errors without a type of their own: the CPU's allocator (Linux, then Windows), and MPS.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


@dataclass(frozen=True, kw_only=True)
class Torch(Framework):
    """PyTorch on CPUs and on every kind of accelerator that it supports"""

    module: ClassVar[str] = "torch"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)

    api: Any = None  # replaces the module torch in tests with simulated devices

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
        versions = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "rocm": torch.version.hip,
            "cudnn": torch.backends.cudnn.version() if self._kind() == "cuda" else None,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }
        return {name: str(version) for name, version in versions.items() if version is not None}

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
        """Return the devices on which memory is allocated. Being initialised isn't enough: asking for a device's name
        initialises all."""
        kind = self._kind()
        if kind is None:
            return ()
        module = self._torch.get_device_module(kind)
        if kind == "mps":  # one device, whose allocator reports allocated memory only
            return (kind,) if module.current_allocated_memory() > 0 else ()
        count = self._torch.accelerator.device_count()
        return [f"{kind}:{index}" for index in range(count) if module.memory_reserved(index) > 0]

    def event(self, device: str) -> Any:
        """Record an event in this device's stream; without one it would be the stream of the current device."""
        event = self._torch.Event(device, enable_timing=True)
        event.record(self._torch.accelerator.current_stream(device))
        return event

    def elapsed_ns(self, first: Any, last: Any) -> int:
        if first is last:  # MPS raises an error then
            return 0
        try:
            elapsed_ms: float = first.elapsed_time(last)
            return round(elapsed_ms * NS_PER_MS)
        except RuntimeError as error:
            # MPS timestamps an event in a listener on the host, one per thread. Of two close events the second may get
            # the earlier time, and then torch raises an error.
            if "was not recorded after" not in str(error):
                raise
            return 0

    def forget_peak_memory(self, device: str) -> None:
        if not _is_cpu(device):
            self._call_memory_function("reset_peak_memory_stats", device)

    def memory(self, device: str) -> DeviceMemory | None:
        if _is_cpu(device):
            return None
        peak = self._call_memory_function("max_memory_allocated", device)
        return DeviceMemory(peak_bytes=peak, limit_bytes=self._accelerator(device).memory_bytes)

    def is_out_of_memory(self, error: BaseException) -> bool:
        message = str(error).lower()
        return isinstance(error, self._torch.OutOfMemoryError) or any(sign in message for sign in _OUT_OF_MEMORY)

    def limit_memory(self, device: str, size: int) -> None:
        if _is_cpu(device):
            return
        total = self._accelerator(device).memory_bytes
        limit = getattr(self._torch.get_device_module(device), "set_per_process_memory_fraction", None)
        if total and limit is not None:
            where = () if device.startswith("mps") else (device,)  # there is only one MPS device
            limit(min(1.0, size / total), *where)

    def _kind(self) -> str | None:
        """Return the kind of accelerator, or None. Without one, torch 2.6 raises an error if asked for it."""
        accelerator = self._torch.accelerator
        return str(accelerator.current_accelerator().type) if accelerator.is_available() else None

    def _accelerator(self, device: str) -> Accelerator:
        kind, module = device.partition(":")[0], self._torch.get_device_module(device)
        if kind == "mps":  # memory is shared with the CPU; this is the limit that Metal recommends
            return Accelerator(kind=kind, name="Apple GPU", memory_bytes=module.recommended_max_memory())
        gpu = module.get_device_properties(device)
        if self._torch.version.hip:
            return Accelerator(kind="rocm", name=gpu.name, memory_bytes=gpu.total_memory, capability=gpu.gcnArchName)
        capability = f"{gpu.major}.{gpu.minor}" if kind == "cuda" else None
        return Accelerator(kind=kind, name=gpu.name, memory_bytes=gpu.total_memory, capability=capability)

    def _call_memory_function(self, name: str, device: str) -> Any:
        """Call a memory function of torch.accelerator (since torch 2.9) or, with the same name, of the device's module.
        Return None on MPS while its allocator doesn't count: its module has no such function, and torch.accelerator
        raises an error."""
        generic = self._torch.accelerator
        function = getattr(generic if hasattr(generic, name) else self._torch.get_device_module(device), name, None)
        try:
            return None if function is None else function(device)
        except RuntimeError:
            return None


def _is_cpu(device: str) -> bool:
    return device.partition(":")[0] == "cpu"
