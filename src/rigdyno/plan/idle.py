"""The idle rig, measured before and after everything else: a baseline that energy is given net of."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rigdyno.plan.build import scope_of, usual_arrangement, workload_of
from rigdyno.schema.participant import laid_out
from rigdyno.schema.spec import IDLE, Budget, Cell, RunSpec

USUAL_SECONDS = 5.0  # each time, where there is a meter


def idle_seconds(asked: float | None, has_meter: bool, target: str) -> float | None:
    """How long, before and after; None: not at all. Without a meter there is nothing to learn from it."""
    if target == IDLE:
        return None
    return asked if asked is not None else USUAL_SECONDS if has_meter else None


def taken_by_idle(seconds: float | None) -> float:
    """Of a budget for everything together."""
    return 0.0 if seconds is None else 2 * (seconds + workload_of(RunSpec(workload=IDLE)).start_seconds())


def with_idle(cells: Sequence[Cell], seconds: float | None) -> tuple[Cell, ...]:
    """One before and one behind what is planned, on as many nodes as the largest cell has."""
    running = [cell for cell in cells if cell.refusal is None]
    if seconds is None or not running:
        return tuple(cells)
    spec = _spec(max((cell.spec for cell in running), key=lambda spec: spec.nodes), seconds)
    ready = Cell(
        name="",
        spec=spec,
        participants=laid_out(spec.world_size, spec.nodes, spec.device),
        seconds=seconds + workload_of(spec).start_seconds(),
    )
    digits = len(cells[0].name.partition("-")[0])
    before = replace(ready, name=f"{0:0{digits}d}-{IDLE}")
    after = replace(ready, name=f"{len(cells) + 1:0{digits}d}-{IDLE}-r2", repeat=2)
    return before, *cells, after


def _spec(largest: RunSpec, seconds: float) -> RunSpec:
    """On the CPU, whatever is measured: a framework that has opened a card makes it draw more."""
    several = largest.nodes > 1 or scope_of(largest.launcher) == "elsewhere"
    return RunSpec(
        workload=IDLE,
        arrangement="ddp" if several else usual_arrangement(IDLE),
        launcher=largest.launcher if several else "process",
        world_size=largest.nodes,
        nodes=largest.nodes,
        threads=1,
        budget=Budget(seconds=seconds),
    )
