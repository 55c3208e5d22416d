"""The idle machine before and after: where there is a meter or it was asked for, and inside of the budget."""

import pytest

from rigdyno.base.errors import BadValue
from rigdyno.plan.baselines import USUAL_SECONDS
from rigdyno.plan.expand import expand
from rigdyno.plan.request import Request
from rigdyno.plan.resources import Resources
from support import a_system

METERED = Resources(available_bytes=10**12, has_meter=True)
UNMETERED = Resources(available_bytes=10**12)


def planned(resources=METERED, **fields):
    return expand(Request(**{"target": "tensor_add", "options": {"size": 64}, **fields}), a_system(), "cpu", resources)


def test_idle_cells_come_first_and_last_with_a_power_meter():
    plan = planned(sweep={"size": (1, 2)}, options={})
    assert [cell.spec.workload for cell in plan.cells] == ["idle", "tensor_add", "tensor_add", "idle"]
    assert [cell.name for cell in plan.cells] == sorted(cell.name for cell in plan.cells)
    first, last = plan.cells[0], plan.cells[-1]
    assert first.spec.key() == last.spec.key()  # two processes of one configuration
    assert first.spec.budget.seconds == USUAL_SECONDS
    assert {each.role for each in first.participants} == {"rank", "sampler"}


def test_without_a_meter_idle_cells_are_planned_only_on_request():
    assert len(planned(UNMETERED).cells) == 1
    assert [cell.spec.budget.seconds for cell in planned(UNMETERED, idle_seconds=60.0).cells][::2] == [60.0, 60.0]


def test_idle_cells_are_part_of_the_budget():
    plan = planned(budget_seconds=40.0)
    assert plan.seconds == pytest.approx(40.0, abs=1.0)
    with pytest.raises(BadValue, match="too short to measure the idle machine; try a shorter --idle"):
        planned(budget_seconds=40.0, idle_seconds=30.0)


def test_workload_idle_gets_no_idle_cells():
    assert [cell.spec.workload for cell in planned(target="idle", options={}).cells] == ["idle"]


def test_idle_cells_of_a_suite_surround_the_planned_cells():
    plan = planned(target="device", options={})
    runs = [cell for cell in plan.cells if cell.is_planned]
    assert runs[0].spec.workload == runs[-1].spec.workload == "idle"
    assert sum(cell.spec.workload == "idle" for cell in plan.cells) == 2
