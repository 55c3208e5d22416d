"""Fit cells into a time budget: each first gets the time that a verdict needs, then its share of the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from rigdyno import catalogue
from rigdyno.base.errors import BadValue, RigdynoError
from rigdyno.base.units import show_seconds
from rigdyno.contracts import Wanted
from rigdyno.plan.build import workload_of
from rigdyno.schema.spec import WARM_UP_ROWS, RunSpec

LEAST_SECONDS = 1.0  # a shorter measurement is not informative

TRY_SECONDS = 3.0  # of one attempt of a search for the largest value

USUAL_TRIES = 6  # attempts of a search

FEWEST_REPEATS = 3  # the interval of two processes is too wide to be useful: one is as good


class CellTime(NamedTuple):
    """The time that one configuration takes, in seconds for each process."""

    wanted: Wanted
    repeat: int
    start: float  # before the first step
    least: float  # the shortest useful measurement
    asked: float  # the measurement that was asked for


def fit_into_budget(
    wanted: Sequence[Wanted], seconds: float, *, keep_repeats: bool = False, at_most: float = math.inf
) -> list[Wanted]:
    """Return the cells with measuring times that fit into a budget of `seconds`.

    Every cell gets the time that a verdict needs. The rest is divided in proportion to the times asked for; no cell
    gets more than `at_most` times what it asked for. A suite's own repeats are dropped before a cell becomes too short.
    With `keep_repeats` (the user asked for them) they are kept; a budget that is too short raises BadValue."""
    shares: list[CellTime] | None = [_estimate_time(cell) for cell in wanted]
    while shares is not None:
        left = seconds - sum(share.start * share.repeat for share in shares)
        if left >= sum(share.least * share.repeat for share in shares):
            factor = min(at_most, _find_factor(shares, left))
            return [_set_seconds(share, factor) for share in shares]
        tight, shares = shares, (None if keep_repeats else _reduce_repeats(shares)) or _reduce_needs(shares)
    least = sum((share.start + share.least) * share.repeat for share in tight)
    need = f"this takes at least {show_seconds(least)}"
    raise BadValue(f"a budget of {show_seconds(seconds)} is too short: {need}", key="budget")


def with_needs(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Return the cells of a run without a budget: each measures for the time it asked for, or a verdict needs."""
    return [_set_seconds(_estimate_time(cell), 1.0) for cell in wanted]


def is_too_short(spec: RunSpec) -> bool:
    """Return whether a cell's budget is too short for a verdict, if the workload can estimate its step time."""
    return spec.budget.stop == "steps" and spec.budget.seconds < 0.99 * _needed_seconds(spec)


def _reduce_repeats(shares: Sequence[CellTime]) -> list[CellTime] | None:
    """Reduce the repeats of the configuration that takes the most time; None if every one has a single process."""
    repeated = [share for share in shares if share.repeat > 1]
    if not repeated:
        return None
    dearest = max(repeated, key=lambda share: share.repeat * (share.start + share.least))
    repeat = dearest.repeat - 1 if dearest.repeat > FEWEST_REPEATS else 1
    return [share._replace(repeat=repeat) if share is dearest else share for share in shares]


def _reduce_needs(shares: Sequence[CellTime]) -> list[CellTime] | None:
    """Give up the verdict of the configuration that needs the most time: it will be SUSPECT, the others won't.

    Return None if every configuration is at its least already."""
    needy = [share for share in shares if share.least > LEAST_SECONDS]
    if not needy:
        return None
    neediest = max(needy, key=lambda share: share.repeat * share.least)
    return [share._replace(least=LEAST_SECONDS) if share is neediest else share for share in shares]


def _estimate_time(cell: Wanted) -> CellTime:
    least = max(LEAST_SECONDS, _needed_seconds(cell.spec))
    start = start_seconds(cell.spec) + search_seconds(cell.spec)
    return CellTime(cell, cell.repeat, start, least, cell.spec.budget.seconds)


def _find_factor(shares: Sequence[CellTime], left: float) -> float:
    """Return the factor that scales the times asked for so that they fill `left` seconds.

    Configurations that would then get less than their least get that instead, and are left out of the scaling."""
    above = list(shares)
    while above:
        others = sum(share.least * share.repeat for share in shares if share not in above)
        factor = (left - others) / sum(share.asked * share.repeat for share in above)
        short = [share for share in above if share.asked * factor < share.least]
        if not short:
            return factor
        above = [share for share in above if share not in short]
    return 0.0


def _set_seconds(share: CellTime, factor: float) -> Wanted:
    spec = share.wanted.spec
    seconds = max(
        share.least, math.floor(round(100 * share.asked * factor, 6)) / 100
    )  # round down: never exceed the budget
    budget = msgspec.structs.replace(spec.budget, seconds=seconds)
    most = max(
        share.wanted.most, share.wanted.repeat
    )  # dropped repeats become spare ones: a start may be faster than planned
    return replace(share.wanted, spec=msgspec.structs.replace(spec, budget=budget), repeat=share.repeat, most=most)


def start_seconds(spec: RunSpec) -> float:
    """Return the time that a process needs before its first step."""
    try:
        return workload_of(spec).start_seconds() + start_of_update(spec)
    except RigdynoError:
        return 0.0  # the error is reported when the cell itself is built


def start_of_update(spec: RunSpec) -> float:
    """Return the time to load the update."""
    return float(catalogue.load("update", spec.update).start_seconds)


def search_seconds(spec: RunSpec) -> float:
    """Return the time of the search for the largest value of an option; 0 if there is no search."""
    searched = spec.is_open and spec.share == 1.0  # a cell with a fraction of the largest value reuses its search
    return USUAL_TRIES * (TRY_SECONDS + start_seconds(spec)) if searched else 0.0


def _needed_seconds(spec: RunSpec) -> float:
    """Return the time of the warm-up steps and of the steps that a verdict needs.

    Return 0 if the step time is unknown, or if the cell doesn't end by its number of steps."""
    if spec.budget.stop == "clock" or spec.budget.is_job:
        return 0.0
    try:
        step = workload_of(spec).step_seconds(spec.device)
    except RigdynoError:
        return 0.0
    return 0.0 if step is None else (WARM_UP_ROWS + spec.budget.rows) * step
