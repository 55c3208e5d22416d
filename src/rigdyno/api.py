"""The Python interface: `rigdyno.run`, `rigdyno.duel`, `rigdyno.load`, `rigdyno.measure`.

The commands call the same functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from rigdyno import catalogue
from rigdyno.analyse.comparison import MARGIN
from rigdyno.analyse.measurements import measurements, without_idle
from rigdyno.analyse.pairs import analyse_pairs
from rigdyno.analyse.process import CellData
from rigdyno.analyse.validity.verdict import apply_limits
from rigdyno.base.errors import BadValue, NothingMeasured, RigdynoError, UsageError
from rigdyno.base.units import seconds_from
from rigdyno.contracts import Observer, Suite
from rigdyno.features.campaign import run as campaign
from rigdyno.features.campaign.plan import ALL
from rigdyno.features.campaign.run import Campaign
from rigdyno.features.duel.plan import DEFAULT_SECONDS as DUEL_SECONDS
from rigdyno.features.duel.plan import DuelRequest, arm_request, expand_duel, require_one_configuration
from rigdyno.features.duel.report import duel_view
from rigdyno.features.duel.same_version import require_same_rigdyno
from rigdyno.features.fit.plan import FitRequest, expand_fit, require_sense_of_fit
from rigdyno.features.fit.report import fit_section
from rigdyno.features.fit.search import add_attempts, next_attempt
from rigdyno.launchers.nodes.streams import read_secret
from rigdyno.plan.build import is_inference, is_own_loop, suite_of
from rigdyno.plan.expand import expand, require_sense
from rigdyno.plan.request import Request, from_python, locate_errors
from rigdyno.plan.resources import Resources, read_resources
from rigdyno.plan.run_options import OF_DUEL, message_for_python
from rigdyno.report.noise import describe_noise
from rigdyno.report.plan_text import explain_overrun
from rigdyno.report.process_figures import draw_process_figures
from rigdyno.report.progress import SilentObserver
from rigdyno.report.text import format_entry
from rigdyno.report.view import make_view
from rigdyno.rig.devices import describe_rig
from rigdyno.rig.environment import describe_environment
from rigdyno.runner.here import OwnLoop
from rigdyno.runner.orchestrate import Orchestrator, create_run
from rigdyno.runner.sessions import Sessions, open_run_sessions
from rigdyno.schema.comparison import Duel
from rigdyno.schema.figure import Figure, with_distinct_keys
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import UNNAMED, RunHead, RunRecord
from rigdyno.schema.spec import IDLE, RunPlan, Value
from rigdyno.schema.system import System
from rigdyno.schema.view import Dossier, View
from rigdyno.store.campaign import find_run
from rigdyno.store.folder import RunFolder, StoredCell
from rigdyno.store.location import runs_root, utf8


@dataclass
class Run:
    """One stored run, and the figures derived from its samples."""

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
        found = measure_cells([cell for cell in self.cells if cell.record.is_figure], self.warnings)
        return add_attempts(found, self.records)

    @cached_property
    def duel(self) -> Duel | None:
        """Return the result of a duel, or of the duel of a suite's cheapest cell with itself; None without one."""
        plan = self.head.plan
        if plan.duel is None:
            return None
        arms = read_cells([cell for cell in self.cells if cell.record.pair is not None], self.warnings)
        return analyse_pairs(arms, plan.duel)

    @cached_property
    def beside(self) -> list[Measurement]:
        """Return the figures of the idle machine and of an earlier run, for suites that show them with their own."""
        suite = _load_suite(self.head.plan)
        if suite is None or not suite.shows_idle:
            return []
        idle = [cell for cell in self.cells if cell.record.is_figure and cell.record.spec.workload == IDLE]
        return [*measurements(read_cells(idle, self.warnings)), *self._load_earlier()]

    def _load_earlier(self) -> list[Measurement]:
        if self.head.plan.beside is None:
            return []
        try:
            return load(self.head.plan.beside).measurements
        except RigdynoError as error:
            self.warnings.append(f"the earlier run isn't shown: {error}")
            return []

    def view(self) -> View:
        saved_in = utf8(str(self.path))
        duel = self.duel
        if duel is not None and self.head.plan.is_duel:
            return duel_view(self.head, duel, saved_in, self._all_warnings())
        found = self.measurements
        noise = describe_noise(duel, self.head.plan.noise_missing)
        beside = self.beside  # may add warnings, so it must come before them
        return make_view(self.head, found, saved_in, self._all_warnings(), noise, beside, sections=(fit_section,))

    def dossier(self) -> Dossier:
        """Return the evidence for the view; reads every file of the run."""
        from rigdyno.report.dossier import make_dossier

        return make_dossier(self.head, self.folder, self.cells, self.measurements)

    def figures(self) -> tuple[Figure, ...]:
        """Return the figures of the view, then those of single processes: rate over time and step times."""
        own = () if self.head.plan.is_duel else tuple(draw_process_figures(self.cells, self.measurements))
        return with_distinct_keys((*self.view().figures, *own))

    def _all_warnings(self) -> tuple[str, ...]:
        unfinished = self.unfinished()
        missing = () if unfinished is None else (utf8(f"{unfinished}; {self._how_to_resume()}"),)
        return (*self.remarks(), *missing)

    def remarks(self) -> tuple[str, ...]:
        """Return warnings about files that can't be read, and the reason if the run took longer than planned."""
        late = explain_overrun(self.head.plan, self.records)
        return tuple(utf8(text) for text in (*self.warnings, *(() if late is None else (late,))))

    def unfinished(self) -> str | None:
        """Say how many cells aren't finished; None if all are.

        Pairs that a duel leaves out because it is decided or out of time don't count. Neither do the pairs for the
        noise of a suite, which the report mentions anyway.
        """
        plan = self.head.plan
        if self.duel is not None and plan.duel is not None and plan.is_duel:
            finished, least = len(self.duel.pairs), plan.duel.least_pairs
            return f"{finished} of at least {least} pairs of processes are finished" if finished < least else None
        cells = [cell for cell in plan.cells if cell.is_planned]
        done = {record.cell for record in self.records if not record.is_to_run_again}
        missing, planned = sum(cell.name not in done for cell in cells), len(cells)
        return f"{missing} of {planned} cells are not finished" if missing > 0 else None

    @property
    def has_unbegun(self) -> bool:
        """Return whether a configuration has no process at all, because time was up or its nodes were lost."""
        begun = {record.spec.key() for record in self.records}
        return any(cell.pair is None and cell.spec.key() not in begun for cell in self.head.plan.runnable)

    def _how_to_resume(self) -> str:
        if self.folder.is_running():
            return "it is still running"
        if any(is_own_loop(cell.spec) for cell in self.head.plan.cells):
            return "the script that ran it must run again"
        if any(is_inference(cell.spec) for cell in self.head.plan.cells):
            return "run the same `rigdyno infer` again, and it goes on"
        return f"go on with: rigdyno run --resume {self.path}"


