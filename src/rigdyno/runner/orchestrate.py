"""Carries out a plan: for each cell launch, sample, collect, store. Draws nothing: it tells an observer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from rigdyno import __version__, catalogue
from rigdyno.clock import Clock, SystemClock, utc_now
from rigdyno.contracts import Launch, Launcher, Observer, Progress
from rigdyno.errors import DamagedRun, Interrupted
from rigdyno.plan.build import workload_of
from rigdyno.runner.live import LiveRate
from rigdyno.runner.outcome import Evidence, oom_kills, outcome_of
from rigdyno.runner.sampling import sampled
from rigdyno.runner.worker import work
from rigdyno.schema.record import Facts, Outcome, RunHead, RunRecord, Skipped, WorkerReport
from rigdyno.schema.spec import Cell
from rigdyno.store.files import disk_errors, read_json, write_json
from rigdyno.store.folder import RunFolder
from rigdyno.units import seconds_of_ns

TICK_SECONDS = 0.5


def time_limit_seconds(cell: Cell) -> float:
    """Generous: a machine under load is slow, not stuck. A step that never ends must not hang the run."""
    return 60.0 + 5.0 * cell.seconds


@dataclass(frozen=True)
class Orchestrator:
    folder: RunFolder
    head: RunHead
    observer: Observer
    clock: Clock = field(default_factory=SystemClock)

    def run(self) -> list[RunRecord]:
        """Every cell that has no record yet; the records just made."""
        plan = self.head.plan
        records: list[RunRecord] = []
        with self.folder.locked(), _termination_as_interrupt():
            self.observer.planned(plan, self.folder.path)
            try:
                for cell in plan.cells:
                    if not self.folder.is_finished(cell):
                        records.append(self._cell(cell))
            except KeyboardInterrupt:
                raise Interrupted(self._interrupted_message()) from None
            finally:
                self.observer.over()
        return records

    def _interrupted_message(self) -> str:
        done = sum(self.folder.is_finished(cell) for cell in self.head.plan.cells)
        total = len(self.head.plan.cells)
        return f"interrupted; {done} of {total} cells are kept. Go on with: rigdyno run --resume {self.folder.path}"

    def _cell(self, cell: Cell) -> RunRecord:
        self.observer.started(cell)
        folder = self.folder.fresh_cell_folder(cell)
        write_json(folder / "spec.json", cell.spec)
        started_at, began_ns = utc_now().isoformat(timespec="seconds"), self.clock.now_ns()
        if cell.refusal is not None:
            record = self._record(cell, Skipped(reason=cell.refusal))
        else:
            record = self._measured(cell, folder)
        seconds = seconds_of_ns(self.clock.now_ns() - began_ns)
        record = msgspec.structs.replace(record, started_at=started_at, seconds=round(seconds, 3))
        self.folder.write_record(record, cell)
        self.observer.finished(record)
        return record

    def _measured(self, cell: Cell, folder: Path) -> RunRecord:
        launcher: Launcher = catalogue.load("launcher", cell.spec.launcher)()
        kills_before = oom_kills()
        with sampled(folder) as sampling, disk_errors(folder):
            launch = launcher.start(cell.spec, folder, work)
            timed_out = self._watch(launch, cell, folder)
        exits = tuple(ended.code for ended in launch.exits())
        reports = [report for rank in range(cell.spec.world_size) if (report := _report(folder, rank)) is not None]
        evidence = Evidence(
            reports=tuple(reports),
            exit_codes=exits,
            timed_out_after=time_limit_seconds(cell) if timed_out else None,
            oom_killed=oom_kills() > kills_before,
            log=folder / "worker.0.log",
            began_stepping=(folder / "steps.0.rows").exists(),
        )
        record = self._record(cell, outcome_of(evidence), reports)
        files = tuple(sorted(path.name for path in folder.iterdir()))
        return msgspec.structs.replace(record, exit_codes=exits, sampler_exit_code=sampling.exit_code, files=files)

    def _watch(self, launch: Launch, cell: Cell, folder: Path) -> bool:
        """Sleeps until the workers are gone; whether they had to be stopped."""
        live = LiveRate(folder / "steps.0.rows")
        began_ns = self.clock.now_ns()
        unit = workload_of(cell.spec).unit
        try:
            while not launch.wait(TICK_SECONDS):
                seconds = seconds_of_ns(self.clock.now_ns() - began_ns)
                if seconds > time_limit_seconds(cell):
                    launch.stop()
                    return True
                share = min(0.99, seconds / max(cell.seconds, 0.1))
                self.observer.progress(Progress(cell, seconds, share, live.rate(), unit))
        except KeyboardInterrupt:
            launch.stop()
            raise
        return False

    def _record(self, cell: Cell, outcome: Outcome, reports: list[WorkerReport] | None = None) -> RunRecord:
        first = reports[0] if reports else None
        peaks = [report.peak_memory_bytes for report in reports or () if report.peak_memory_bytes is not None]
        environment = first.environment if first is not None else None
        return RunRecord(
            benchmark_version=_benchmark_version(cell),
            rigdyno_version=__version__,
            run=self.folder.name,
            cell=cell.name,
            suite=self.head.plan.suite,
            label=self.head.plan.label,
            repeat=cell.repeat,
            started_at="",
            spec=cell.spec,
            system=self.head.system,
            environment=environment or self.head.environment,
            facts=first.facts if first is not None else Facts(),
            outcome=outcome,
            peak_memory_bytes=sum(peaks) if peaks else None,
        )


def _benchmark_version(cell: Cell) -> int:
    return workload_of(cell.spec).version


def _report(folder: Path, rank: int) -> WorkerReport | None:
    try:
        return read_json(folder / f"worker.{rank}.json", WorkerReport)
    except DamagedRun:
        return None


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """`kill` and a closed terminal end a run as Ctrl-C does. Only the main thread may set handlers."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = [(number, signal.signal(number, interrupt)) for number in (signal.SIGTERM, signal.SIGHUP)]
    except ValueError:
        before = []
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
