"""What it costs to ask for the smallest operation: the floor under the time of every small layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rigdyno.contracts import Options, Place, Requirement, Step, Steps
from rigdyno.schema.system import System
from rigdyno.workloads._options import whole_number
from rigdyno.workloads._torch import IMPORT_BYTES, IMPORT_SECONDS, is_host, waiter

if TYPE_CHECKING:
    import torch

_LAUNCHES_PER_ROUND_TRIP_STEP = 100  # one takes up to 0.2 ms


@dataclass(frozen=True, kw_only=True)
class LaunchLatency:
    """Launches tiny operations: what asking for one costs."""

    unit: ClassVar[str] = "launch"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = False
    small: ClassVar[Options] = {"launches": 10}

    launches: int = 1000  # in one step

    def __post_init__(self) -> None:
        whole_number("launches", self.launches)

    def refuses(self, system: System, device: str) -> str | None:
        return None

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES

    def start_seconds(self) -> float:
        return IMPORT_SECONDS

    def step_seconds(self, device: str) -> float | None:
        return 0.01

    def build(self, place: Place) -> Steps:
        import torch

        launches = _Launches(torch.zeros(1, dtype=torch.int64, device=place.device), waiter(place.device))
        if is_host(place.device):
            return Steps(kinds={"dispatch": launches.enqueue(self.launches)}, check=launches.canary)
        return Steps(
            kinds={
                "enqueue": launches.enqueue(self.launches),
                "round_trip": launches.round_trip(min(self.launches, _LAUNCHES_PER_ROUND_TRIP_STEP)),
            },
            notes=(f"enqueue waits for the device once in {self.launches} launches, round_trip after each",),
            check=launches.canary,
        )


class _Launches:
    """Adds 1 to a single number, and keeps count of how often."""

    def __init__(self, counter: torch.Tensor, wait: Callable[[], None]) -> None:
        self._counter, self._wait = counter, wait
        self._asked = 0

    def canary(self) -> bool:
        return int(self._counter.item()) == self._asked

    def enqueue(self, count: int) -> Step:
        add, wait, turns = self._counter.add_, self._wait, range(count)

        def step() -> float:
            for _ in turns:
                add(1)
            wait()
            self._asked += count
            return count

        return step

    def round_trip(self, count: int) -> Step:
        add, wait, turns = self._counter.add_, self._wait, range(count)

        def step() -> float:
            for _ in turns:
                add(1)
                wait()
            self._asked += count
            return count

        return step