def _load_suite(plan: RunPlan) -> type[Suite] | None:
    known = plan.suite in catalogue.names("suite")
    return catalogue.load("suite", plan.suite) if known and plan.suite is not None else None


def read_cells(cells: Sequence[StoredCell], warnings: list[str]) -> list[CellData]:
    """Read the samples of cells. A cell that can't be read is skipped, with a note in `warnings`."""
    found = []
    for cell in cells:
        try:
            found.append(CellData(cell.record, cell.steps(), cell.telemetry(), cell.phases()))
        except RigdynoError as error:
            warnings.append(f"skipped: {error}")
    return found


def measure_cells(cells: Sequence[StoredCell], warnings: list[str]) -> list[Measurement]:
    return apply_limits(without_idle(measurements(read_cells(cells, warnings))))


def load(path: str | Path) -> Run:
    """Load a run from its folder, or by its name in ./runs."""
    folder = RunFolder.existing(find_run(runs_root(), str(path)))
    return Run(folder, folder.head())


def load_campaign(path: Path) -> Campaign:
    """Load the runs of all suites that `rigdyno run all` has made."""
    return campaign.load_campaign(path, load)


def prepare(request: Request) -> RunHead:
    """Plan a run and describe the machine, before anything is measured or written."""
    if request.target == ALL:
        raise UsageError("`rigdyno run all` works only on the command line; run one suite at a time", key="target")
    require_sense(request)
    if request.target in catalogue.names("suite"):
        earlier = suite_of(request).earlier_run
        if earlier is not None:
            load(earlier)  # raises an error now, not at the end
    return _make_head(lambda system, device: expand(request, system, device, read_resources(system)))


def prepare_fit(request: FitRequest) -> RunHead:
    with locate_errors(request.request.places):
        require_sense_of_fit(request)
    return _make_head(lambda system, device: expand_fit(request, system, device, read_resources(system)))


