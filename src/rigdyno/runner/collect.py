"""Makes a cell's record out of what its processes left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rigdyno import __version__
from rigdyno.contracts import Exit
from rigdyno.errors import DamagedRun
from rigdyno.plan.build import benchmark_version
from rigdyno.runner.outcome import Evidence, oom_kills, outcome_of
from rigdyno.schema.record import Facts, Outcome, RunHead, RunRecord, WorkerReport
from rigdyno.schema.spec import Cell
from rigdyno.store.files import read_json


@dataclass(frozen=True)
class Ending:
    """How the processes of a cell came to their end."""

    exits: Sequence[Exit]
    timed_out_after: float | None = None
    sampler_exit_code: int | None = None
    oom_kills_before: int = 0


def measured_record(head: RunHead, run: str, cell: Cell, folder: Path, ending: Ending) -> RunRecord:
    codes = tuple(ended.code for ended in ending.exits)
    every_rank = range(cell.spec.world_size)
    reports = {rank: report for rank in every_rank if (report := _report(folder, rank)) is not None}
    evidence = Evidence(
        reports=reports,
        world_size=cell.spec.world_size,
        exits=tuple(ending.exits),
        timed_out_after=ending.timed_out_after,
        oom_killed=oom_kills() > ending.oom_kills_before,
        folder=folder,
        began_stepping=(folder / "steps.0.rows").exists(),
    )
    return record_of(
        head,
        run,
        cell,
        outcome_of(evidence),
        reports=list(reports.values()),
        exit_codes=codes,
        sampler_exit_code=ending.sampler_exit_code,
        files=tuple(sorted(path.name for path in folder.iterdir())),
    )


def record_of(
    head: RunHead,
    run: str,
    cell: Cell,
    outcome: Outcome,
    *,
    reports: Sequence[WorkerReport] = (),
    exit_codes: tuple[int, ...] = (),
    sampler_exit_code: int | None = None,
    files: tuple[str, ...] = (),
) -> RunRecord:
    first = reports[0] if reports else None
    peaks = [report.peak_memory_bytes for report in reports if report.peak_memory_bytes is not None]
    return RunRecord(
        benchmark_version=benchmark_version(cell.spec),
        rigdyno_version=__version__,
        run=run,
        cell=cell.name,
        suite=head.plan.suite,
        label=head.plan.label,
        repeat=cell.repeat,
        pair=cell.pair,
        arm=cell.arm,
        started_at="",
        spec=cell.spec,
        system=head.system,
        environment=(first.environment if first is not None else None) or head.environment,
        facts=first.facts if first is not None else Facts(),
        outcome=outcome,
        exit_codes=exit_codes,
        sampler_exit_code=sampler_exit_code,
        peak_memory_bytes=sum(peaks) if peaks else None,
        files=files,
    )


def _report(folder: Path, rank: int) -> WorkerReport | None:
    try:
        return read_json(folder / f"worker.{rank}.json", WorkerReport)
    except DamagedRun:
        return None
