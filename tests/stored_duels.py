"""Make run folders of duels, and of suites with a noise floor, with ratios chosen by a test."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from rigdyno.schema.record import Facts, Outcome
from rigdyno.schema.samples import STEP_FIELDS, STEP_STRUCT, WARM_UP, Header, RowFile
from rigdyno.schema.spec import Cell, DuelPlan, RunPlan, RunSpec
from rigdyno.store.folder import RunFolder
from support import NOW, a_head, a_rank, a_record, rows_path, write_steps

A = RunSpec(workload="tensor_add", options={"variant": "as_intended"})
B = RunSpec(workload="tensor_add", options={"variant": "corrected"})
CHEAP = RunSpec(workload="launch_latency")

DUEL = DuelPlan(
    what="tensor_add",
    names=("variant=as_intended", "variant=corrected"),
    margin=0.01,
    least_pairs=6,
    budget_seconds=120.0,
)
SELF_DUEL = DuelPlan(
    what="launch_latency",
    names=("launch_latency", "launch_latency"),
    margin=0.01,
    least_pairs=4,
    budget_seconds=16.0,
    self_duel=True,
)

Outcomes = Mapping[tuple[int, str], Outcome]


def stored_duel(
    root: Path, ratios: Sequence[float], *, planned: int | None = None, outcomes: Outcomes | None = None, **plan
) -> Path:
    """Store one finished pair for each of B's rates over A's; `planned` pairs were planned."""
    cells = arm_cells(A, B, planned or len(ratios))
    folder = RunFolder.create(root, "duel-tensor_add", NOW)
    folder.write_head(a_head(cells, plan=RunPlan(name="duel-tensor_add", cells=cells, duel=DUEL, **plan)))
    write_pairs(folder, cells, ratios, outcomes)
    return folder.path


def stored_suite(
    root: Path,
    ratios: Sequence[float],
    *,
    planned: int | None = None,
    outcomes: Outcomes | None = None,
    missing: str | None = None,
) -> Path:
    """A suite's one cell, and its cheapest against itself; without ratios the plan says what is `missing`."""
    cell = Cell(name="01-cell", spec=RunSpec(workload="tensor_add", options={"variant": "as_published"}), seconds=5.0)
    pairs = arm_cells(CHEAP, CHEAP, planned or len(ratios))
    plan = RunPlan(
        name="device", suite="device", cells=(cell, *pairs), duel=SELF_DUEL if ratios else None, noise_missing=missing
    )
    folder = RunFolder.create(root, "device", NOW)
    folder.write_head(a_head(plan.cells, plan=plan))
    write_steps(rows_path(folder.fresh_cell_folder(cell)), [30_000_000 + i * 7919 % 100_000 for i in range(100)])
    folder.write_record(a_record(cell.spec, run=folder.name, cell=cell.name, suite="device"), cell)
    write_pairs(folder, pairs, ratios, outcomes)
    return folder.path


def arm_cells(a: RunSpec, b: RunSpec, pairs: int) -> tuple[Cell, ...]:
    return tuple(
        Cell(name=f"pair{number:03d}-{arm}", spec=spec, pair=number, arm=arm, seconds=6.0)
        for number in range(1, pairs + 1)
        for arm, spec in (("a", a), ("b", b))
    )


def write_pairs(
    folder: RunFolder, cells: Sequence[Cell], ratios: Sequence[float], outcomes: Outcomes | None = None
) -> None:
    for cell in cells[: 2 * len(ratios)]:
        ratio = ratios[cell.pair - 1] if cell.arm == "b" else 1.0
        write_turns(rows_path(folder.fresh_cell_folder(cell)), ratio)
        changes = {"outcome": outcomes[cell.pair, cell.arm]} if (cell.pair, cell.arm) in (outcomes or {}) else {}
        record = a_record(
            cell.spec, run=folder.name, cell=cell.name, pair=cell.pair, arm=cell.arm, seconds=12.0,
            facts=Facts(unit="iteration"), **changes,
        )  # fmt: skip
        folder.write_record(record, cell)


def write_turns(path: Path, ratio: float, turns: int = 60) -> None:
    """The first ten are warm-up, three times as long. Both arms share their noise but for some ten-thousandths."""
    file = RowFile(path, Header(fields=STEP_FIELDS, kinds=("turn",), participant=a_rank()))
    at_ns, own = 1_000_000_000, Random(ratio)
    for turn in range(turns):
        warm_up = turn < 10
        shared_ns = 30_000_000 if warm_up else 10_000_000 + turn * 7919 % 100_000
        duration_ns = round(shared_ns / ratio * own.gauss(1.0, 0.0002))
        file.append(struct.pack(STEP_STRUCT, at_ns, at_ns + duration_ns, 1.0, 1, 0, WARM_UP if warm_up else 0))
        at_ns += 3 * duration_ns
    file.close()
