"""Helpers for many tests: a manual clock, a machine, records, run folders."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from rigdyno import __version__, catalogue
from rigdyno.base.files import write_json
from rigdyno.contracts import Machine
from rigdyno.plan.request import Request
from rigdyno.schema.layout import CellFolder, RowKind
from rigdyno.schema.record import Completed, Facts, RunHead, RunRecord
from rigdyno.schema.samples import STEP_FIELDS, STEP_STRUCT, Header, RowFile
from rigdyno.schema.spec import Cell, Participant, RunPlan, RunSpec, assign_participants, clock_of
from rigdyno.schema.system import Cpu, Environment, System
from rigdyno.store.folder import RunFolder

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class ManualClock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.at_ns = 1_000_000_000
        self.wall_ahead_ns = 1_700_000_000 * 1_000_000_000

    def now_ns(self) -> int:
        return self.at_ns

    def wall_ns(self) -> int:
        return self.at_ns + self.wall_ahead_ns

    def jump(self, seconds: float) -> None:
        """Move this clock alone, and not the wall clock."""
        self.at_ns += round(seconds * 1e9)
        self.wall_ahead_ns -= round(seconds * 1e9)

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.at_ns += round(seconds * 1e9)


def suite_cells(suite, *, system=None, device="cpu", most_ranks=1, **asked):
    """Return the cells of a suite for a request with these fields."""
    machine = Machine(system or a_system(), device, most_ranks)
    return suite.cells(Request(device=device, **asked), machine)


def a_system(**changes) -> System:
    fields = {
        "cpu": Cpu(model="Test CPU", physical_cores=2, logical_cores=2, usable_cores=2),
        "memory_bytes": 8_000_000_000,
        "operating_system": "Linux",
        "kernel": "6.1",
        "architecture": "x86_64",
    }
    return System(**{**fields, **changes})


def a_record(spec: RunSpec | None = None, **changes) -> RunRecord:
    fields = {
        "rigdyno_version": __version__,
        "run": "test.20260102-030405",
        "cell": "01-test",
        "started_at": "2026-01-02T03:04:05+00:00",
        "spec": spec or RunSpec(workload="tensor_add", options={"variant": "as_published"}),
        "system": a_system(),
        "environment": Environment(python="3.11", packages={"torch": "2.13.0"}),
        "facts": Facts(unit="iteration", per_item={"byte": 1_207_959_552.0}),
        "outcome": Completed(),
        "exit_codes": {"rank0": 0, "node0": 0},
    }
    everything = {**fields, **changes}
    known: RunSpec = everything["spec"]
    taking_part = assign_participants(known.world_size, known.nodes, known.device)
    return RunRecord(**{"participants": taking_part, **everything})


def with_defaults(spec: RunSpec) -> RunSpec:
    """Make a spec as it is planned: with the defaults of all options that aren't set."""
    return replace(spec, defaults=catalogue.defaults("workload", spec.workload))


def a_head(cells: Iterable[Cell], **changes) -> RunHead:
    fields = {
        "rigdyno_version": __version__,
        "created_at": "2026-01-02T03:04:05+00:00",
        "plan": RunPlan(name="test", cells=tuple(cells)),
        "system": a_system(),
        "environment": Environment(python="3.11"),
    }
    return RunHead(**{**fields, **changes})


def a_rank(number: int = 0, node: int = 0) -> Participant:
    return Participant(id=f"rank{number}", rank=number, node=node, device="cpu", clock=clock_of(node))


def rows_path(cell_folder: Path, kind: RowKind = "steps", name: str = "rank0") -> Path:
    """Return the path of a participant's rows, and make its folder."""
    folder = CellFolder(cell_folder).participant(name)
    folder.path.mkdir(exist_ok=True)
    return folder.rows(kind)


def write_steps(path: Path, step_ns: Iterable[int], items: float = 1.0, rank: int = 0) -> None:
    """Write one row per step, without gaps between them."""
    file = RowFile(path, Header(fields=STEP_FIELDS, kinds=("step",), participant=a_rank(rank)))
    at_ns = 1_000_000_000
    for duration_ns in step_ns:
        file.append(struct.pack(STEP_STRUCT, at_ns, at_ns + duration_ns, items, 1, 0, 0))
        at_ns += duration_ns
    file.close()


def a_stored_run(
    root: Path, *, suite: str | None = None, label: str | None = None, spec: RunSpec | None = None
) -> Path:
    """Make a run of one finished cell with a hundred steady steps of about 30 ms."""
    spec = spec or RunSpec(workload="tensor_add", options={"variant": "as_published"})
    cell = Cell(name="01-test", spec=spec, seconds=5.0, participants=assign_participants(1, 1, spec.device))
    folder = RunFolder.create(root, "test", NOW)
    folder.write_head(a_head([cell], plan=RunPlan(name="test", suite=suite, label=label, cells=(cell,))))
    cell_folder = folder.fresh_cell_folder(cell)
    write_json(CellFolder(cell_folder).spec, cell)
    write_steps(rows_path(cell_folder), [30_000_000 + (i * 618_034) % 1_000_000 for i in range(100)])
    folder.write_record(a_record(spec, run=folder.name, suite=suite, label=label), cell)
    return folder.path
