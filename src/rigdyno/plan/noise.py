"""Every suite holds its cheapest cell against itself: what then differs is the machine's own noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rigdyno.plan.budget import start_seconds
from rigdyno.plan.pairs import MOST_MEASURED_SECONDS, names_of, pair_cells
from rigdyno.plan.preflight import Resources
from rigdyno.schema.spec import Cell, DuelPlan
from rigdyno.units import show_seconds

PAIRS = 4  # the least whose spread says something
START_TOGETHER = 1.65  # with little time to spare the start must not be taken for shorter than it was seen to be
LEAST_MEASURED_SECONDS = 0.7  # a cheap cell takes hundreds of turns in it
MOST_SHARE = 0.1  # of the run's time: knowing the noise must not cost more than what is measured


@dataclass(frozen=True)
class NoisePlan:
    """The pairs, or why there are none."""

    cells: tuple[Cell, ...] = ()
    duel: DuelPlan | None = None
    missing: str | None = None

    @property
    def seconds(self) -> float:
        return sum(cell.seconds for cell in self.cells)


def noise_plan(cells: Sequence[Cell], run_seconds: float, resources: Resources) -> NoisePlan:
    cell = cheapest([cell for cell in cells if cell.refusal is None])
    if cell is None:
        return NoisePlan(missing="no cell of this run can be held against itself")
    start, allowed = START_TOGETHER * start_seconds(cell.spec), MOST_SHARE * run_seconds
    measured = min(allowed / PAIRS - start, MOST_MEASURED_SECONDS)
    if measured < LEAST_MEASURED_SECONDS:
        return NoisePlan(missing=_too_short(allowed, PAIRS * (start + LEAST_MEASURED_SECONDS)))
    memory = None if cell.memory_bytes is None else 2 * cell.memory_bytes
    refusal = resources.refusal(memory)
    if refusal:
        return NoisePlan(missing=f"the cheapest cell twice {refusal}")
    duel = DuelPlan(
        what=cell.spec.workload,
        names=names_of(cell.spec, cell.spec),
        margin=0.01,
        least_pairs=PAIRS,
        budget_seconds=allowed,
        self_duel=True,
    )
    return NoisePlan(pair_cells(cell.spec, cell.spec, PAIRS, start, measured, memory), duel)


def cheapest(cells: Sequence[Cell]) -> Cell | None:
    """The one that starts quickest, and of those the smallest. Several processes or a debugger can't take turns, and a
    job ends with its steps."""
    single = [cell for cell in cells if cell.spec.launcher == "process" and cell.spec.world_size == 1]
    fit = [cell for cell in single if not cell.spec.budget.is_job]
    return min(fit, key=lambda cell: (start_seconds(cell.spec), cell.memory_bytes or 0), default=None)


def _too_short(allowed: float, least: float) -> str:
    return (
        f"{PAIRS} pairs of processes take at least {show_seconds(least)}, and a tenth of this run is "
        f"{show_seconds(allowed)}; a larger --budget measures it"
    )
