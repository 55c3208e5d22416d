"""TensorFlow 2 on CPUs and GPUs. It has no events: `event` waits for the device and reads the clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar

from rigdyno.base.clock import SystemClock
from rigdyno.contracts import Framework, Requirement, card_of
from rigdyno.schema.record import DeviceMemory
from rigdyno.schema.system import Accelerator

_OUT_OF_MEMORY = ("oom when allocating", "failed to allocate memory")  # messages of errors without a type of their own


@dataclass(frozen=True, kw_only=True)
class TensorFlow(Framework):
    """TensorFlow 2 on CPUs and on GPUs"""

    module: ClassVar[str] = "tensorflow"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("tensorflow", "tensorflow"),)

    api: Any = None  # replaces the module tensorflow in tests with simulated devices

    @property
    def _tensorflow(self) -> Any:
        if self.api is not None:
            return self.api
        import tensorflow

        return tensorflow

    def has_no_accelerator(self) -> bool:
        try:
            return sys.platform == "linux" and bool(metadata.version("tensorflow-cpu"))
        except metadata.PackageNotFoundError:
            return False

    def accelerators(self) -> tuple[Accelerator, ...]:
        return tuple(map(self._accelerator, self._tensorflow.config.list_physical_devices("GPU")))

    def versions(self) -> dict[str, str]:
        built = self._tensorflow.sysconfig.get_build_info()
        versions = {
            "tensorflow": self._tensorflow.__version__,
            "cuda": built.get("cuda_version"),
            "cudnn": built.get("cudnn_version"),
        }
        return {name: str(version) for name, version in versions.items() if version}

    def threads(self) -> int | None:
        """Return the number of threads, or None for TensorFlow's default, which it doesn't report."""
        return self._tensorflow.config.threading.get_intra_op_parallelism_threads() or None

    def prepare(self, seed: int, threads: int | None) -> None:
        if threads is not None:
            self._tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
            self._tensorflow.config.threading.set_inter_op_parallelism_threads(threads)
        self._tensorflow.random.set_seed(seed)

    def waiter(self, device: str) -> Callable[[], None] | None:
        if _is_cpu(device):
            return None
        wait: Callable[[], None] = self._tensorflow.test.experimental.sync_devices
        return wait

    def in_use(self) -> Sequence[str]:
        """Return the devices on which memory is allocated. Looking for them initialises all devices."""
        if not self._tensorflow.config.list_physical_devices("GPU"):
            return ()
        count = len(self._tensorflow.config.list_logical_devices("GPU"))
        return [f"{self._kind()}:{index}" for index in range(count) if self._memory_info(f"GPU:{index}")["current"] > 0]

    def event(self, device: str) -> Any:
        wait = self.waiter(device)
        if wait is not None:
            wait()
        return SystemClock.now_ns()

    def elapsed_ns(self, first: Any, last: Any) -> int:
        return int(last - first)

    def forget_peak_memory(self, device: str) -> None:
        if not _is_cpu(device):
            self._tensorflow.config.experimental.reset_memory_stats(self._name(device))

    def memory(self, device: str) -> DeviceMemory | None:
        """Return the peak memory; TensorFlow doesn't report the device's total memory."""
        if _is_cpu(device):
            return None
        return DeviceMemory(peak_bytes=self._memory_info(self._name(device))["peak"])

    def is_out_of_memory(self, error: BaseException) -> bool:
        message = str(error).lower()
        exhausted = isinstance(error, self._tensorflow.errors.ResourceExhaustedError)
        return exhausted or any(sign in message for sign in _OUT_OF_MEMORY)

    def limit_memory(self, device: str, size: int) -> None:
        gpus = [] if _is_cpu(device) else self._tensorflow.config.list_physical_devices("GPU")
        for gpu in gpus[card_of(device) or 0 :][:1]:
            logical = self._tensorflow.config.LogicalDeviceConfiguration(memory_limit=size // 2**20)
            self._tensorflow.config.set_logical_device_configuration(gpu, [logical])

    def _name(self, device: str) -> str:
        """Return TensorFlow's name of the device. A rank that sees only its own GPU knows it as GPU 0."""
        number = card_of(device) or 0
        return f"GPU:{number if number < len(self._tensorflow.config.list_logical_devices('GPU')) else 0}"

    def _memory_info(self, name: str) -> dict[str, int]:
        info: dict[str, int] = self._tensorflow.config.experimental.get_memory_info(name)
        return info

    def _kind(self) -> str:
        """Return the kind of device as in `--device`."""
        return "mps" if sys.platform == "darwin" else "cuda"

    def _accelerator(self, device: Any) -> Accelerator:
        details = self._tensorflow.config.experimental.get_device_details(device)
        is_rocm = self._tensorflow.sysconfig.get_build_info().get("is_rocm_build", False)
        capability = details.get("compute_capability")
        return Accelerator(
            kind="rocm" if is_rocm else self._kind(),
            name=details.get("device_name", device.name),
            capability=".".join(map(str, capability)) if capability else None,
        )


def _is_cpu(device: str) -> bool:
    return card_of(device) is None
