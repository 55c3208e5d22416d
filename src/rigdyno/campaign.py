"""All suites in one undertaking: planned together, run one after the other in one time, resumed as one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from rigdyno import __version__, api
from rigdyno.clock import Clock, SystemClock, utc_now
from rigdyno.contracts import Observer
from rigdyno.errors import DamagedRun, Interrupted, NewerStore, RigdynoError, StoreError, UsageError
from rigdyno.plan.budget import LEAST_SECONDS
from rigdyno.plan.campaign import ALL, CampaignPlan, plan_campaign, require_for_all
from rigdyno.plan.expand import expand
from rigdyno.plan.load import Request, placed
from rigdyno.plan.preflight import look
from rigdyno.report.campaign import SuiteReport, card_view
from rigdyno.report.progress import Silent, Stage
from rigdyno.rig.environment import describe_environment
from rigdyno.runner.orchestrate import spent_on_spares
from rigdyno.runner.schedule import LATE, seconds_needed, still_to_run
from rigdyno.runner.signals import termination_as_interrupt
from rigdyno.schema.campaign import CampaignHead, SuiteRun
from rigdyno.schema.record import RunHead
from rigdyno.schema.spec import Cell
from rigdyno.schema.view import View
from rigdyno.store.campaign import CampaignFolder, is_campaign
from rigdyno.store.folder import RunFolder
from rigdyno.store.location import utf8
from rigdyno.units import seconds_of_ns


@dataclass
class Campaign:
    """One that is stored."""

    folder: CampaignFolder
    head: CampaignHead
    troubles: dict[str, str] = field(default_factory=dict)  # of suites that couldn't be run, or read, by their names

    @cached_property
    def runs(self) -> dict[str, api.Run]:
        """By their suites. One that can't be read is named among the troubles."""
        found = {}
        for each in self.head.runs:
            try:
                found[each.suite] = api.load(self.folder.path / each.run)
            except RigdynoError as error:
                self.troubles.setdefault(each.suite, str(error))
        return found

    def views(self) -> list[View]:
        """The card, and what it is taken from."""
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


def load(path: Path) -> Campaign:
    if not is_campaign(path):
        raise UsageError(f"{path} is not a campaign: `rigdyno run all` makes one")
    folder = CampaignFolder(path)
    return Campaign(folder, folder.head())


@dataclass(frozen=True)
class Prepared:
    """Everything that is decided before anything is measured or written."""

    plan: CampaignPlan
    heads: tuple[RunHead, ...]
    rig: str
    label: str | None


def prepare(request: Request) -> Prepared:
    with placed(request.places):
        require_for_all(request)  # before a look at the machine, which takes seconds
    rig, environment = api.look_at_rig(), describe_environment()
    resources = look(rig.system)
    with placed(request.places):
        plan = plan_campaign(request, lambda each: expand(each, rig.system, rig.device, resources))
    heads = tuple(RunHead.of(each, rig.system, environment) for each in plan.plans)
    return Prepared(plan, heads, rig.system.line(), request.label)


def start(prepared: Prepared, root: Path) -> Campaign:
    """All of its runs, with nothing in them yet, and the file that makes them one."""
    now = utc_now()
    folder = CampaignFolder.create(root, ALL, now)
    try:
        head = CampaignHead(
            rigdyno_version=__version__,
            created_at=now.isoformat(timespec="seconds"),
            label=prepared.label,
            rig=prepared.rig,
            budget_seconds=prepared.plan.budget_seconds,
            runs=tuple(_begun(folder, each, now) for each in prepared.heads),
            left_out=prepared.plan.left_out,
        )
        folder.write_head(head)
    except (StoreError, KeyboardInterrupt):
        shutil.rmtree(folder.path, ignore_errors=True)  # made just now, and nothing is in it
        raise
    return Campaign(folder, head)


def _begun(folder: CampaignFolder, head: RunHead, now: datetime) -> SuiteRun:
    run = RunFolder.create(folder.path, head.plan.name, now)
    run.write_head(head)
    seconds = head.plan.budget_seconds or head.plan.seconds
    return SuiteRun(suite=head.plan.suite or head.plan.name, run=run.name, seconds=seconds)


CarryOut = Callable[[RunFolder, RunHead, Observer, float], object]


def carry_out_run(folder: RunFolder, head: RunHead, observer: Observer, within_seconds: float) -> None:
    api.carry_out(folder, head, observer, within_seconds=within_seconds)


@dataclass
class Leg:
    """One suite's part of the way."""

    suite: str
    folder: RunFolder
    head: RunHead
    left: list[Cell]  # that are still to run
    seconds: float  # that they need

    @classmethod
    def of(cls, run: api.Run) -> Leg:
        plan, folder = run.head.plan, run.folder
        left = still_to_run(plan, folder.is_finished)
        seconds = seconds_needed(plan, left, spent_on_spares(plan, folder))
        return cls(plan.suite or plan.name, folder, run.head, left, seconds)

    @property
    def least_seconds(self) -> float:
        """Until its first cell has said something."""
        return min((each.seconds - each.spec.budget.seconds + LEAST_SECONDS for each in self.left), default=0.0)


@dataclass
class Conductor:
    """Runs what has no record yet, suite by suite. What one leaves of its time, or takes of the others', is shared
    out among those that are still to come."""

    campaign: Campaign
    observe: Callable[[Stage], Observer] = lambda stage: Silent()
    clock: Clock = field(default_factory=SystemClock)
    carry_out: CarryOut = carry_out_run

    def conduct(self) -> None:
        folder = self.campaign.folder
        with folder.locked(), termination_as_interrupt():
            try:
                legs = [Leg.of(run) for run in self.campaign.runs.values()]
                began_ns, allowed = self.clock.now_ns(), sum(leg.seconds for leg in legs)
                for number, leg in enumerate(legs):
                    left = allowed - seconds_of_ns(self.clock.now_ns() - began_ns)
                    if number and leg.left and left + LATE * allowed < leg.least_seconds:
                        self.campaign.troubles[leg.suite] = "no time was left for it"
                        continue
                    self._run(leg, left, legs[number:], sum(each.seconds for each in legs[:number]))
            except (KeyboardInterrupt, Interrupted):
                raise Interrupted(self._interrupted_message()) from None
        del self.campaign.runs  # as they were before

    def _run(self, leg: Leg, left_seconds: float, to_come: list[Leg], before: float) -> None:
        """One that fails or can't go on doesn't take the others along; a disk that is full does."""
        behind = sum(each.seconds for each in to_come) - leg.seconds
        whole = leg.seconds + behind
        within = left_seconds * leg.seconds / whole if whole > 0 else 0.0
        observer = self.observe(Stage(leg.suite, before, behind))
        try:
            self.carry_out(leg.folder, leg.head, observer, within)
        except (DamagedRun, NewerStore) as error:
            self.campaign.troubles[leg.suite] = str(error)
        except (StoreError, Interrupted):
            raise
        except RigdynoError as error:
            self.campaign.troubles[leg.suite] = str(error)

    def _interrupted_message(self) -> str:
        runs = self.campaign.runs.values()
        done = sum(not still_to_run(run.head.plan, run.folder.is_finished) for run in runs)
        kept = f"{done} of {len(runs)} suites are finished, and what others have measured is kept"
        return f"interrupted; {kept}. Go on with: rigdyno run --resume {self.campaign.folder.path}"
