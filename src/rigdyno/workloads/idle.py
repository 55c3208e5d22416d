"""Does nothing: the power that the machine draws then is the baseline of its power at work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rigdyno.base.clock import SystemClock
from rigdyno.contracts import ANY_FRAMEWORK, Options, Requirement, Steps, WorkerPlace, Workload
from rigdyno.contracts.options import Count

START_SECONDS = 1.5


@dataclass(frozen=True, kw_only=True)
class Idle(Workload):
    """Sleeps, to measure the power of the idle machine."""

    unit: ClassVar[str] = "pause"
    framework: ClassVar[str] = ANY_FRAMEWORK
    requires: ClassVar[tuple[Requirement, ...]] = ()
    small: ClassVar[Options] = {"pause_ms": 2}

    pause_ms: Count = 50  # length of one step

    def start_seconds(self) -> float:
        return START_SECONDS

    def step_seconds(self, device: str) -> float | None:
        return self.pause_ms / 1000

    def build(self, place: WorkerPlace) -> Steps:
        seconds = self.pause_ms / 1000
        return Steps(kinds={"step": lambda: SystemClock.sleep(seconds)})
