"""Measures the cost of launching the smallest operation: a lower bound on the time of every small layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rigdyno.contracts import Options, Step, Steps, WorkerPlace, Workload
from rigdyno.contracts.options import Count
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import IMPORT_BYTES, IMPORT_SECONDS, is_host, waiter

if TYPE_CHECKING:
    import torch

_LAUNCHES_PER_ROUND_TRIP_STEP = 100  # each takes up to 0.2 ms


@dataclass(frozen=True, kw_only=True)
class LaunchLatency(Workload):
    """Launches tiny operations: what asking for one costs."""

    unit: ClassVar[str] = "launch"
    small: ClassVar[Options] = {"launches": 10}

    launches: Count = 1000  # in one step

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES

    def start_seconds(self) -> float:
        return IMPORT_SECONDS

    def step_seconds(self, device: str) -> float | None:
        return 0.01

    def build(self, place: WorkerPlace) -> Steps:
        import torch

        launches = _Launches(torch.zeros(1, dtype=torch.int64, device=place.device), waiter(place.device))
        if is_host(place.device):
            return Steps(kinds={"dispatch": launches.enqueue(self.launches)}, check=launches.is_correct)
        return Steps(
            kinds={
                "enqueue": launches.enqueue(self.launches),
                "round_trip": launches.round_trip(min(self.launches, _LAUNCHES_PER_ROUND_TRIP_STEP)),
            },
            notes=(f"enqueue waits for the device once in {self.launches} launches, round_trip after each",),
            check=launches.is_correct,
        )


class _Launches:
    """Adds 1 to a single number on the device, and counts the launches."""

    def __init__(self, counter: torch.Tensor, wait: Callable[[], None]) -> None:
        self._counter, self._wait = counter, wait
        self._launched = 0

    def is_correct(self) -> bool:
        return int(self._counter.item()) == self._launched

    def enqueue(self, count: int) -> Step:
        add, wait, turns = self._counter.add_, self._wait, range(count)

        def step() -> float:
            for _ in turns:
                add(1)
            wait()
            self._launched += count
            return count

        return step

    def round_trip(self, count: int) -> Step:
        add, wait, turns = self._counter.add_, self._wait, range(count)

        def step() -> float:
            for _ in turns:
                add(1)
                wait()
            self._launched += count
            return count

        return step
