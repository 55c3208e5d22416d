"""The quick suite, which bare `rigdyno` runs: one minute of the device suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.base.errors import UsageError
from rigdyno.contracts import Machine, Suite, Wanted
from rigdyno.plan.request import Request
from rigdyno.report.sections import ENERGY_COLUMN
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Budget, RunSpec
from rigdyno.schema.view import Presentation, Table
from rigdyno.suites.device import add_spec, tables, words
from rigdyno.suites.device.figures import make_figures

ADD_SECONDS, LIMIT_SECONDS = 6.0, 4.0


@dataclass(frozen=True, kw_only=True)
class QuickSuite(Suite):
    """This machine in a minute: what bare `rigdyno` runs"""

    excerpt: ClassVar[bool] = True

    def cells(self, request: Request, machine: Machine) -> Sequence[Wanted]:
        if request.full or request.soak_seconds is not None:
            instead = "`rigdyno run device` with --full or --soak"
            key = "full" if request.full else "soak"
            raise UsageError(f"the first minute is short by design; try {instead}", key=key)
        device, repeat = machine.device, request.repeat or 1
        limits = [("memory_bandwidth", {}), ("matmul_peak", {"dtype": "float32"})]
        specs = [
            RunSpec(workload=name, options=dict(options), device=device, budget=Budget(seconds=LIMIT_SECONDS))
            for name, options in limits
        ]
        specs += [add_spec(device, variant, ADD_SECONDS) for variant in ("as_published", "corrected")]
        return [Wanted(spec, repeat) for spec in specs]

    def present(self, measurements: Sequence[Measurement]) -> Presentation:
        return Presentation(
            title="This machine in a minute",
            headline=words.headline(measurements),
            tables=(_one_table(measurements),),
            figures=make_figures(measurements),
            standing=words.standing(measurements),
            closing=words.closing(measurements),
        )


def _one_table(measurements: Sequence[Measurement]) -> Table:
    adds = tables.adds(measurements)
    limits = tables.limits(measurements)
    energy = tuple(column for column in adds.columns if column == ENERGY_COLUMN)
    columns = (tables.WHAT, tables.RATE, tables.MOVED, tables.SHARE, *energy, tables.STEPS)
    return Table(title=adds.title, columns=columns, rows=(*adds.rows, *limits.rows), notes=adds.notes)