def prepare_duel(request: DuelRequest) -> RunHead:
    for arm in (request.a, request.b):
        require_one_configuration(arm)
        require_sense(arm)
        if arm.python is not None:
            require_same_rigdyno(arm.python)
    return _make_head(lambda system, device: expand_duel(request, system, device, read_resources(system)))


def _make_head(plan_for: Callable[[System, str], RunPlan]) -> RunHead:
    rig = describe_rig()
    return RunHead.of(plan_for(rig.system, rig.device), rig.system, describe_environment())


def carry_out(
    folder: RunFolder,
    head: RunHead,
    observer: Observer | None = None,
    opened: Sessions | None = None,
    within_seconds: float | None = None,
) -> Run:
    """Run all cells that have no record yet."""
    with opened or open_run_sessions(head, folder) as sessions:
        observer = observer or SilentObserver()
        Orchestrator(folder, head, observer, sessions, next_attempt, within_seconds=within_seconds).run()
    finished = Run(folder, head)
    if not any(cell.refusal is None for cell in head.plan.cells):
        reasons = {cell.refusal for cell in head.plan.cells}
        raise NothingMeasured(f"nothing could be measured: {'; '.join(sorted(filter(None, reasons)))}")
    return finished


def carry_out_within(folder: RunFolder, head: RunHead, observer: Observer, seconds: float) -> Run:
    """Run all cells that have no record yet, as one part of a campaign."""
    return carry_out(folder, head, observer, within_seconds=seconds)


def measure_head(head: RunHead, root: Path) -> list[StoredCell]:
    """Carry out a plan in a new folder below `root`, and return its cells."""
    with open_run_sessions(head) as opened:
        return carry_out(create_run(head, root), head, opened=opened).cells


def plan_even_duel(request: Request, system: System, resources: Resources) -> RunPlan:
    """Plan a short duel of a configuration with itself."""
    return expand_duel(DuelRequest(a=request, b=request, budget_seconds=60.0), system, "cpu", resources)


def _run_in_new_folder(head: RunHead, out: str | Path | None, secret: bytes | None = None) -> Run:
    with open_run_sessions(head, secret=secret) as opened:
        return carry_out(create_run(head, runs_root(None if out is None else Path(out))), head, opened=opened)


@contextmanager
def _python_messages() -> Iterator[None]:
    """Reword error messages to name Python arguments instead of command-line flags."""
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
    """Measure a suite, a workload, 'FILE.py:FUNCTION' or a plan file, like `rigdyno run TARGET`.

    Arguments override the plan file; docs/options.md explains them. If nodes are started by hand, this is the first.
    """
    arguments = locals()
    with _python_messages():
        return _run_in_new_folder(prepare(from_python(arguments)), out, read_secret(secret_file))


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
    """Compare two configurations, like `rigdyno duel TARGET [OTHER]`; the answer is in `.duel.comparison`."""
    given = locals()
    with _python_messages():
        common = {option.python_name: given[option.python_name] for option in OF_DUEL}
        arms = [
            arm_request(from_python({**common, "target": arm}), settings or {}, name)
            for arm, settings, name in ((target, a, "a"), (other or target, b, "b"))
        ]
        if by not in ("time", "joules"):
            raise BadValue(f"by must be 'time' or 'joules', not {by!r}")
        seconds = seconds_from(budget)
        request = DuelRequest(a=arms[0], b=arms[1], budget_seconds=seconds, margin=margin, by=by, label=label)
        return _run_in_new_folder(prepare_duel(request), out)


def measure(
    name: str, *, unit: str = UNNAMED, label: str | None = None, out: str | Path | None = None, quiet: bool = False
) -> OwnLoop:
    """Measure your own loop: use it as a context manager around the loop.

    Call `meter.step(items=...)` at the end of every step, with the number of items processed, not with a loss.
    """
    root = runs_root(None if out is None else Path(out))
    return OwnLoop(name, unit, root, label, done=(lambda _path: None) if quiet else _print_result)


def _print_result(path: Path) -> None:
    """Print one line when a user's own loop is over."""
    finished = load(path)
    for measurement in finished.measurements:
        rate = format_entry(measurement.throughput())
        print(f"rigdyno: {measurement.spec.workload}: {rate}, {measurement.status}; saved in {path}", file=sys.stderr)  # noqa: T201
