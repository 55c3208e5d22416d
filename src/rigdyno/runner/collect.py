"""Make the record of a cell from the files and exit codes of its processes, and determine how the cell ended."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from rigdyno import __version__
from rigdyno.base.clock import Clock, Stopwatch, utc_now
from rigdyno.base.errors import DamagedRun
from rigdyno.base.files import read_json
from rigdyno.base.processes import signal_name
from rigdyno.base.units import show_seconds
from rigdyno.contracts import Exit, Left
from rigdyno.plan.build import benchmark_version
from rigdyno.schema.layout import CellFolder, ParticipantFolder
from rigdyno.schema.record import (
    LAUNCHER,
    Completed,
    Facts,
    Failed,
    Outcome,
    Phase,
    RunHead,
    RunRecord,
    WorkerReport,
    fullest,
)
from rigdyno.schema.spec import Cell, Participant, ranks_among, sampler_of

_ADVICE = {
    "SIGILL": "the processor has no such instruction; `rigdyno doctor` looks for the cause",
    "SIGKILL": "killed from outside",
    "SIGSEGV": "the framework crashed",
    "SIGBUS": "often a full /dev/shm or disk",
    "SIGTERM": "asked to stop from outside",
}


@dataclass(frozen=True)
class ExitEvidence:
    reports: Mapping[str, WorkerReport]  # by rank, of those that wrote one
    ranks: Sequence[Participant]
    left: Left
    timed_out_after: float | None
    folder: CellFolder
    began_stepping: bool

    @property
    def missing(self) -> list[Participant]:
        return [rank for rank in self.ranks if rank.id not in self.reports]


def classify_exit(evidence: ExitEvidence) -> Outcome:
    """Return the outcome of a cell. Reports take precedence over exit codes: some processes abort after all is done."""
    if not evidence.missing and all(isinstance(report.outcome, Completed) for report in evidence.reports.values()):
        return evidence.reports[evidence.ranks[0].id].outcome
    if evidence.missing and evidence.left.lost is not None:
        return Failed(kind=evidence.left.lost_kind, phase=_find_phase(evidence, "start"), message=evidence.left.lost)
    if evidence.missing and evidence.timed_out_after is not None:
        return _describe_timeout(evidence, evidence.timed_out_after)
    first_failure = _find_first_failure(evidence)
    reported = evidence.reports.get(first_failure.participant or "")
    if reported is None:
        return _describe_missing_report(first_failure, evidence)
    outcomes = [reported.outcome, *(report.outcome for report in evidence.reports.values())]
    return next((outcome for outcome in outcomes if not isinstance(outcome, Completed)), outcomes[0])


def _find_first_failure(evidence: ExitEvidence) -> Exit:
    """Return the exit of the rank that failed first; the errors of the others are only consequences.

    Without a failed exit code of a rank, take the first rank whose report has a reason, else the first rank without a
    report."""
    named = {rank.id for rank in evidence.ranks}
    failed = [ended for ended in evidence.left.exits if ended.participant in named and ended.code != 0]
    if failed:  # a killed rank failed before those that exited with an error, and these before those that got SIGTERM
        return min(failed, key=lambda ended: (ended.code == -signal.SIGTERM, ended.code >= 0))
    code = next((ended.code for ended in evidence.left.exits if ended.participant is None and ended.code != 0), 0)
    explained = [name for name, report in evidence.reports.items() if not isinstance(report.outcome, Completed)]
    return Exit(code, (explained or [rank.id for rank in evidence.missing])[0])


def _find_phase(evidence: ExitEvidence, otherwise: Phase) -> Phase:
    return "measure" if evidence.began_stepping else otherwise


def _describe_timeout(evidence: ExitEvidence, seconds: float) -> Failed:
    message = f"no end after {show_seconds(seconds)}"
    if len(evidence.ranks) > 1:
        message += f"; still missing: {_show_ranks(evidence.missing)}"
    return Failed(kind="timeout", phase=_find_phase(evidence, "build"), message=message)


def _show_ranks(ranks: Sequence[Participant]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank.rank) for rank in ranks)}"


def _describe_missing_report(lost: Exit, evidence: ExitEvidence) -> Failed:
    rank = next(each for each in evidence.ranks if each.id == lost.participant)
    who = f"rank {rank.rank} was lost: " if len(evidence.ranks) > 1 else ""
    if lost.code < 0:
        return _describe_signal(lost.code, who, rank.node, evidence)
    launcher_log = evidence.folder.participant(sampler_of(rank.node).id).launcher_log
    words = _read_last_line(evidence.folder.participant(rank.id).log) or _read_last_line(launcher_log)
    message = f"{who}left no report, exit code {lost.code}{words}"
    return Failed(kind="exit", phase=_find_phase(evidence, "start"), message=message)


def _describe_signal(code: int, who: str, node: int, evidence: ExitEvidence) -> Failed:
    name, phase = signal_name(code), _find_phase(evidence, "build")
    if evidence.left.overrun is not None:
        return Failed(kind="out_of_memory", phase=phase, message=who + evidence.left.overrun)
    if name == "SIGKILL" and node in evidence.left.out_of_memory:
        return Failed(kind="out_of_memory", phase=phase, message=f"{who}killed by the kernel: the memory ran out")
    advice = _ADVICE.get(name)
    return Failed(kind="signal", phase=phase, message=who + (f"{name}: {advice}" if advice else name))


def _read_last_line(log: Path) -> str:
    """Return the last line of a worker's log in brackets, for a worker that died before it could report."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f" ({lines[-1].strip()[:200]})" if lines else ""


@dataclass(frozen=True)
class CellExit:
    """The exits of a cell's processes, and the time limit if they exceeded it."""

    left: Left
    timed_out_after: float | None = None


def measured_record(head: RunHead, run: str, cell: Cell, folder: Path, ending: CellExit) -> RunRecord:
    """Return the record of a cell whose processes were started."""
    place = CellFolder(folder)
    ranks = ranks_among(cell.participants)
    reports = {rank.id: report for rank in ranks if (report := _read_report(place.participant(rank.id))) is not None}
    evidence = ExitEvidence(
        reports=reports,
        ranks=ranks,
        left=ending.left,
        timed_out_after=ending.timed_out_after,
        folder=place,
        began_stepping=any(place.participant(rank.id).rows("steps").exists() for rank in ranks),
    )
    return record_of(
        head, run, cell, classify_exit(evidence), reports=list(reports.values()), left=ending.left, files=place.files()
    )


class Stamp:
    """Adds the start time and the duration to a record."""

    def __init__(self, clock: Clock) -> None:
        self._stopwatch, self._started_at = Stopwatch(clock), utc_now().isoformat(timespec="seconds")

    def on(self, record: RunRecord) -> RunRecord:
        return replace(record, started_at=self._started_at, seconds=round(self._stopwatch.seconds, 3))


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
        benchmark_version=benchmark_version(cell.spec) if cell.spec.has_budget else 1,
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


def _read_report(folder: ParticipantFolder) -> WorkerReport | None:
    try:
        return read_json(folder.report, WorkerReport)
    except DamagedRun:
        return None
