"""Search for the largest batch, and run processes with the same memory limit, for benchmarks of private training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _bars import Bar
from msgspec.structs import replace

from rigdyno import api
from rigdyno.base.units import show_bytes
from rigdyno.plan.request import from_python
from rigdyno.runner.orchestrate import create_run
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import Completed, Failed, RunRecord
from rigdyno.schema.spec import Budget, RunSpec, Value

GB = 10**9
EFFICIENTNET, SMALL = "efficientnet_cifar100", "own_training"
BATCH_NORM: dict[str, Value] = {"norm": "batch", "channels_last": True}
GROUP_NORM: dict[str, Value] = {"norm": "group", "channels_last": True}  # which private training needs
SMALL_SET: dict[str, Value] = {"file": str(Path(__file__).with_name("_small_set.py")), "function": "training"}
SMALL_BYTES = GB // 2
STEPS = 30
FEW = 4  # steady steps of the measurement at the end of a search
MOST_TRIES = 8


@dataclass(frozen=True)
class Found:
    """The result of one search, and the figure measured at its end."""

    name: str
    measurement: Measurement

    @property
    def batch(self) -> int | None:
        value = self.measurement.spec.options.get("batch_size")
        return value if isinstance(value, int) else None

    @property
    def tries(self) -> int:
        return len(self.measurement.attempts)

    def say(self) -> None:
        size = size_of(self.measurement.records[-1].memory_bytes)
        rate = self.measurement.throughput()
        speed = f"{rate.value:.4g} items/s" if isinstance(rate, Estimate) else rate.reason
        tried = ", ".join(f"{each.value} ({size_of(each.memory_bytes)})" for each in self.measurement.attempts)
        print(f"{self.name}: batch {self.batch} in {self.tries} tries, {size}, {speed}; tried {tried}", flush=True)


def size_of(size: int | None) -> str:
    return "?" if size is None else show_bytes(size)


class Bench:
    def __init__(self, out: Path) -> None:
        self._out = out
        self.found: list[Found] = []

    def search(self, name: str, workload: str, allowed: int, update: str, options: Mapping[str, Value]) -> Found:
        run = api.run(
            workload,
            options={**options, "batch_size": "largest"},
            memory=f"{allowed / GB:g}GB",
            update=update,
            steps=FEW,
            out=self._out,
        )
        found = Found(name, run.measurements[0])
        found.say()
        self.found.append(found)
        return found

    def rate(self, workload: str, options: Mapping[str, Value], update: str = "plain") -> float | None:
        run = api.run(workload, options=options, update=update, steps=FEW, out=self._out)
        rate = run.measurements[0].throughput()
        return rate.value if isinstance(rate, Estimate) else None

    def processes(
        self, spec: RunSpec, changes: Mapping[str, Value], allowed: int, count: int, *, as_tried: bool
    ) -> list[RunRecord]:
        """Run processes with the same memory limit as those of a search."""
        options = {**spec.options, **changes}
        asked = {"target": spec.workload, "options": options, "update": spec.update, "repeat": count}
        head = api.prepare(from_python(asked))
        budget = Budget(seconds=120.0, max_steps=STEPS)
        cells = tuple(
            replace(
                cell,
                allowed_bytes=allowed,
                attempt_of=cell.name if as_tried else None,
                spec=replace(cell.spec, budget=budget),
            )
            for cell in head.plan.cells
        )
        head = replace(head, plan=replace(head.plan, cells=cells))
        return api.carry_out(create_run(head, self._out), head).records


def fits(record: RunRecord, allowed: int) -> bool:
    return isinstance(record.outcome, Completed) and (record.memory_bytes or math.inf) <= allowed


def is_too_large(record: RunRecord, allowed: int) -> bool:
    """Return whether it failed for lack of memory; other failures say nothing about memory."""
    if isinstance(record.outcome, Completed):
        return (record.memory_bytes or 0) > allowed
    return isinstance(record.outcome, Failed) and record.outcome.kind == "out_of_memory"


def tries_bar(found: Sequence[Found]) -> Bar:
    most = max((each.tries for each in found), default=math.inf)
    least = min((each.tries for each in found), default=math.inf)
    return Bar("tries of a search", most, least, most, f"the most of {len(found)} searches", MOST_TRIES)
