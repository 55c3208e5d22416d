"""How a cell ended, from what its processes left behind."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rigdyno.contracts import Exit, Left
from rigdyno.processes import signal_name
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.participant import Participant, sampler_of
from rigdyno.schema.record import Completed, Failed, Outcome, Phase, WorkerReport
from rigdyno.units import show_seconds

_ADVICE = {
    "SIGILL": "the processor has no such instruction; `rigdyno doctor` looks for the cause",
    "SIGKILL": "killed from outside",
    "SIGSEGV": "the framework crashed",
    "SIGBUS": "often a full /dev/shm or disk",
    "SIGTERM": "asked to stop from outside",
}


@dataclass(frozen=True)
class Evidence:
    reports: Mapping[str, WorkerReport]  # of the ranks that left one
    ranks: Sequence[Participant]
    left: Left
    timed_out_after: float | None
    folder: CellFolder
    began_stepping: bool

    @property
    def missing(self) -> list[Participant]:
        return [rank for rank in self.ranks if rank.id not in self.reports]


def outcome_of(evidence: Evidence) -> Outcome:
    """A report counts more than an exit code: some processes abort after everything is done."""
    if not evidence.missing and all(isinstance(report.outcome, Completed) for report in evidence.reports.values()):
        return evidence.reports[evidence.ranks[0].id].outcome
    if evidence.missing and evidence.left.lost is not None:
        return Failed(kind=evidence.left.lost_kind, phase=_phase(evidence, "start"), message=evidence.left.lost)
    if evidence.missing and evidence.timed_out_after is not None:
        return _timed_out(evidence, evidence.timed_out_after)
    blamed = _blamed(evidence)
    reported = evidence.reports.get(blamed.participant or "")
    if reported is None:
        return _without_report(blamed, evidence)
    said = [reported.outcome, *(report.outcome for report in evidence.reports.values())]
    return next((outcome for outcome in said if not isinstance(outcome, Completed)), said[0])


def _blamed(evidence: Evidence) -> Exit:
    """The rank that ended badly first: what the others then say is that they miss it. Where no exit tells, the first
    that says why, and at last the first that says nothing."""
    named = {rank.id for rank in evidence.ranks}
    told = [ended for ended in evidence.left.exits if ended.participant in named and ended.code != 0]
    if told:  # nodes tell their own: who was killed came before those who missed it, who was told to stop behind them
        return min(told, key=lambda ended: (ended.code == -signal.SIGTERM, ended.code >= 0))
    code = next((ended.code for ended in evidence.left.exits if ended.participant is None and ended.code != 0), 0)
    speaking = [name for name, report in evidence.reports.items() if not isinstance(report.outcome, Completed)]
    return Exit(code, (speaking or [rank.id for rank in evidence.missing])[0])


def _phase(evidence: Evidence, otherwise: Phase) -> Phase:
    return "measure" if evidence.began_stepping else otherwise


def _timed_out(evidence: Evidence, seconds: float) -> Failed:
    message = f"no end after {show_seconds(seconds)}"
    if len(evidence.ranks) > 1:
        message += f"; still missing: {_ranks(evidence.missing)}"
    return Failed(kind="timeout", phase=_phase(evidence, "build"), message=message)


def _ranks(ranks: Sequence[Participant]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank.rank) for rank in ranks)}"


def _without_report(lost: Exit, evidence: Evidence) -> Failed:
    rank = next(each for each in evidence.ranks if each.id == lost.participant)
    who = f"rank {rank.rank} was lost: " if len(evidence.ranks) > 1 else ""
    if lost.code < 0:
        return _by_signal(lost.code, who, rank.node, evidence)
    launcher_log = evidence.folder.participant(sampler_of(rank.node).id).launcher_log
    words = _last_words(evidence.folder.participant(rank.id).log) or _last_words(launcher_log)
    message = f"{who}left no report, exit code {lost.code}{words}"
    return Failed(kind="exit", phase=_phase(evidence, "start"), message=message)


def _by_signal(code: int, who: str, node: int, evidence: Evidence) -> Failed:
    name, phase = signal_name(code), _phase(evidence, "build")
    if evidence.left.overrun is not None:
        return Failed(kind="out_of_memory", phase=phase, message=who + evidence.left.overrun)
    if name == "SIGKILL" and node in evidence.left.out_of_memory:
        return Failed(kind="out_of_memory", phase=phase, message=f"{who}killed by the kernel: the memory ran out")
    advice = _ADVICE.get(name)
    return Failed(kind="signal", phase=phase, message=who + (f"{name}: {advice}" if advice else name))


def _last_words(log: Path) -> str:
    """The last line that the worker said, where it died before it could report."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f" ({lines[-1].strip()[:200]})" if lines else ""
