"""Campaigns whose processes are scripted: what a worker would leave is written at once, on a clock moved by hand."""

from __future__ import annotations

from rigdyno import api
from rigdyno.base.files import write_json
from rigdyno.features.campaign.plan import CampaignPlan
from rigdyno.features.campaign.run import Campaign, CampaignRunner, PreparedCampaign, create_campaign
from rigdyno.features.fit.search import next_attempt
from rigdyno.report.progress import SilentObserver
from rigdyno.runner.orchestrate import Orchestrator
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import Completed, Failed, WorkerReport
from rigdyno.schema.spec import Budget, Cell, RunPlan, RunSpec, assign_participants
from rigdyno.store.campaign import LeftOut
from scripted_sessions import Killed, ScriptedSessions
from support import ManualClock, a_head, rows_path, write_steps

START, MEASURE = 2.0, 6.0


class Workers(ScriptedSessions):
    """Sessions that count starts; the one numbered `kill_at` never finishes."""

    def __init__(self, clock, *, kill_at=None, with_files=False, seconds=START + MEASURE, fails=(), error=None):
        super().__init__()
        self.clock, self.kill_at, self.with_files, self.seconds = clock, kill_at, with_files, seconds
        self.fails, self.error = fails, error or Killed()

    def start(self, cell, folder):
        self.started.append(f"{folder.parent.parent.name.partition('.')[0]}/{cell.name}")
        if len(self.started) == self.kill_at and not self.with_files:
            raise self.error
        self.clock.advance(self.seconds)
        self.failed = self.started[-1] in self.fails
        outcome = Failed(kind="exception", phase="measure", message="ValueError: no") if self.failed else Completed()
        write_steps(rows_path(folder), [30_000_000 + (i * 618_034) % 1_000_000 for i in range(100)])
        write_json(CellFolder(folder).participant("rank0").report, WorkerReport(outcome=outcome, start_seconds=START))
        if len(self.started) == self.kill_at:
            raise self.error
        return self


def a_cell(number, refusal=None):
    spec = RunSpec(
        workload="tensor_add", options={"variant": "as_published", "size": number}, budget=Budget(seconds=MEASURE)
    )
    return Cell(
        name=f"{number:02d}-add",
        spec=spec,
        seconds=START + MEASURE,
        participants=assign_participants(1, 1, "cpu"),
        refusal=refusal,
    )


def a_plan(suite, cells=2, **changes):
    laid_out_cells = tuple(a_cell(number) for number in range(1, cells + 1))
    fields = {"name": suite, "suite": suite, "cells": laid_out_cells, "budget_seconds": cells * (START + MEASURE)}
    return RunPlan(**{**fields, **changes})


def begun(root, *plans, left_out=(), label=None) -> Campaign:
    """Make a campaign of these plans, with nothing measured yet."""
    budget = sum(plan.budget_seconds for plan in plans)
    planned = CampaignPlan(plans, tuple(LeftOut(suite=name, reason=why) for name, why in left_out), budget)
    heads = tuple(a_head((), plan=plan) for plan in plans)
    return create_campaign(PreparedCampaign(planned, heads, "Test CPU, 2 cores", label), root, api.load)


def conduct(campaign, *, workers=None, observe=lambda stage: SilentObserver(), **script):
    """Return the starts that it made, and whether it finished."""
    clock = workers.clock if workers is not None else ManualClock()
    workers = workers or Workers(clock, **script)

    def carry_out(folder, head, observer, within):
        Orchestrator(folder, head, observer, workers, next_attempt, clock, within_seconds=within).run()

    try:
        CampaignRunner(campaign, carry_out, observe, clock).conduct()
    except Killed:
        return workers.started, False
    return workers.started, True
