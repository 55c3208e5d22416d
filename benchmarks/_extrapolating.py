"""Try an extrapolation once: some processes measure a sample each, and another one runs the whole job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from _bars import Allowance, Bar, share_bar
from msgspec.structs import replace

from rigdyno import api
from rigdyno.analyse.extrapolation import seconds_for, spread_between
from rigdyno.plan.request import Request
from rigdyno.report.progress import make_observer
from rigdyno.runner.orchestrate import create_run
from rigdyno.runner.sessions import open_run_sessions
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Budget

PROCESSES = 3  # of a sample, as the volume suite has them of what it extrapolates to hours


class Case(NamedTuple):
    name: str
    request: Request
    items: float  # of the whole
    steps: int  # that the whole takes
    sampled: Budget


def hit_bars(cases: Sequence[Case], allowance: Allowance, tries: int, out: Path) -> list[Bar]:
    """Require 9 of 10 tries to hit; bars are on the values, as ten are too few for an interval to be on one side."""
    hits: dict[str, list[bool]] = {case.name: [] for case in cases}
    for _ in allowance.rounds(least=1, most=tries):
        sampled = measured(cases, [case.sampled for case in cases], out, PROCESSES)
        wholes = measured(cases, [Budget(seconds=60.0, job_steps=case.steps) for case in cases], out, 1)
        spread = spread_between(sampled)
        for case, sample, whole in zip(cases, sampled, wholes, strict=True):
            hits[case.name].append(hit(case, seconds_for(case.items, sample, spread), whole))
    return [share_bar(name, each, 0.9, "least", on_value=True) for name, each in hits.items()]


def hit(case: Case, predicted: Estimate | Missing, run: Measurement) -> bool:
    """Return whether the time of the whole job is in the interval predicted from the sample."""
    whole = seconds_for(case.items, run)
    if not isinstance(predicted, Estimate) or not isinstance(whole, Estimate) or run.job is None:
        raise SystemExit(f"{case.name}: a run was lost: {run.why_missing()}")
    low, high = predicted.ends
    ratio = whole.value / predicted.value
    print(f"{case.name}: {low:.3g} to {high:.3g} s predicted, {whole.value:.3g} s taken ({ratio:.3f})", flush=True)
    return low <= whole.value <= high


def measured(cases: Sequence[Case], budgets: Sequence[Budget], out: Path, processes: int) -> list[Measurement]:
    """Make one try of each case, in order; their processes take turns, like those of the rows of a suite."""
    heads = [api.prepare(replace(case.request, repeat=processes)) for case in cases]
    cells = [
        [replace(cell, spec=replace(cell.spec, budget=budget)) for cell in head.plan.cells]
        for head, budget in zip(heads, budgets, strict=True)
    ]
    in_turns = tuple(cell for turn in zip(*cells, strict=True) for cell in turn)
    head = replace(heads[0], plan=replace(heads[0].plan, cells=in_turns))
    with open_run_sessions(head, None, None, lambda words: None) as sessions:
        run = api.carry_out(create_run(head, out), head, make_observer(quiet=True), sessions)
    by_key = {each.spec.key(): each for each in run.measurements}
    return [by_key[first.spec.key()] for first, *_ in cells]
