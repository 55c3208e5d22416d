"""Make run folders of several processes with figures chosen by a test, for tests that compare runs."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rigdyno.base.units import NS_PER_MS, NS_PER_S
from rigdyno.schema.channel import Channel
from rigdyno.schema.samples import PHASES, STEP_FIELDS, Header, RowFile, telemetry_header
from rigdyno.schema.spec import Cell, RunPlan, RunSpec, assign_participants, sampler_of
from rigdyno.store.folder import RunFolder
from support import NOW, a_head, a_rank, a_record, rows_path, write_steps

ADDING = RunSpec(workload="tensor_add", options={"variant": "as_published"})


def stored_run(
    root: Path,
    name: str,
    step_ms: Sequence[float],
    spec: RunSpec = ADDING,
    plan: RunPlan | None = None,
    head: dict | None = None,
    **changes,
) -> Path:
    """One process group for each mean step time, of a hundred steps a rank that vary by a thousandth around it."""
    cells = [Cell(name=f"{number:02d}-cell", spec=spec, repeat=number) for number in range(1, len(step_ms) + 1)]
    folder = RunFolder.create(root, name, NOW)
    folder.write_head(a_head(cells, **{"plan": plan or RunPlan(name=name, cells=tuple(cells)), **(head or {})}))
    for cell, mean_ms in zip(cells, step_ms, strict=True):
        add_cell(folder, cell, mean_ms, **changes)
    return folder.path


def add_cell(folder: RunFolder, cell: Cell, mean_ms: float, items: float = 1.0, **changes) -> None:
    inside = folder.fresh_cell_folder(cell)
    step_ns = [round(mean_ms * 1e6 * (1 + 0.001 * ((i * 7919) % 201 - 100) / 100)) for i in range(100)]
    for rank in range(cell.spec.world_size):
        write_steps(rows_path(inside, name=f"rank{rank}"), step_ns, items, rank)
    folder.write_record(a_record(cell.spec, run=folder.name, cell=cell.name, repeat=cell.repeat, **changes), cell)


def stored_ranks(
    root: Path, ranks: Sequence[tuple[np.ndarray, Mapping[str, np.ndarray]]], suite: str | None = None
) -> Path:
    """Make a run whose ranks have these step rows and these rows of each phase, with telemetry of one core."""
    count = len(ranks)
    spec = RunSpec(workload="resnet50", world_size=count, arrangement="ddp" if count > 1 else "single")
    cell = Cell(name="01-cell", spec=spec, participants=assign_participants(count, 1, "cpu"))
    folder = RunFolder.create(root, f"ranks{count}", NOW)
    folder.write_head(a_head([cell], plan=RunPlan(name=folder.name, suite=suite, cells=(cell,))))
    inside = folder.fresh_cell_folder(cell)
    for number, (steps, marks) in enumerate(ranks):
        phases = np.sort(np.concatenate(list(marks.values())), order="start_ns")
        for kind, kinds, rows in (("steps", ("step",), steps), ("phases", PHASES, phases)):
            header = Header(fields=STEP_FIELDS, kinds=kinds, participant=a_rank(number))
            _write_rows(rows_path(inside, kind, f"rank{number}"), header, rows.tobytes())
    times_ns = range(int(ranks[0][0]["start_ns"][0]), int(ranks[0][0]["end_ns"][-1]), NS_PER_S // 10)
    usage = b"".join(struct.pack("<qd", at_ns, 0.5) for at_ns in times_ns)
    channel = Channel("cpu0", "share", "utilisation", device="cpu0", sensor="host")
    _write_rows(rows_path(inside, "telemetry", "node0"), telemetry_header([channel], sampler_of(0)), usage)
    folder.write_record(a_record(spec, run=folder.name, cell=cell.name, suite=suite), cell)
    return folder.path


def _write_rows(path: Path, header: Header, rows: bytes) -> None:
    file = RowFile(path, header)
    file.append(rows)
    file.close()


def made_up_rank(steps: int = 12, batch: int = 8, block: int = 1, gap_ms: float = 0, **phases_ms: float):
    """Return the step rows of one rank and the rows of each phase: `block` steps per row, a pause after every step."""
    rows, marks, now_ns = [], {name: [] for name in phases_ms}, 0
    for _ in range(steps):
        began_ns = now_ns
        for _ in range(block):
            for name, milliseconds in phases_ms.items():
                end_ns = now_ns + int(milliseconds * NS_PER_MS)
                marks[name].append((now_ns, end_ns, 0.0, 1, PHASES.index(name), 0))
                now_ns = end_ns
            now_ns += int(gap_ms * NS_PER_MS)
        rows.append((began_ns, now_ns, batch * block, block, 0, 0))
    dtype = np.dtype(list(STEP_FIELDS))
    return np.array(rows, dtype), {name: np.array(marked, dtype) for name, marked in marks.items()}
