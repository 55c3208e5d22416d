"""Plan a campaign: which suites can run here, how much of the time each gets, and why others can't run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from rigdyno import catalogue
from rigdyno.base.errors import BadValue, CatalogueError, NothingMeasured, RigdynoError, UsageError
from rigdyno.base.units import show_seconds
from rigdyno.plan.budget import LEAST_SECONDS
from rigdyno.plan.request import Request, is_given
from rigdyno.plan.run_options import RUN_OPTIONS
from rigdyno.schema.spec import RunPlan
from rigdyno.store.campaign import LeftOut

ALL = "all"  # the target that means every suite

DEFAULT_SECONDS = 900.0

Planner = Callable[[Request], RunPlan]


@dataclass(frozen=True)
class CampaignPlan:
    plans: tuple[RunPlan, ...]  # in the order in which they run
    left_out: tuple[LeftOut, ...]
    budget_seconds: float


def plan_campaign(request: Request, planner: Planner) -> CampaignPlan:
    """Share the budget out among the suites that can run here; `planner` plans one suite for this machine."""
    require_for_all(request)
    seconds = request.budget_seconds or DEFAULT_SECONDS
    request = msgspec.structs.replace(request, budget_seconds=None, cheap=True)
    suites, left_out = _find_suites()
    alone = _plan_suites(suites, [None] * len(suites), request, planner)
    found = [plan for plan in alone if isinstance(plan, RunPlan)]
    _require_any(alone, left_out)
    shared = share_time([_Want.of(plan, request) for plan in found], seconds)
    plans = _plan_suites([plan.suite or "" for plan in found], shared, request, planner)
    left_out += [each for each in (*alone, *plans) if isinstance(each, LeftOut)]
    return CampaignPlan(
        tuple(plan for plan in plans if isinstance(plan, RunPlan)),
        tuple(sorted(left_out, key=lambda each: each.suite)),
        seconds,
    )


def _plan_suites(
    suites: Sequence[str], budgets: Sequence[float | None], request: Request, planner: Planner
) -> list[RunPlan | LeftOut]:
    """Plan each suite; one that raises an error is left out, and the others remain."""
    found: list[RunPlan | LeftOut] = []
    for suite, seconds in zip(suites, budgets, strict=True):
        try:
            plan = planner(msgspec.structs.replace(request, target=suite, budget_seconds=seconds))
            found.append(plan if plan.runnable else LeftOut(suite=suite, reason=_refusal_reasons(plan)))
        except RigdynoError as error:
            found.append(LeftOut(suite=suite, reason=str(error)))
    return found


def _refusal_reasons(plan: RunPlan) -> str:
    reasons = dict.fromkeys(cell.refusal for cell in plan.cells if cell.refusal is not None)
    return "; ".join(reasons) or "it has nothing to run"


def _require_any(planned: Sequence[RunPlan | LeftOut], broken: Sequence[LeftOut]) -> None:
    if any(isinstance(each, RunPlan) for each in planned):
        return
    left_out = [*broken, *(each for each in planned if isinstance(each, LeftOut))]
    reasons = "; ".join(f"{each.suite}: {each.reason}" for each in left_out) or "there is no suite"
    raise NothingMeasured(f"no suite can run here: {reasons}")


def require_for_all(request: Request) -> None:
    """Raise UsageError for an option that only some suites have."""
    for option in RUN_OPTIONS:
        value = getattr(request, option.request_field) if option.of_request else None
        default = getattr(Request(), option.request_field) if option.of_request else None
        if not option.in_campaign and value != default and is_given(value):
            wrong = f"{option.flag} is not for all suites at once; try it with `rigdyno run SUITE`"
            raise UsageError(wrong, key=option.name)


def _find_suites() -> tuple[list[str], list[LeftOut]]:
    """Return the suites of a campaign, without excerpts of other suites, and those that can't be loaded."""
    suites, broken = [], []
    for name in catalogue.names("suite"):
        try:
            if not catalogue.load("suite", name).excerpt:
                suites.append(name)
        except CatalogueError as error:
            broken.append(LeftOut(suite=name, reason=str(error)))
    return suites, broken


@dataclass(frozen=True)
class _Want:
    """The time that a suite takes alone, and the least time that it needs."""

    seconds: float
    least: float

    @classmethod
    def of(cls, plan: RunPlan, request: Request) -> _Want:
        """Count repeats in the least time only if the user asked for them: others are dropped before a suite is."""
        cells = [cell for cell in plan.runnable if cell.is_planned and (cell.repeat == 1 or request.repeat is not None)]
        least = sum(cell.seconds - cell.spec.budget.seconds + LEAST_SECONDS for cell in cells)
        return cls(max(plan.seconds, least), least)


def share_time(wants: Sequence[_Want], seconds: float) -> list[float]:
    """Share the time in proportion to what each suite takes alone, but at least its minimum."""
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
