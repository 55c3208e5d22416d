"""Rigdyno from Python: `rigdyno.run`, `rigdyno.duel`, `rigdyno.load`, `rigdyno.measure`.

The commands are made of the same pieces.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from rigdyno import catalogue
from rigdyno.analyse.answers import MARGIN
from rigdyno.analyse.attempts import with_attempts
from rigdyno.analyse.duel import duel_of
from rigdyno.analyse.limits import held_against_limits
from rigdyno.analyse.measure import CellData, measurements, without_idle
from rigdyno.clock import utc_now
from rigdyno.contracts import Observer
from rigdyno.errors import BadValue, NothingMeasured, RigdynoError, StoreError, UsageError
from rigdyno.launchers._nodes.secret import read_secret
from rigdyno.plan.build import is_inference, is_own_loop
from rigdyno.plan.campaign import ALL
from rigdyno.plan.duel import DEFAULT_SECONDS as DUEL_SECONDS
from rigdyno.plan.duel import DuelRequest, arm_request, expand_duel, require_one_configuration
from rigdyno.plan.expand import expand, require_sense
from rigdyno.plan.fit import FitRequest, expand_fit, require_sense_of_fit
from rigdyno.plan.load import Request, from_python, placed
from rigdyno.plan.preflight import look
from rigdyno.plan.run_options import OF_DUEL, message_for_python
from rigdyno.report.duel import duel_view, noise_sentence
from rigdyno.report.format_entry import entry_text
from rigdyno.report.plan_text import time_sentence
from rigdyno.report.process_figures import process_figures
from rigdyno.report.progress import Silent
from rigdyno.report.view import view_of
from rigdyno.rig.devices import accelerators_here, best_device
from rigdyno.rig.environment import describe_environment
from rigdyno.rig.system import describe_system
from rigdyno.rig.twin import require_same_rigdyno
from rigdyno.runner.orchestrate import Orchestrator
from rigdyno.runner.own_loop import OwnLoop
from rigdyno.runner.schedule import still_to_run
from rigdyno.runner.sessions import Sessions, open_sessions
from rigdyno.schema.comparison import Duel
from rigdyno.schema.dossier import Dossier
from rigdyno.schema.figure import Figure, with_distinct_keys
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import UNNAMED, RunHead, RunRecord
from rigdyno.schema.spec import IDLE, Plan, Value
from rigdyno.schema.system import System
from rigdyno.schema.view import View
from rigdyno.store.campaign import located
from rigdyno.store.folder import RunFolder, StoredCell
from rigdyno.store.location import runs_root, utf8
from rigdyno.units import seconds_from


@dataclass
class Run:
    """One stored run, and what its samples say."""

    folder: RunFolder
    head: RunHead
    warnings: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def cells(self) -> list[StoredCell]:
        return self.folder.cells(self.warnings)

    @property
    def records(self) -> list[RunRecord]:
        return [cell.record for cell in self.cells]

    @cached_property
    def measurements(self) -> list[Measurement]:
        found = figures([cell for cell in self.cells if cell.record.is_figure], self.warnings)
        return with_attempts(found, self.records)

    @cached_property
    def duel(self) -> Duel | None:
        """Of a duel, or of a suite's cheapest cell against itself."""
        plan = self.head.plan
        if plan.duel is None:
            return None
        arms = readable([cell for cell in self.cells if cell.record.pair is not None], self.warnings)
        return duel_of(arms, plan.duel)

    @cached_property
    def beside(self) -> list[Measurement]:
        """What a suite that asks for it shows beside its own figures: the idle rig, and an earlier run."""
        if not getattr(_suite_of(self.head.plan), "shows_idle", False):
            return []
        idle = [cell for cell in self.cells if cell.record.is_figure and cell.record.spec.workload == IDLE]
        return [*measurements(readable(idle, self.warnings)), *self._earlier()]

    def _earlier(self) -> list[Measurement]:
        if self.head.plan.beside is None:
            return []
        try:
            return load(self.head.plan.beside).measurements
        except RigdynoError as error:
            self.warnings.append(f"nothing is beside it: {error}")
            return []

    def view(self) -> View:
        saved_in = utf8(str(self.path))
        duel = self.duel
        if duel is not None and self.head.plan.is_duel:
            return duel_view(self.head, duel, saved_in, self._warnings())
        found = self.measurements
        noise = noise_sentence(duel, self.head.plan.noise_missing)
        beside = self.beside  # before the warnings, which it may add to
        return view_of(self.head, found, saved_in, self._warnings(), noise, beside)

    def dossier(self) -> Dossier:
        """What stands behind the view; reads every file of the run."""
        from rigdyno.report.dossier import dossier_of

        return dossier_of(self.head, self.folder, self.cells, self.measurements)

    def figures(self) -> tuple[Figure, ...]:
        """Those of the view, then of single processes: what they did over time, and how long their steps took."""
        own = () if self.head.plan.is_duel else tuple(process_figures(self.cells, self.measurements))
        return with_distinct_keys((*self.view().figures, *own))

    def _warnings(self) -> tuple[str, ...]:
        unfinished = self.unfinished()
        missing = () if unfinished is None else (utf8(f"{unfinished}; {self._resume()}"),)
        return (*self.remarks(), *missing)

    def remarks(self) -> tuple[str, ...]:
        """What can't be read, and why it took longer than it should."""
        late = time_sentence(self.head.plan, self.records)
        return tuple(utf8(text) for text in (*self.warnings, *(() if late is None else (late,))))

    def unfinished(self) -> str | None:
        """A duel leaves pairs over when it is decided or its time is up: that is no loss. Of those for a suite's own
        noise the report speaks anyway."""
        plan = self.head.plan
        if self.duel is not None and plan.duel is not None and plan.is_duel:
            fought, least = len(self.duel.pairs), plan.duel.least_pairs
            return f"{fought} of at least {least} pairs of processes are finished" if fought < least else None
        cells = [cell for cell in plan.cells if cell.is_planned]
        done = {record.cell for record in self.records if not record.is_to_run_again}
        missing, planned = sum(cell.name not in done for cell in cells), len(cells)
        return f"{missing} of {planned} cells are not finished" if missing > 0 else None

    @property
    def has_unbegun(self) -> bool:
        """Whether some configuration has no process at all: its time was up, or its nodes were gone."""
        begun = {record.spec.key() for record in self.records}
        return any(cell.pair is None and cell.spec.key() not in begun for cell in self.head.plan.runnable)

    def _resume(self) -> str:
        if self.folder.is_running():
            return "it is still running"
        if any(is_own_loop(cell.spec) for cell in self.head.plan.cells):
            return "the script that ran it must run again"
        if any(is_inference(cell.spec) for cell in self.head.plan.cells):
            return "run the same `rigdyno infer` again, and it goes on"
        return f"go on with: rigdyno run --resume {self.path}"


