"""Measures all-reduce over ranks, from small to large tensors: the bandwidth of the link between them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from rigdyno.base.units import bus_bytes, show_bytes
from rigdyno.contracts import CannotRun, Step, Steps, WorkerPlace, Workload
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import IMPORT_BYTES, IMPORT_SECONDS, waiter

if TYPE_CHECKING:
    import torch

SIZES = tuple(
    factor * 10**power for power, factors in ((3, (4, 16, 64, 256)), (6, (1, 4, 16, 64, 256))) for factor in factors
)

LEAST_SECONDS = 0.02  # minimum length of a step: the scheduler decides how long one small exchange takes

MOST_SECONDS = 1.0  # maximum time of one all-reduce: a slow link shows itself long before the largest size

_FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class AllReduce(Workload):
    """Sums tensors of 4 kB to 256 MB over all ranks."""

    unit: ClassVar[str] = "byte"
    arrangement: ClassVar[str] = "ddp"

    largest: Annotated[int, Meta(ge=SIZES[0])] = SIZES[-1]  # bytes

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES + 4 * self.largest  # the transport has its own copies

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0

    def step_seconds(self, device: str) -> float | None:
        return 0.5  # one pass over all sizes, with a link of 1 GB/s

    def build(self, place: WorkerPlace) -> Steps:
        if place.world_size < 2:
            raise CannotRun("an all-reduce needs at least two ranks; try --ranks 2")
        reductions = _Reductions(place)
        counts = dict(reductions.choose_sizes(self.largest))
        sizes = list(counts)
        return Steps(
            kinds={show_bytes(size): reductions.make_step(size, count) for size, count in counts.items()},
            notes=(
                "bus bandwidth: 2 (n - 1) / n times the tensor's size over the time, for n ranks",
                *_note_skipped_sizes(sizes, self.largest),
            ),
            check=reductions.is_correct,
        )


class _Reductions:
    def __init__(self, place: WorkerPlace) -> None:
        self._place, self._wait = place, waiter(place.device)

    def _make_tensor(self, size: int) -> torch.Tensor:
        """Return a tensor of zeros: repeated sums of anything else would overflow."""
        import torch

        return torch.zeros(size // _FLOAT32_BYTES, device=self._place.device)

    def make_step(self, size: int, count: int) -> Step:
        """Return a step of `count` all-reduces. It returns this rank's share of the bus bytes, because the rates of
        all ranks are added up."""
        from torch.distributed import all_reduce

        ranks, tensor, wait = self._place.world_size, self._make_tensor(size), self._wait
        share = count * bus_bytes(size, ranks) / ranks

        def reduce() -> float:
            for _ in range(count):
                all_reduce(tensor)
            wait()
            return share

        return reduce

    def choose_sizes(self, largest: int) -> Iterator[tuple[int, int]]:
        """Yield sizes, and how many all-reduces of each make up a step. Stop after the first size that takes too long;
        all ranks stop at the same size."""
        import torch
        from torch.distributed import ReduceOp, all_reduce

        for size in (size for size in SIZES if size <= largest):
            reduce = self.make_step(size, 1)
            reduce()  # the first call also sets up connections
            began = time.perf_counter()
            reduce()
            slowest = torch.tensor(time.perf_counter() - began, device=self._place.device)
            all_reduce(slowest, ReduceOp.MAX)
            yield size, max(1, math.ceil(LEAST_SECONDS / float(slowest)))
            if 4 * float(slowest) > MOST_SECONDS:  # the next size is about four times as large
                return

    def is_correct(self) -> bool:
        import torch
        from torch.distributed import all_reduce

        ones = torch.ones(1000, device=self._place.device)
        all_reduce(ones)
        return bool((ones == self._place.world_size).all())


def _note_skipped_sizes(sizes: list[int], largest: int) -> tuple[str, ...]:
    skipped = [size for size in SIZES if sizes[-1] < size <= largest]
    if not skipped:
        return ()
    return (f"sizes from {show_bytes(skipped[0])} on are left out: one would take more than {MOST_SECONDS:g} s",)
