"""Nothing at all: what a rig draws then is the baseline of what it draws at work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rigdyno.clock import SystemClock
from rigdyno.contracts import ANY_FRAMEWORK, Options, Place, Requirement, Steps
from rigdyno.schema.system import System
from rigdyno.workloads._options import whole_number

START_SECONDS = 1.5


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Sleeps: what the rig draws while it does nothing."""

    unit: ClassVar[str] = "pause"
    framework: ClassVar[str] = ANY_FRAMEWORK
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = ()
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = False
    small: ClassVar[Options] = {"pause_ms": 2}

    pause_ms: int = 50  # of one step

    def __post_init__(self) -> None:
        whole_number("pause_ms", self.pause_ms)

    def refuses(self, system: System, device: str) -> str | None:
        return None

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int | None:
        return None

    def start_seconds(self) -> float:
        return START_SECONDS

    def step_seconds(self, device: str) -> float | None:
        return self.pause_ms / 1000

    def build(self, place: Place) -> Steps:
        seconds = self.pause_ms / 1000
        return Steps(kinds={"step": lambda: SystemClock.sleep(seconds)})