def _suite_of(plan: Plan) -> type | None:
    known = plan.suite in catalogue.names("suite")
    return catalogue.load("suite", plan.suite) if known and plan.suite is not None else None


def readable(cells: Sequence[StoredCell], warnings: list[str]) -> list[CellData]:
    """A file that can't be read is named in `warnings`, and the other cells still served."""
    found = []
    for cell in cells:
        try:
            found.append(CellData(cell.record, cell.steps(), cell.telemetry(), cell.phases()))
        except RigdynoError as error:
            warnings.append(f"skipped: {error}")
    return found


def figures(cells: Sequence[StoredCell], warnings: list[str]) -> list[Measurement]:
    return held_against_limits(without_idle(measurements(readable(cells, warnings))))


def load(path: str | Path) -> Run:
    """A run folder, or the name of one below ./runs."""
    folder = RunFolder.existing(located(runs_root(), str(path)))
    return Run(folder, folder.head())


def prepare(request: Request) -> RunHead:
    """Everything that is decided before anything is measured or written."""
    if request.target == ALL:
        raise UsageError("all suites at once are a command, `rigdyno run all`; run them one by one", key="target")
    require_sense(request)
    if request.beside is not None:
        load(request.beside)  # raises an error now, not when all is over
    return _head(lambda system, device: expand(request, system, device, look(system)))


def prepare_fit(request: FitRequest) -> RunHead:
    with placed(request.request.places):
        require_sense_of_fit(request)
    return _head(lambda system, device: expand_fit(request, system, device, look(system)))


def prepare_duel(request: DuelRequest) -> RunHead:
    for arm in (request.a, request.b):
        require_one_configuration(arm)
        require_sense(arm)
        if arm.python is not None:
            require_same_rigdyno(arm.python)
    return _head(lambda system, device: expand_duel(request, system, device, look(system)))


def _head(plan_for: Callable[[System, str], Plan]) -> RunHead:
    rig = look_at_rig()
    return RunHead.of(plan_for(rig.system, rig.device), rig.system, describe_environment())


@dataclass(frozen=True)
class Rig:
    """This machine, as it is now."""

    system: System
    device: str  # the best


def look_at_rig() -> Rig:
    accelerators = accelerators_here()
    return Rig(describe_system(accelerators), best_device(accelerators))


