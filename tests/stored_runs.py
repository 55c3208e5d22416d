"""Run folders of several processes with figures that a test chooses, for whatever compares runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rigdyno.schema.spec import Cell, Plan, RunSpec
from rigdyno.store.folder import RunFolder
from support import NOW, a_head, a_record, rows_path, write_steps

ADDING = RunSpec(workload="tensor_add", options={"variant": "as_published"})


def stored_run(
    root: Path,
    name: str,
    step_ms: Sequence[float],
    spec: RunSpec = ADDING,
    plan: Plan | None = None,
    head: dict | None = None,
    **changes,
) -> Path:
    """One process group for each mean step time, of a hundred steps a rank that vary by a thousandth around it."""
    cells = [Cell(name=f"{number:02d}-cell", spec=spec, repeat=number) for number in range(1, len(step_ms) + 1)]
    folder = RunFolder.create(root, name, NOW)
    folder.write_head(a_head(cells, **{"plan": plan or Plan(name=name, cells=tuple(cells)), **(head or {})}))
    for cell, mean_ms in zip(cells, step_ms, strict=True):
        add_cell(folder, cell, mean_ms, **changes)
    return folder.path


def add_cell(folder: RunFolder, cell: Cell, mean_ms: float, items: float = 1.0, **changes) -> None:
    inside = folder.fresh_cell_folder(cell)
    step_ns = [round(mean_ms * 1e6 * (1 + 0.001 * ((i * 7919) % 201 - 100) / 100)) for i in range(100)]
    for rank in range(cell.spec.world_size):
        write_steps(rows_path(inside, name=f"rank{rank}"), step_ns, items, rank)
    folder.write_record(a_record(cell.spec, run=folder.name, cell=cell.name, repeat=cell.repeat, **changes), cell)
