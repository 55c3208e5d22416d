"""Plan the two baselines of a run: the idle machine and the noise floor.

The idle machine is measured before and after all other cells, so that energy can be reported net of it. For the noise
floor, a suite runs pairs of its cheapest cell against itself: any difference is the noise of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from rigdyno.base.units import show_seconds
from rigdyno.plan.budget import start_seconds
from rigdyno.plan.build import arrangement_of_ranks, launcher_of, usual_arrangement, workload_of
from rigdyno.plan.pairs import MOST_MEASURED_SECONDS, names_of, pair_cells
from rigdyno.plan.resources import Resources
from rigdyno.schema.spec import IDLE, USUAL_LAUNCHER, Budget, Cell, DuelPlan, RunSpec, assign_participants

USUAL_SECONDS = 5.0  # of each idle measurement, if there is a power meter

PAIRS = 4  # the smallest number of pairs whose interval is informative

START_TOGETHER = 1.65  # start time relative to a lone process; generous, because there is little time to spare

LEAST_MEASURED_SECONDS = 0.7  # enough for hundreds of turns of a cheap cell

MOST_SHARE = 0.1  # of the run's time: the noise floor must not cost more than the measurement itself


def idle_seconds(asked: float | None, has_meter: bool, target: str) -> float | None:
    """Return how long to measure the idle machine, before and again after the run; None for not at all.

    Without a power meter the default is None: an idle measurement would tell nothing."""
    if target == IDLE:
        return None
    return asked if asked is not None else USUAL_SECONDS if has_meter else None


def taken_by_idle(seconds: float | None) -> float:
    """Return the seconds of a run's budget that the two idle measurements take."""
    return 0.0 if seconds is None else 2 * (seconds + workload_of(RunSpec(workload=IDLE)).start_seconds())


def with_idle(cells: Sequence[Cell], seconds: float | None) -> tuple[Cell, ...]:
    """Add an idle cell before and after the planned ones, on as many nodes as the largest cell has."""
    running = [cell for cell in cells if cell.refusal is None]
    if seconds is None or not running:
        return tuple(cells)
    spec = _make_idle_spec(max((cell.spec for cell in running), key=lambda spec: spec.nodes), seconds)
    ready = Cell(
        name="",
        spec=spec,
        participants=assign_participants(spec.world_size, spec.nodes, spec.device),
        seconds=seconds + workload_of(spec).start_seconds(),
    )
    digits = len(cells[0].name.partition("-")[0])
    before = replace(ready, name=f"{0:0{digits}d}-{IDLE}")
    after = replace(ready, name=f"{len(cells) + 1:0{digits}d}-{IDLE}-r2", repeat=2)
    return before, *cells, after


def _make_idle_spec(largest: RunSpec, seconds: float) -> RunSpec:
    """Return the configuration of an idle cell, on the CPU: a GPU that a framework has opened draws more power."""
    several = largest.nodes > 1 or launcher_of(largest.launcher).scope == "elsewhere"
    return RunSpec(
        workload=IDLE,
        arrangement=arrangement_of_ranks(IDLE) if several else usual_arrangement(IDLE),
        launcher=largest.launcher if several else USUAL_LAUNCHER,
        world_size=largest.nodes,
        nodes=largest.nodes,
        threads=1,
        budget=Budget(seconds=seconds),
    )


@dataclass(frozen=True)
class NoisePlan:
    """The pairs of cells that measure the noise floor, or the reason why there are none."""

    cells: tuple[Cell, ...] = ()
    duel: DuelPlan | None = None
    missing: str | None = None

    @property
    def seconds(self) -> float:
        return sum(cell.seconds for cell in self.cells)


def noise_plan(cells: Sequence[Cell], run_seconds: float, resources: Resources) -> NoisePlan:
    """Plan pairs of the cheapest cell, in at most a tenth of the run's time."""
    cell = cheapest([cell for cell in cells if cell.refusal is None])
    if cell is None:
        return NoisePlan(missing="no cell of this run can be compared with itself")
    start, allowed = START_TOGETHER * start_seconds(cell.spec), MOST_SHARE * run_seconds
    measured = min(allowed / PAIRS - start, MOST_MEASURED_SECONDS)
    if measured < LEAST_MEASURED_SECONDS:
        return NoisePlan(missing=_describe_shortage(allowed, PAIRS * (start + LEAST_MEASURED_SECONDS)))
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
    """Return the cell that starts fastest; of several, the one that needs the least memory.

    Only cells of one process that can take turns count: not groups of ranks, not cells under a debugger, and not jobs,
    which end with their last step."""
    single = [cell for cell in cells if cell.spec.launcher == USUAL_LAUNCHER and cell.spec.world_size == 1]
    fit = [cell for cell in single if not cell.spec.budget.is_job]
    return min(fit, key=lambda cell: (start_seconds(cell.spec), cell.memory_bytes or 0), default=None)


def _describe_shortage(allowed: float, least: float) -> str:
    return (
        f"{PAIRS} pairs of processes take at least {show_seconds(least)}, and a tenth of this run is "
        f"{show_seconds(allowed)}; a larger --budget measures it"
    )