def sessions(
    head: RunHead,
    folder: RunFolder | None = None,
    secret: bytes | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> Sessions:
    """Meets the nodes before anything is measured or written. `folder`: of a run that is resumed."""
    left = still_to_run(head.plan, lambda cell: folder is not None and folder.is_finished(cell))
    return open_sessions(head, left, secret, say)


def start(head: RunHead, root: Path) -> RunFolder:
    folder = RunFolder.create(root, head.plan.name, utc_now())
    try:
        folder.write_head(head)
    except StoreError:
        shutil.rmtree(folder.path, ignore_errors=True)  # made just now, and nothing is in it
        raise
    return folder


def carry_out(
    folder: RunFolder,
    head: RunHead,
    observer: Observer | None = None,
    opened: Sessions | None = None,
    within_seconds: float | None = None,
) -> Run:
    """Runs what has no record yet."""
    with opened or sessions(head, folder) as met:
        Orchestrator(folder, head, observer or Silent(), met, within_seconds=within_seconds).run()
    finished = Run(folder, head)
    if not any(cell.refusal is None for cell in head.plan.cells):
        reasons = {cell.refusal for cell in head.plan.cells}
        raise NothingMeasured(f"nothing could be measured: {'; '.join(sorted(filter(None, reasons)))}")
    return finished


def _carried_out(head: RunHead, out: str | Path | None, secret: bytes | None = None) -> Run:
    with sessions(head, secret=secret) as opened:
        return carry_out(start(head, runs_root(None if out is None else Path(out))), head, opened=opened)


@contextmanager
def _named_as_in_python() -> Iterator[None]:
    """Messages speak of arguments, not of flags."""
    try:
        yield
    except RigdynoError as error:
        error.args = (message_for_python(str(error)),)
        raise


def run(
    target: str,
    *,
    options: Mapping[str, Value] | None = None,
    sweep: Mapping[str, Sequence[Value]] | None = None,
    memory: str | None = None,
    budget: str | float | None = None,
    steps: int | None = None,
    soak: str | float | None = None,
    idle: str | float | None = None,
    full: bool = False,
    repeat: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    ranks: int | None = None,
    cards: Sequence[int] | None = None,
    framework: str | Sequence[str] | None = None,
    beside: str | None = None,
    workload: str | None = None,
    until: str | None = None,
    audit: bool = False,
    nodes: int | None = None,
    hosts: str | Sequence[str] | None = None,
    remote_python: str | None = None,
    slurm: Mapping[str, Value] | None = None,
    rendezvous: str | None = None,
    secret_file: str | None = None,
    seed: int | None = None,
    label: str | None = None,
    update: str | None = None,
    arrangement: str | None = None,
    launcher: str | None = None,
    out: str | Path | None = None,
) -> Run:
    """What `rigdyno run TARGET` does: a suite, a workload, 'FILE.py:FUNCTION', or a plan file; arguments win over it.

    docs/options.md says what they mean. Of nodes that are started by hand, this is the first."""
    arguments = locals()
    with _named_as_in_python():
        return _carried_out(prepare(from_python(arguments)), out, read_secret(secret_file))


def duel(
    target: str,
    other: str | None = None,
    *,
    a: Mapping[str, Value] | None = None,
    b: Mapping[str, Value] | None = None,
    options: Mapping[str, Value] | None = None,
    device: str | None = None,
    threads: int | None = None,
    ranks: int | None = None,
    seed: int | None = None,
    label: str | None = None,
    update: str | None = None,
    budget: str | float = DUEL_SECONDS,
    margin: float = MARGIN,
    by: Literal["time", "joules"] = "time",
    out: str | Path | None = None,
) -> Run:
    """What `rigdyno duel TARGET [OTHER]` does; the answer is in `.duel.comparison`."""
    given = locals()
    with _named_as_in_python():
        common = {option.python_name: given[option.python_name] for option in OF_DUEL}
        arms = [
            arm_request(from_python({**common, "target": arm}), settings or {}, name)
            for arm, settings, name in ((target, a, "a"), (other or target, b, "b"))
        ]
        if by not in ("time", "joules"):
            raise BadValue(f"by is 'time' or 'joules', not {by!r}")
        seconds = seconds_from(budget)
        request = DuelRequest(a=arms[0], b=arms[1], budget_seconds=seconds, margin=margin, by=by, label=label)
        return _carried_out(prepare_duel(request), out)


def measure(
    name: str, *, unit: str = UNNAMED, label: str | None = None, out: str | Path | None = None, quiet: bool = False
) -> OwnLoop:
    """Around your own loop; call `meter.step(items=...)` at the end of every step, with the number of items that it
    did, not with a loss."""
    root = runs_root(None if out is None else Path(out))
    return OwnLoop(name, unit, root, label, done=(lambda _path: None) if quiet else _say)


def _say(path: Path) -> None:
    """One line when a user's own loop is over."""
    finished = load(path)
    for measurement in finished.measurements:
        rate = entry_text(measurement.throughput())
        print(f"rigdyno: {measurement.spec.workload}: {rate}, {measurement.status}; saved in {path}", file=sys.stderr)  # noqa: T201
