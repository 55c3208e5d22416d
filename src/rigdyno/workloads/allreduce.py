"""All-reduce over ranks, from small to large: what the link between them carries."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rigdyno.contracts import CannotRun, Options, Place, Requirement, Step, Steps
from rigdyno.schema.system import System
from rigdyno.units import bus_bytes, show_bytes
from rigdyno.workloads._options import whole_number
from rigdyno.workloads._torch import IMPORT_BYTES, IMPORT_SECONDS, waiter

if TYPE_CHECKING:
    import torch

SIZES = tuple(
    factor * 10**power for power, factors in ((3, (4, 16, 64, 256)), (6, (1, 4, 16, 64, 256))) for factor in factors
)
LEAST_SECONDS = 0.02  # for a step: one small exchange is as long as the scheduler likes it to be
MOST_SECONDS = 1.0  # for one: a slow link is known long before it has carried the largest
_FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """Sums tensors of 4 kB to 256 MB over all ranks."""

    unit: ClassVar[str] = "byte"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)
    arrangement: ClassVar[str] = "ddp"
    trains: ClassVar[bool] = False
    small: ClassVar[Options] = {}

    largest: int = SIZES[-1]  # bytes

    def __post_init__(self) -> None:
        whole_number("largest", self.largest, SIZES[0])

    def refuses(self, system: System, device: str) -> str | None:
        return None

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES + 4 * self.largest  # the transport has its own copies

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0

    def step_seconds(self, device: str) -> float | None:
        return 0.5  # a round of all sizes over a link of 1 GB/s

    def build(self, place: Place) -> Steps:
        if place.world_size < 2:
            raise CannotRun("an all-reduce needs at least two ranks; try --ranks 2")
        sums = _Sums(place)
        counts = dict(sums.quick_enough(self.largest))
        sizes = list(counts)
        return Steps(
            kinds={show_bytes(size): sums.step(size, count) for size, count in counts.items()},
            notes=(
                "bus bandwidth: 2 (n - 1) / n times the tensor's size over the time, for n ranks",
                *_left_out(sizes, self.largest),
            ),
            check=sums.canary,
        )


class _Sums:
    def __init__(self, place: Place) -> None:
        self._place, self._wait = place, waiter(place.device)

    def _tensor(self, size: int) -> torch.Tensor:
        """Zeros: sums of sums of anything else would overflow."""
        import torch

        return torch.zeros(size // _FLOAT32_BYTES, device=self._place.device)

    def step(self, size: int, count: int) -> Step:
        """Counts this rank's share of the bus bytes: rates of ranks are added up."""
        from torch.distributed import all_reduce

        ranks, tensor, wait = self._place.world_size, self._tensor(size), self._wait
        share = count * bus_bytes(size, ranks) / ranks

        def reduce() -> float:
            for _ in range(count):
                all_reduce(tensor)
            wait()
            return share

        return reduce

    def quick_enough(self, largest: int) -> Iterator[tuple[int, int]]:
        """Sizes, and how many of each make up a step. All ranks leave out the same: those behind the first that took
        too long."""
        import torch
        from torch.distributed import ReduceOp, all_reduce

        for size in (size for size in SIZES if size <= largest):
            reduce = self.step(size, 1)
            reduce()  # the first one also sets up connections
            began = time.perf_counter()
            reduce()
            slowest = torch.tensor(time.perf_counter() - began, device=self._place.device)
            all_reduce(slowest, ReduceOp.MAX)
            yield size, max(1, math.ceil(LEAST_SECONDS / float(slowest)))
            if 4 * float(slowest) > MOST_SECONDS:  # the next is at least nearly four times as large
                return

    def canary(self) -> bool:
        import torch
        from torch.distributed import all_reduce

        ones = torch.ones(1000, device=self._place.device)
        all_reduce(ones)
        return bool((ones == self._place.world_size).all())


def _left_out(sizes: list[int], largest: int) -> tuple[str, ...]:
    left = [size for size in SIZES if sizes[-1] < size <= largest]
    if not left:
        return ()
    return (f"from {show_bytes(left[0])} on left out: the link would take more than {MOST_SECONDS:g} s for one",)
