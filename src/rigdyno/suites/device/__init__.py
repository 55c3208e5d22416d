"""The device suite: tensor additions, the machine's own limits, and the published leaderboard.

This module chooses the cells; tables, figures, sentences and the leaderboard have a file each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.contracts import Machine, Suite, Wanted
from rigdyno.plan.request import Request
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Budget, RunSpec, Value
from rigdyno.schema.view import Presentation
from rigdyno.suites.device import leaderboard, tables, words
from rigdyno.suites.device.figures import make_figures

ADD_SECONDS, LIMIT_SECONDS, FULL_FACTOR = 4.0, 5.0, 5.0

ADD_PROCESSES, MOST_ADD_PROCESSES, MOST_LIMIT_PROCESSES = 3, 12, 3

VARIANTS = ("as_published", "as_intended", "corrected")

MATMUL_TYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, kw_only=True)
class DeviceSuite(Suite):
    """Tensor add in three variants, beside the machine's own limits"""

    ranked_workload: ClassVar[str] = "tensor_add"

    def cells(self, request: Request, machine: Machine) -> Sequence[Wanted]:
        if request.soak_seconds is not None:
            return [Wanted(_soak_spec(request, machine), request.repeat or 1)]
        factor = FULL_FACTOR if request.full else 1.0
        repeat, most = request.repeat or ADD_PROCESSES, MOST_ADD_PROCESSES
        limits = [
            Wanted(limit, *((repeat, most) if limit.workload == "memory_bandwidth" else (1, MOST_LIMIT_PROCESSES)))
            for limit in limit_specs(machine.device, LIMIT_SECONDS * factor)
        ]
        adds = [Wanted(add_spec(machine.device, variant, ADD_SECONDS * factor), repeat, most) for variant in VARIANTS]
        return [*limits, *adds]

    def present(self, measurements: Sequence[Measurement]) -> Presentation:
        if any(measurement.soak is not None for measurement in measurements):
            return tables.soak_presentation(measurements)
        shown = (tables.adds(measurements), tables.limits(measurements))
        return Presentation(
            title="device: tensor add, and the machine's own limits",
            headline=words.headline(measurements),
            tables=tuple(table for table in shown if table.rows),
            figures=make_figures(measurements),
            standing=words.standing(measurements),
            closing=(*words.closing(measurements), *words.published_summary()),
        )

    def leaderboard(self, measurements: Sequence[Measurement]) -> Presentation:
        return leaderboard.presentation(measurements)


def add_spec(device: str, variant: str, seconds: float) -> RunSpec:
    return RunSpec(workload="tensor_add", options={"variant": variant}, device=device, budget=Budget(seconds=seconds))


def limit_specs(device: str, seconds: float) -> list[RunSpec]:
    asked: list[tuple[str, dict[str, Value]]] = [
        ("memory_bandwidth", {}),
        ("host_device_copy", {}),
        ("launch_latency", {}),
    ]
    asked += [("matmul_peak", {"dtype": dtype}) for dtype in MATMUL_TYPES]
    return [
        RunSpec(workload=workload, options=options, device=device, budget=Budget(seconds=seconds))
        for workload, options in asked
    ]


def _soak_spec(request: Request, machine: Machine) -> RunSpec:
    assert request.soak_seconds is not None
    return RunSpec(
        workload="tensor_add",
        options={"variant": "as_published"},
        device=machine.device,
        budget=Budget(seconds=request.soak_seconds, stop="clock"),
    )
