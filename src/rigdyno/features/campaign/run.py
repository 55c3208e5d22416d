"""Run a campaign: all suites planned together, run one after the other within one budget, and resumed as one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rigdyno import __version__
from rigdyno.base.clock import Clock, Stopwatch, SystemClock, utc_now
from rigdyno.base.errors import DamagedRun, Interrupted, NewerStore, RigdynoError, StoreError, UsageError
from rigdyno.base.processes import termination_as_interrupt
from rigdyno.contracts import Observer
from rigdyno.features.campaign.plan import ALL, CampaignPlan, plan_campaign, require_for_all
from rigdyno.features.campaign.report import SuiteReport, card_view
from rigdyno.plan.budget import LEAST_SECONDS
from rigdyno.plan.expand import expand
from rigdyno.plan.request import Request, locate_errors
from rigdyno.plan.resources import read_resources
from rigdyno.report.progress import SilentObserver, Stage
from rigdyno.rig.devices import describe_rig
from rigdyno.rig.environment import describe_environment
from rigdyno.runner.orchestrate import spent_on_spares
from rigdyno.runner.schedule import LATE, seconds_needed, still_to_run
from rigdyno.schema.record import RunHead
from rigdyno.schema.spec import Cell
from rigdyno.schema.view import View
from rigdyno.store.campaign import CampaignFolder, CampaignHead, SuiteRun, is_campaign
from rigdyno.store.folder import RunFolder
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.api import Run

Load = Callable[[Path], "Run"]

CarryOut = Callable[[RunFolder, RunHead, Observer, float], object]


@dataclass
class Campaign:
    """A stored campaign."""

    folder: CampaignFolder
    head: CampaignHead
    load: Load  # reads one of its runs
    troubles: dict[str, str] = field(default_factory=dict)  # by suite: why it couldn't be run or read

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Return the runs by suite; one that can't be read is added to the troubles."""
        found = {}
        for each in self.head.runs:
            try:
                found[each.suite] = self.load(self.folder.path / each.run)
            except RigdynoError as error:
                self.troubles.setdefault(each.suite, str(error))
        return found

    def views(self) -> list[View]:
        """Return the card, followed by the views of its suites."""
        reports = [self._report_of(each.suite) for each in self.head.runs]
        card = card_view(self.head, reports, utf8(str(self.folder.path)), running=self.folder.is_running())
        return [card, *(report.view for report in reports if report.view is not None)]

    def _report_of(self, suite: str) -> SuiteReport:
        run = self.runs.get(suite)
        try:
            view = None if run is None else run.view()
        except RigdynoError as error:
            self.troubles.setdefault(suite, str(error))
            view = None
        trouble = utf8(self.troubles[suite]) if suite in self.troubles else None
        if run is None or view is None:
            return SuiteReport(suite, None, trouble=trouble)
        return SuiteReport(suite, view, run.remarks(), run.unfinished(), trouble)


def load_campaign(path: Path, load: Load) -> Campaign:
    if not is_campaign(path):
        raise UsageError(f"{path} is not a campaign: `rigdyno run all` makes one")
    folder = CampaignFolder(path)
    return Campaign(folder, folder.head(), load)


@dataclass(frozen=True)
class PreparedCampaign:
    """Everything that is decided before a campaign measures or writes anything."""

    plan: CampaignPlan
    heads: tuple[RunHead, ...]
    rig: str
    label: str | None


def prepare_campaign(request: Request) -> PreparedCampaign:
    with locate_errors(request.places):
        require_for_all(request)  # first, because describing the machine takes seconds
    rig, environment = describe_rig(), describe_environment()
    resources = read_resources(rig.system)
    with locate_errors(request.places):
        plan = plan_campaign(request, lambda each: expand(each, rig.system, rig.device, resources))
    heads = tuple(RunHead.of(each, rig.system, environment) for each in plan.plans)
    return PreparedCampaign(plan, heads, rig.system.line(), request.label)


