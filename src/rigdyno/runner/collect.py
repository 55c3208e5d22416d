"""Makes a cell's record out of what its processes left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rigdyno import __version__
from rigdyno.contracts import Left
from rigdyno.errors import DamagedRun
from rigdyno.plan.build import benchmark_version
from rigdyno.runner.outcome import Evidence, outcome_of
from rigdyno.schema.layout import CellFolder, ParticipantFolder
from rigdyno.schema.participant import ranks_among
from rigdyno.schema.record import LAUNCHER, Facts, Outcome, RunHead, RunRecord, WorkerReport, fullest
from rigdyno.schema.spec import Cell
from rigdyno.store.files import read_json


@dataclass(frozen=True)
class Ending:
    """How the processes of a cell came to their end."""

    left: Left
    timed_out_after: float | None = None


def measured_record(head: RunHead, run: str, cell: Cell, folder: Path, ending: Ending) -> RunRecord:
    place = CellFolder(folder)
    ranks = ranks_among(cell.participants)
    reports = {rank.id: report for rank in ranks if (report := _report(place.participant(rank.id))) is not None}
    evidence = Evidence(
        reports=reports,
        ranks=ranks,
        left=ending.left,
        timed_out_after=ending.timed_out_after,
        folder=place,
        began_stepping=any(place.participant(rank.id).rows("steps").exists() for rank in ranks),
    )
    return record_of(
        head, run, cell, outcome_of(evidence), reports=list(reports.values()), left=ending.left, files=place.files()
    )


def record_of(
    head: RunHead,
    run: str,
    cell: Cell,
    outcome: Outcome,
    *,
    reports: Sequence[WorkerReport] = (),
    left: Left | None = None,
    files: tuple[str, ...] = (),
) -> RunRecord:
    left = left or Left()
    first = reports[0] if reports else None
    starts = [report.start_seconds for report in reports if report.start_seconds is not None]
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
        attempt_of=cell.attempt_of,
        started_at="",
        start_seconds=max(starts, default=None),
        spec=cell.spec,
        system=left.nodes[0] if left.nodes else head.system,
        environment=(first.environment if first is not None else None) or head.environment,
        facts=first.facts if first is not None else Facts(),
        outcome=outcome,
        participants=cell.participants,
        exit_codes={ended.participant or LAUNCHER: ended.code for ended in left.exits},
        clocks=tuple(left.clocks),
        nodes=tuple(left.nodes),
        peak_memory_bytes=sum(peaks) if peaks else left.peak_bytes,
        device_memory=fullest(report.device_memory for report in reports),
        files=files,
    )


def _report(folder: ParticipantFolder) -> WorkerReport | None:
    try:
        return read_json(folder.report, WorkerReport)
    except DamagedRun:
        return None
