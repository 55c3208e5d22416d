"""The suites of a campaign and the share of its time that each gets, with scripted suites."""

from types import SimpleNamespace

import pytest

from rigdyno import catalogue
from rigdyno.base.errors import BadValue, CatalogueError, MissingExtra, NothingMeasured, UsageError
from rigdyno.features.campaign import plan as planning
from rigdyno.features.campaign.plan import DEFAULT_SECONDS, plan_campaign
from rigdyno.plan.expand import expand
from rigdyno.plan.request import Request
from rigdyno.plan.resources import Resources
from rigdyno.schema.spec import Budget, Cell, RunPlan, RunSpec
from support import a_system

START = 2.0


def a_plan(request, seconds, *, cells=2, refusal=None):
    """Return a plan of equal cells: each measures its share of the time after its start, and at least a second."""
    whole = request.budget_seconds or seconds
    each = max(1.0, whole / cells - START)
    spec = RunSpec(workload="tensor_add", budget=Budget(seconds=each))
    laid_out = [Cell(name=f"{n}", spec=spec, seconds=START + each, refusal=refusal) for n in range(cells)]
    return RunPlan(
        name=request.target, suite=request.target, cells=tuple(laid_out), budget_seconds=request.budget_seconds
    )


class Scripted:
    """A catalogue of suites, and what each plans; an exception is raised instead."""

    def __init__(self, **suites):
        self.suites, self.asked = suites, []

    def names(self, kind):
        assert kind == "suite"
        return tuple(sorted(self.suites))

    def load(self, kind, name):
        found = self.suites[name]
        if isinstance(found, CatalogueError):
            raise found
        return SimpleNamespace(excerpt=found == "excerpt")

    def plan(self, request):
        self.asked.append(request)
        found = self.suites[request.target]
        if isinstance(found, Exception):
            raise found
        return a_plan(request, **found) if isinstance(found, dict) else a_plan(request, found)


@pytest.fixture
def planned(monkeypatch):
    def plan(request=None, **suites):
        scripted = Scripted(**suites)
        monkeypatch.setattr(planning, "catalogue", scripted)
        return plan_campaign(request or Request(target="all"), scripted.plan), scripted

    return plan


def budgets(found):
    return {plan.suite: plan.budget_seconds for plan in found.plans}


def test_all_suites_that_are_there_share_a_quarter_of_an_hour_by_what_they_take_alone(planned):
    found, _ = planned(device=200.0, scaling=100.0)
    assert found.budget_seconds == DEFAULT_SECONDS == 900
    assert budgets(found) == pytest.approx({"device": 600.0, "scaling": 300.0})
    assert found.left_out == ()


def test_a_suite_that_is_added_joins_by_itself_and_an_excerpt_stays_out(planned):
    found, _ = planned(device=200.0, newcomer=100.0, quick="excerpt")
    assert list(budgets(found)) == ["device", "newcomer"]


def test_suites_are_asked_for_their_cheap_form(planned):
    _, scripted = planned(device=200.0)
    assert all(request.cheap for request in scripted.asked)
    assert [request.budget_seconds for request in scripted.asked] == [None, 900.0]


def test_a_suite_that_asks_for_little_keeps_its_least(planned):
    """Ten cells with a start of two seconds take thirty at least; in proportion it would be twenty."""
    found, _ = planned(Request(target="all", budget_seconds=120.0), large=500.0, small={"seconds": 100.0, "cells": 10})
    assert budgets(found) == pytest.approx({"large": 90.0, "small": 30.0})


def test_a_time_that_is_too_short_says_what_is_needed(planned):
    with pytest.raises(
        BadValue, match="a budget of 10 s is too short: the suites that can run here take at least 12 s"
    ):
        planned(Request(target="all", budget_seconds=10.0), one=100.0, two=100.0)


def test_repeats_that_were_asked_for_are_part_of_the_least(monkeypatch):
    """Three processes where one would do."""
    cells = tuple(
        Cell(name=f"{n}", repeat=n, spec=RunSpec(workload="x", budget=Budget(seconds=5.0)), seconds=START + 5.0)
        for n in (1, 2, 3)
    )
    plan = RunPlan(name="one", suite="one", cells=cells)
    monkeypatch.setattr(planning, "catalogue", Scripted(one=1.0))
    assert plan_campaign(Request(target="all", budget_seconds=4.0), lambda request: plan).plans == (plan,)
    with pytest.raises(BadValue, match=r"at least 9\.0 s"):
        plan_campaign(Request(target="all", budget_seconds=4.0, repeat=3), lambda request: plan)


def test_who_cannot_run_here_is_named_and_takes_nothing_from_the_others(planned):
    found, _ = planned(
        broken=CatalogueError("the suite 'broken' can't be loaded"),
        device=100.0,
        privacy=MissingExtra("privacy can't run: opacus is not installed; try pip install 'rigdyno[peers]'"),
        volume={"seconds": 50.0, "refusal": "needs 90 GB of memory, 8 GB are free"},
    )
    assert budgets(found) == {"device": 900.0}
    assert [(each.suite, each.reason) for each in found.left_out] == [
        ("broken", "the suite 'broken' can't be loaded"),
        ("privacy", "privacy can't run: opacus is not installed; try pip install 'rigdyno[peers]'"),
        ("volume", "needs 90 GB of memory, 8 GB are free"),
    ]


def test_where_no_suite_can_run_it_says_why_of_each(planned):
    with pytest.raises(NothingMeasured, match="no suite can run here: one: no cuda device here; two: not here"):
        planned(one={"seconds": 9.0, "refusal": "no cuda device here"}, two=UsageError("not here"))


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"options": {"size": "4"}}, "--set"),
        ({"sweep": {"size": ("1", "2")}}, "--sweep"),
        ({"full": True}, "--full"),
        ({"soak_seconds": 60.0}, "--soak"),
        ({"update": "dp_fast"}, "--update"),
        ({"arrangement": "ddp"}, "--arrangement"),
        ({"launcher": "inline"}, "--launcher"),
        ({"memory_bytes": 10}, "--memory"),
    ],
)
def test_what_is_of_one_suite_is_refused(planned, options, flag):
    with pytest.raises(UsageError, match=f"{flag} is not for all suites at once") as caught:
        planned(Request(target="all", **options), device=100.0)
    assert caught.value.key == flag.removeprefix("--")


def test_what_is_for_all_is_handed_on(planned):
    request = Request(target="all", repeat=2, threads=1, label="mine", seed=7, ranks=2, steps=9, device="cpu")
    _, scripted = planned(request, device=100.0)
    assert all((each.repeat, each.label, each.seed) == (2, "mine", 7) for each in scripted.asked)


def test_the_real_suites_fit_into_the_default_with_quick_left_out():
    system = a_system()
    room = Resources(available_bytes=10**12)
    found = plan_campaign(Request(target="all"), lambda request: expand(request, system, "cpu", room))
    joined = {*budgets(found), *(each.suite for each in found.left_out)}
    assert joined == {*catalogue.names("suite")} - {"quick"}
    assert sum(budgets(found).values()) == pytest.approx(900.0)
    assert all(plan.seconds <= plan.budget_seconds + 1e-6 for plan in found.plans)