def create_campaign(prepared: PreparedCampaign, root: Path, load: Load) -> Campaign:
    """Create the folder of a campaign, with an empty run for each suite."""
    now = utc_now()
    folder = CampaignFolder.create(root, ALL, now)
    try:
        head = CampaignHead(
            rigdyno_version=__version__,
            created_at=now.isoformat(timespec="seconds"),
            label=prepared.label,
            rig=prepared.rig,
            budget_seconds=prepared.plan.budget_seconds,
            runs=tuple(_create_run(folder, each, now) for each in prepared.heads),
            left_out=prepared.plan.left_out,
        )
        folder.write_head(head)
    except (StoreError, KeyboardInterrupt):
        shutil.rmtree(folder.path, ignore_errors=True)  # just created: it holds no results
        raise
    return Campaign(folder, head, load)


def _create_run(folder: CampaignFolder, head: RunHead, now: datetime) -> SuiteRun:
    run = RunFolder.create(folder.path, head.plan.name, now)
    run.write_head(head)
    seconds = head.plan.budget_seconds or head.plan.seconds
    return SuiteRun(suite=head.plan.suite or head.plan.name, run=run.name, seconds=seconds)


@dataclass
class SuiteShare:
    """The cells of one suite that are still to run, and their time."""

    suite: str
    folder: RunFolder
    head: RunHead
    left: list[Cell]  # cells that are still to run
    seconds: float  # that these need

    @classmethod
    def of(cls, run: Run) -> SuiteShare:
        plan, folder = run.head.plan, run.folder
        left = still_to_run(plan, folder.is_finished)
        seconds = seconds_needed(plan, left, spent_on_spares(plan, folder))
        return cls(plan.suite or plan.name, folder, run.head, left, seconds)

    @property
    def least_seconds(self) -> float:
        """Return the least time in which its shortest cell gives a result."""
        return min((each.seconds - each.spec.budget.seconds + LEAST_SECONDS for each in self.left), default=0.0)


@dataclass
class CampaignRunner:
    """Runs everything that has no record yet, suite by suite.

    Time that a suite leaves over, or takes beyond its share, is shared among the suites after it.
    """

    campaign: Campaign
    carry_out: CarryOut
    observe: Callable[[Stage], Observer] = lambda stage: SilentObserver()
    clock: Clock = field(default_factory=SystemClock)

    def conduct(self) -> None:
        folder = self.campaign.folder
        with folder.locked(), termination_as_interrupt():
            try:
                shares = [SuiteShare.of(run) for run in self.campaign.runs.values()]
                stopwatch, allowed = Stopwatch(self.clock), sum(share.seconds for share in shares)
                for number, share in enumerate(shares):
                    left = allowed - stopwatch.seconds
                    if number and share.left and left + LATE * allowed < share.least_seconds:
                        self.campaign.troubles[share.suite] = "no time was left for it"
                        continue
                    self._run(share, left, shares[number:], sum(each.seconds for each in shares[:number]))
            except (KeyboardInterrupt, Interrupted):
                raise Interrupted(self._interrupted_message()) from None
        del self.campaign.runs  # the cached ones are out of date

    def _run(self, share: SuiteShare, left_seconds: float, to_come: list[SuiteShare], before: float) -> None:
        """Run one suite. Its failure doesn't stop the others; an error of the store, such as a full disk, does."""
        behind = sum(each.seconds for each in to_come) - share.seconds
        whole = share.seconds + behind
        within = left_seconds * share.seconds / whole if whole > 0 else 0.0
        observer = self.observe(Stage(share.suite, before, behind))
        try:
            self.carry_out(share.folder, share.head, observer, within)
        except (DamagedRun, NewerStore) as error:
            self.campaign.troubles[share.suite] = str(error)
        except (StoreError, Interrupted):
            raise
        except RigdynoError as error:
            self.campaign.troubles[share.suite] = str(error)

    def _interrupted_message(self) -> str:
        runs = self.campaign.runs.values()
        done = sum(not still_to_run(run.head.plan, run.folder.is_finished) for run in runs)
        kept = f"{done} of {len(runs)} suites are finished, and what others have measured is kept"
        return f"interrupted; {kept}. Go on with: rigdyno run --resume {self.campaign.folder.path}"
