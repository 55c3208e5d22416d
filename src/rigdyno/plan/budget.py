"""Fits what is wanted into the time that there is: first what a verdict needs, then what was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from rigdyno import catalogue
from rigdyno.contracts import Wanted
from rigdyno.errors import BadValue, RigdynoError
from rigdyno.plan.build import workload_of
from rigdyno.schema.spec import WARM_UP_ROWS, RunSpec
from rigdyno.units import show_seconds

LEAST_SECONDS = 1.0  # a cell that measures for less says nothing
TRY_SECONDS = 3.0  # of one attempt of a search
USUAL_TRIES = 6
FEWEST_REPEATS = 3  # two processes have an interval that says nothing: then one is as good


class Share(NamedTuple):
    """What one configuration takes."""

    wanted: Wanted
    repeat: int
    start: float  # seconds of one process before it steps
    least: float  # seconds that it has to step for
    asked: float


def fitted(
    wanted: Sequence[Wanted], seconds: float, *, keep_repeats: bool = False, at_most: float = math.inf
) -> list[Wanted]:
    """Every cell gets what a verdict needs, and of the rest all as much in proportion to what they asked for (`at_most`
    so many times that). A suite's own repeats are given up before a cell becomes too short; repeats that the user
    asked for are kept, or it is said that they don't fit."""
    shares: list[Share] | None = [_share(cell) for cell in wanted]
    while shares is not None:
        left = seconds - sum(share.start * share.repeat for share in shares)
        if left >= sum(share.least * share.repeat for share in shares):
            factor = min(at_most, _factor(shares, left))
            return [_with_seconds(share, factor) for share in shares]
        tight, shares = shares, (None if keep_repeats else _with_fewer(shares)) or _with_less(shares)
    least = sum((share.start + share.least) * share.repeat for share in tight)
    need = f"this takes at least {show_seconds(least)}"
    raise BadValue(f"a budget of {show_seconds(seconds)} is too short: {need}", key="budget")


def with_needs(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Where there is no budget: as long as they ask for, or as a verdict needs."""
    return [_with_seconds(_share(cell), 1.0) for cell in wanted]


def is_too_short(spec: RunSpec) -> bool:
    """For a verdict, as far as the workload can tell how long its steps are."""
    return spec.budget.stop == "steps" and spec.budget.seconds < 0.99 * _needed_seconds(spec)


def _with_fewer(shares: Sequence[Share]) -> list[Share] | None:
    """With fewer processes of whatever takes the most time; None: all have one."""
    repeated = [share for share in shares if share.repeat > 1]
    if not repeated:
        return None
    dearest = max(repeated, key=lambda share: share.repeat * (share.start + share.least))
    repeat = dearest.repeat - 1 if dearest.repeat > FEWEST_REPEATS else 1
    return [share._replace(repeat=repeat) if share is dearest else share for share in shares]


def _with_less(shares: Sequence[Share]) -> list[Share] | None:
    """Without what the neediest needs: it will be SUSPECT, and the others won't. None: all have their least."""
    needy = [share for share in shares if share.least > LEAST_SECONDS]
    if not needy:
        return None
    neediest = max(needy, key=lambda share: share.repeat * share.least)
    return [share._replace(least=LEAST_SECONDS) if share is neediest else share for share in shares]


def _share(cell: Wanted) -> Share:
    least = max(LEAST_SECONDS, _needed_seconds(cell.spec))
    start = start_seconds(cell.spec) + search_seconds(cell.spec)
    return Share(cell, cell.repeat, start, least, cell.spec.budget.seconds)


def _factor(shares: Sequence[Share], left: float) -> float:
    """By which all are longer or shorter than they asked for, save those that then have too little: these get their
    least."""
    above = list(shares)
    while above:
        others = sum(share.least * share.repeat for share in shares if share not in above)
        factor = (left - others) / sum(share.asked * share.repeat for share in above)
        short = [share for share in above if share.asked * factor < share.least]
        if not short:
            return factor
        above = [share for share in above if share not in short]
    return 0.0


def _with_seconds(share: Share, factor: float) -> Wanted:
    spec = share.wanted.spec
    seconds = max(share.least, math.floor(round(100 * share.asked * factor, 6)) / 100)  # never more than there is
    budget = msgspec.structs.replace(spec.budget, seconds=seconds)
    most = max(share.wanted.most, share.wanted.repeat)  # starts are quicker than planned where nothing else runs
    return replace(share.wanted, spec=msgspec.structs.replace(spec, budget=budget), repeat=share.repeat, most=most)


def start_seconds(spec: RunSpec) -> float:
    try:
        return workload_of(spec).start_seconds() + start_of_update(spec)
    except RigdynoError:
        return 0.0  # what is wrong with it is said when the cell itself is asked


def start_of_update(spec: RunSpec) -> float:
    """What it takes to load; most updates take nothing worth speaking of, and don't say."""
    return float(getattr(catalogue.load("update", spec.update), "start_seconds", 0.0))


def search_seconds(spec: RunSpec) -> float:
    """Until it is known how large an option may be; 0 where that isn't asked, or is known."""
    searched = spec.is_open and spec.share == 1.0  # a part of it is known with it
    return USUAL_TRIES * (TRY_SECONDS + start_seconds(spec)) if searched else 0.0


def _needed_seconds(spec: RunSpec) -> float:
    """For the steps of a warm-up and for those that a verdict needs; 0 where nobody knows, or steps aren't what ends
    it."""
    if spec.budget.stop == "clock" or spec.budget.is_job:
        return 0.0
    try:
        step = workload_of(spec).step_seconds(spec.device)
    except RigdynoError:
        return 0.0
    return 0.0 if step is None else (WARM_UP_ROWS + spec.budget.rows) * step
