"""Everything that Rigdyno needs for another framework: its port, and workloads to measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rigdyno.contracts import Framework, Requirement, Steps, Training, WorkerPlace, Workload
from rigdyno.schema.record import DeviceMemory
from rigdyno.schema.system import Accelerator


@dataclass(frozen=True, kw_only=True)
class MadeUp(Framework):
    """A framework of a test"""

    module: ClassVar[str] = "made_up"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("made_up"),)

    def accelerators(self) -> tuple[Accelerator, ...]:
        import made_up

        return (Accelerator(kind="dream", name="A dream of a device", memory_bytes=made_up.DEVICE_BYTES),)

    def versions(self) -> dict[str, str]:
        import made_up

        return {"made_up": made_up.VERSION}

    def threads(self) -> int | None:
        import made_up

        return made_up.threads

    def prepare(self, seed: int, threads: int | None) -> None:
        import made_up

        made_up.seed, made_up.threads = seed, threads or 1

    def waiter(self, device: str) -> Callable[[], None] | None:
        import made_up

        return None if device == "cpu" else made_up.wait

    def in_use(self) -> Sequence[str]:
        import made_up

        return ["dream"] if made_up.peak else []

    def event(self, device: str) -> Any:
        """Return the time after waiting, as this framework has no events. This is correct but stalls the device."""
        import made_up

        made_up.wait()
        return time.monotonic_ns()

    def elapsed_ns(self, first: Any, last: Any) -> int:
        return int(last - first)

    def forget_peak_memory(self, device: str) -> None:
        import made_up

        made_up.peak = made_up.allocated

    def memory(self, device: str) -> DeviceMemory | None:
        import made_up

        return None if device == "cpu" else DeviceMemory(peak_bytes=made_up.peak, limit_bytes=made_up.DEVICE_BYTES)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return str(error) == "the dream is full"

    def limit_memory(self, device: str, size: int) -> None:
        import made_up

        made_up.limit = size


@dataclass(frozen=True, kw_only=True)
class MadeUpSteps(Workload):
    """Keeps a made-up device busy"""

    unit: ClassVar[str] = "dream"
    framework: ClassVar[str] = "made_up"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("made_up"),)

    milliseconds: int = 15
    fills_up: bool = False

    def start_seconds(self) -> float:
        return 0.5

    def build(self, place: WorkerPlace) -> Steps:
        import made_up

        made_up.allocate(4000)
        made_up.allocate(-3000)

        def step() -> None:
            while made_up.threads == 2 and Path("hold").exists():
                time.sleep(0.05)  # until a test has found this process at work
            if self.fills_up:
                raise RuntimeError("the dream is full")
            made_up.allocate(500)
            made_up.launch(self.milliseconds / 1000)
            made_up.allocate(-500)

        return Steps(kinds={"step": step}, settled={"seed": made_up.seed or 0})


@dataclass(frozen=True, kw_only=True)
class MadeUpBatches(MadeUpSteps):
    """Fills a made-up device"""

    batch: int = 1

    def build(self, place: WorkerPlace) -> Steps:
        import made_up

        made_up.allocate(1000)

        def step() -> None:
            made_up.allocate(20 * self.batch)
            made_up.launch(0.001)
            made_up.allocate(-20 * self.batch)

        return Steps(kinds={"step": step}, items_per_step=self.batch)


@dataclass(frozen=True, kw_only=True)
class MadeUpTraining(MadeUpSteps):
    """Would train, if there were an update"""

    trains: ClassVar[bool] = True

    def build(self, place: WorkerPlace) -> Training:  # type: ignore[override]
        raise AssertionError("it is refused before")
