"""The scaling suite: ResNet-50 on one device, on two, on all of them, and why it falls short.

This module chooses the cells; tables, figures and sentences have a file each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rigdyno import catalogue
from rigdyno.base.errors import UsageError
from rigdyno.contracts import Machine, Suite, Wanted
from rigdyno.plan.request import Request
from rigdyno.plan.resources import sizes, threads_of
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Budget, RunSpec, Value
from rigdyno.schema.view import Presentation
from rigdyno.suites.scaling import tables, words
from rigdyno.suites.scaling.figures import make_figures

# A step of about 0.5 s on one current core; the published size takes 10 s. With a quarter of the batch, the published
# learning rate would make the loss rise.
SMALL: dict[str, Value] = {"batch_size": 8, "image_size": 64, "learning_rate": 0.01}

SECONDS, LINK_SECONDS, REPEATS, MOST_REPEATS = 14.0, 7.0, 3, 8

PUBLISHED_STEPS = 500

STEP_SECONDS = {"cpu": 12.0}  # of the published size; an estimate for planning

CARD_STEP_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class ScalingSuite(Suite):
    """ResNet-50 on 1 to N devices, and why it falls short"""

    def cells(self, request: Request, machine: Machine) -> Sequence[Wanted]:
        if request.soak_seconds is not None:
            instead = "`rigdyno run resnet50 --ranks 2 --soak 10m`"
            raise UsageError(f"the scaling suite has no soak; try {instead}", key="soak")
        most = request.ranks or machine.most_ranks
        repeat = request.repeat or REPEATS
        laid_out = [(ranks, 1) for ranks in sizes(most)] + [(most * nodes, nodes) for nodes in sizes(request.nodes)[1:]]
        cells = [
            Wanted(_resnet_spec(request, machine, ranks, nodes, most), repeat, MOST_REPEATS)
            for ranks, nodes in laid_out
        ]
        ranks, nodes = laid_out[-1]
        return (
            [*cells, Wanted(_link_spec(request, machine, ranks, nodes, most), repeat, MOST_REPEATS)]
            if ranks > 1
            else cells
        )

    def present(self, measurements: Sequence[Measurement]) -> Presentation:
        curve = tables.curve(measurements)
        shown = (
            tables.results_table(curve),
            tables.time_table(curve),
            tables.link_table(measurements),
            tables.published_table(),
        )
        return Presentation(
            title="scaling: ResNet-50, from one device to many",
            headline=words.headline(curve),
            tables=tuple(table for table in shown if table.rows),
            figures=make_figures(curve, measurements),
            closing=words.closing(curve, measurements),
        )


def _resnet_spec(request: Request, machine: Machine, ranks: int, nodes: int, most: int) -> RunSpec:
    on_cpu = machine.device == "cpu"
    budget = Budget(seconds=SECONDS)
    if request.full:
        step = STEP_SECONDS.get(machine.device, CARD_STEP_SECONDS)
        budget = Budget(seconds=PUBLISHED_STEPS * step, max_steps=PUBLISHED_STEPS)
    arrangement = request.arrangement or "ddp" if ranks > 1 else "single"
    return RunSpec(
        workload="resnet50",
        options=dict(SMALL) if on_cpu and not request.full else {},
        arrangement=arrangement,
        launcher=catalogue.load("arrangement", arrangement).launcher,
        world_size=ranks,
        nodes=nodes,
        device=machine.device,
        threads=threads_of(request, machine, most),
        pinned=on_cpu,
        budget=budget,
    )


def _link_spec(request: Request, machine: Machine, ranks: int, nodes: int, most: int) -> RunSpec:
    return RunSpec(
        workload="allreduce",
        arrangement="ddp",
        launcher=catalogue.load("arrangement", "ddp").launcher,
        world_size=ranks,
        nodes=nodes,
        device=machine.device,
        threads=threads_of(request, machine, most),
        pinned=machine.device == "cpu",
        budget=Budget(seconds=LINK_SECONDS),
    )
