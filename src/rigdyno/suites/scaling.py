"""The scaling suite: ResNet-50 on one device, on two, on all of them, and why it falls short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rigdyno import catalogue
from rigdyno.contracts import SuiteRequest, Wanted
from rigdyno.errors import UsageError
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Budget, RunSpec, Value
from rigdyno.schema.view import Presentation
from rigdyno.suites import _scaling_tables as tables
from rigdyno.suites import _scaling_words as words
from rigdyno.suites._scaling_figures import figures

# A step of about half a second on one core of today, where the published size takes ten. With a quarter of the batch
# the published rate of learning would make the loss rise.
SMALL: dict[str, Value] = {"batch_size": 8, "image_size": 64, "learning_rate": 0.01}
SECONDS, LINK_SECONDS, REPEATS, MOST_REPEATS = 14.0, 7.0, 3, 8
PUBLISHED_STEPS = 500
STEP_SECONDS = {"cpu": 12.0}  # of the published size, to plan by
CARD_STEP_SECONDS = 0.5
EVERY_SIZE_UP_TO = 4


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """ResNet-50 on 1 to N devices, and why it falls short"""

    excerpt: ClassVar[bool] = False

    def cells(self, request: SuiteRequest) -> Sequence[Wanted]:
        if request.soak_seconds is not None:
            instead = "`rigdyno run resnet50 --ranks 2 --soak 10m`"
            raise UsageError(f"the scaling suite has no soak; try {instead}", key="soak")
        most = request.ranks or request.most_ranks
        repeat = request.repeat or REPEATS
        laid_out = [(ranks, 1) for ranks in sizes(most)] + [(most * nodes, nodes) for nodes in sizes(request.nodes)[1:]]
        cells = [Wanted(_resnet(request, ranks, nodes, most), repeat, MOST_REPEATS) for ranks, nodes in laid_out]
        ranks, nodes = laid_out[-1]
        return [*cells, Wanted(_link(request, ranks, nodes, most), repeat, MOST_REPEATS)] if ranks > 1 else cells

    def present(self, measurements: Sequence[Measurement]) -> Presentation:
        curve = tables.curve(measurements)
        shown = (tables.measured(curve), tables.spent(curve), tables.link(measurements), tables.published())
        return Presentation(
            title="scaling: ResNet-50, from one device to many",
            headline=words.headline(curve),
            tables=tuple(table for table in shown if table.rows),
            figures=figures(curve, measurements),
            closing=words.closing(curve, measurements),
        )


def sizes(most: int) -> list[int]:
    """All of the first few, then twice as many again and again, and all."""
    found = list(range(1, min(most, EVERY_SIZE_UP_TO) + 1))
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return found


def _resnet(request: SuiteRequest, ranks: int, nodes: int, most: int) -> RunSpec:
    on_cpu = request.device == "cpu"
    budget = Budget(seconds=SECONDS)
    if request.full:
        step = STEP_SECONDS.get(request.device, CARD_STEP_SECONDS)
        budget = Budget(seconds=PUBLISHED_STEPS * step, max_steps=PUBLISHED_STEPS)
    arrangement = request.arrangement or "ddp" if ranks > 1 else "single"
    return RunSpec(
        workload="resnet50",
        options=dict(SMALL) if on_cpu and not request.full else {},
        arrangement=arrangement,
        launcher=catalogue.load("arrangement", arrangement).launcher,
        world_size=ranks,
        nodes=nodes,
        device=request.device,
        threads=threads_of(request, most),
        pinned=on_cpu,
        budget=budget,
    )


def _link(request: SuiteRequest, ranks: int, nodes: int, most: int) -> RunSpec:
    return RunSpec(
        workload="allreduce",
        arrangement="ddp",
        launcher="torchrun",
        world_size=ranks,
        nodes=nodes,
        device=request.device,
        threads=threads_of(request, most),
        pinned=request.device == "cpu",
        budget=Budget(seconds=LINK_SECONDS),
    )


def threads_of(request: SuiteRequest, most: int) -> int | None:
    """As many for one rank as for each of all: else the first point would be another machine's."""
    if request.threads is not None or request.device != "cpu":
        return request.threads
    return max(1, request.system.cpu.usable_cores // most)
