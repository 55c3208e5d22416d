"""How a cell ended, from what its processes left behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rigdyno.processes import signal_name
from rigdyno.schema.record import Completed, Failed, Outcome, Phase, Skipped, WorkerReport
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
    reports: tuple[WorkerReport, ...]  # of the ranks that left one
    exit_codes: tuple[int, ...]
    timed_out_after: float | None
    oom_killed: bool
    log: Path
    began_stepping: bool


def outcome_of(evidence: Evidence) -> Outcome:
    """A report counts more than an exit code: some processes abort after everything is done."""
    for kind in (Failed, Skipped):
        for report in evidence.reports:
            if isinstance(report.outcome, kind):
                return report.outcome
    if evidence.reports and len(evidence.reports) >= len(evidence.exit_codes):
        completed = evidence.reports[0].outcome
        assert isinstance(completed, Completed)
        return completed
    return _without_report(evidence)


def _without_report(evidence: Evidence) -> Failed:
    phase: Phase = "measure" if evidence.began_stepping else "build"
    if evidence.timed_out_after is not None:
        return Failed(kind="timeout", phase=phase, message=f"no end after {show_seconds(evidence.timed_out_after)}")
    code = next((code for code in evidence.exit_codes if code != 0), 0)
    if code < 0:
        return _by_signal(code, phase, evidence)
    phase = "measure" if evidence.began_stepping else "start"
    return Failed(kind="exit", phase=phase, message=f"left no report, exit code {code}{_last_words(evidence.log)}")


def _by_signal(code: int, phase: Phase, evidence: Evidence) -> Failed:
    name = signal_name(code)
    if name == "SIGKILL" and evidence.oom_killed:
        return Failed(kind="out_of_memory", phase=phase, message="killed by the kernel: the memory ran out")
    advice = _ADVICE.get(name)
    return Failed(kind="signal", phase=phase, message=f"{name}: {advice}" if advice else name)


def _last_words(log: Path) -> str:
    """The last line that the worker said, where it died before it could report."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f" ({lines[-1].strip()[:200]})" if lines else ""


def oom_kills() -> int:
    """How many processes the kernel has ended for want of memory, cgroups included; 0 where it doesn't say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)
