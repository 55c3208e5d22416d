"""All suites that can run here in one time: which, how much of it each gets, and why others can't."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from rigdyno import catalogue
from rigdyno.errors import BadValue, CatalogueError, NothingMeasured, RigdynoError, UsageError
from rigdyno.plan.budget import LEAST_SECONDS
from rigdyno.plan.load import Request, is_given
from rigdyno.plan.run_options import RUN_OPTIONS
from rigdyno.schema.campaign import LeftOut
from rigdyno.schema.spec import Plan
from rigdyno.units import show_seconds

ALL = "all"  # the target that means every suite
DEFAULT_SECONDS = 900.0

Planner = Callable[[Request], Plan]


@dataclass(frozen=True)
class CampaignPlan:
    plans: tuple[Plan, ...]  # in the order that they run in
    left_out: tuple[LeftOut, ...]
    budget_seconds: float


def plan_campaign(request: Request, planner: Planner) -> CampaignPlan:
    """`planner` lays out one suite for this machine."""
    require_for_all(request)
    seconds = request.budget_seconds or DEFAULT_SECONDS
    request = msgspec.structs.replace(request, budget_seconds=None, cheap=True)
    suites, left_out = _joining()
    alone = _planned(suites, [None] * len(suites), request, planner)
    found = [plan for plan in alone if isinstance(plan, Plan)]
    _require_any(alone, left_out)
    shared = shares([_Want.of(plan, request) for plan in found], seconds)
    plans = _planned([plan.suite or "" for plan in found], shared, request, planner)
    left_out += [each for each in (*alone, *plans) if isinstance(each, LeftOut)]
    return CampaignPlan(
        tuple(plan for plan in plans if isinstance(plan, Plan)),
        tuple(sorted(left_out, key=lambda each: each.suite)),
        seconds,
    )


def _planned(
    suites: Sequence[str], budgets: Sequence[float | None], request: Request, planner: Planner
) -> list[Plan | LeftOut]:
    """One that objects doesn't take the others along."""
    found: list[Plan | LeftOut] = []
    for suite, seconds in zip(suites, budgets, strict=True):
        try:
            plan = planner(msgspec.structs.replace(request, target=suite, budget_seconds=seconds))
            found.append(plan if plan.runnable else LeftOut(suite=suite, reason=_refusals(plan)))
        except RigdynoError as error:
            found.append(LeftOut(suite=suite, reason=str(error)))
    return found


def _refusals(plan: Plan) -> str:
    reasons = dict.fromkeys(cell.refusal for cell in plan.cells if cell.refusal is not None)
    return "; ".join(reasons) or "it has nothing to run"


def _require_any(planned: Sequence[Plan | LeftOut], broken: Sequence[LeftOut]) -> None:
    if any(isinstance(each, Plan) for each in planned):
        return
    left_out = [*broken, *(each for each in planned if isinstance(each, LeftOut))]
    reasons = "; ".join(f"{each.suite}: {each.reason}" for each in left_out) or "there is no suite"
    raise NothingMeasured(f"no suite can run here: {reasons}")


def require_for_all(request: Request) -> None:
    """An option of one suite or workload would be a mistake in all others."""
    for option in RUN_OPTIONS:
        value = getattr(request, option.request_field) if option.of_request else None
        default = getattr(Request(), option.request_field) if option.of_request else None
        if not option.in_campaign and value != default and is_given(value):
            wrong = f"{option.flag} is not for all suites at once; try it with `rigdyno run SUITE`"
            raise UsageError(wrong, key=option.name)


def _joining() -> tuple[list[str], list[LeftOut]]:
    """What is an excerpt of other suites would say the same twice. One that can't be loaded is named."""
    suites, broken = [], []
    for name in catalogue.names("suite"):
        try:
            if not getattr(catalogue.load("suite", name), "excerpt", False):
                suites.append(name)
        except CatalogueError as error:
            broken.append(LeftOut(suite=name, reason=str(error)))
    return suites, broken


@dataclass(frozen=True)
class _Want:
    """What a suite takes by itself, and the least that it can do with."""

    seconds: float
    least: float

    @classmethod
    def of(cls, plan: Plan, request: Request) -> _Want:
        """Repeats that the user asked for are kept; others are given up before a suite is."""
        cells = [cell for cell in plan.runnable if cell.is_planned and (cell.repeat == 1 or request.repeat is not None)]
        least = sum(cell.seconds - cell.spec.budget.seconds + LEAST_SECONDS for cell in cells)
        return cls(max(plan.seconds, least), least)


def shares(wants: Sequence[_Want], seconds: float) -> list[float]:
    """Of the time, in proportion to what each takes by itself, and never below its least."""
    least = sum(want.least for want in wants)
    if least > seconds:
        need = f"the suites that can run here take at least {show_seconds(least)}"
        raise BadValue(f"a budget of {show_seconds(seconds)} is too short: {need}", key="budget")
    above, factor = list(wants), 0.0
    while above:
        factor = (seconds - sum(want.least for want in wants if want not in above)) / sum(w.seconds for w in above)
        short = [want for want in above if want.seconds * factor < want.least]
        if not short:
            break
        above = [want for want in above if want not in short]
    return [max(want.least, want.seconds * factor) if want in above else want.least for want in wants]
