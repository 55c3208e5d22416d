"""Test the key of a configuration, which resuming and comparing use."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigdyno.schema.spec import Budget, Cell, RunPlan, RunSpec

BASE = RunSpec(workload="tensor_add", options={"size": 64, "variant": "corrected"})


def test_the_order_of_options_does_not_matter():
    assert RunSpec(workload="tensor_add", options={"variant": "corrected", "size": 64}).key() == BASE.key()


@given(options=st.dictionaries(st.text(max_size=5), st.integers() | st.booleans() | st.text(max_size=5), max_size=5))
def test_no_order_of_options_matters(options):
    turned = dict(reversed(options.items()))
    assert RunSpec(workload="w", options=options).key() == RunSpec(workload="w", options=turned).key()


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": "mnist_cnn"},
        {"options": {"size": 65, "variant": "corrected"}},
        {"options": {"size": 64}},
        {"options": {"size": 64.0, "variant": "corrected"}},
        {"options": {"size": "64", "variant": "corrected"}},
        {"options": {"size": True, "variant": "corrected"}},
        {"update": "other"},
        {"arrangement": "other"},
        {"world_size": 2},
        {"world_size": 2, "nodes": 2},
        {"device": "cuda"},
        {"threads": 1},
        {"budget": Budget(stop="clock")},
    ],
)
def test_every_difference_changes_the_key(changes):
    assert msgspec.structs.replace(BASE, **changes).key() != BASE.key()


@pytest.mark.parametrize(
    "changes",
    [
        {"launcher": "ssh"},
        {"seed": 1},
        {"pinned": True},
        {"budget": Budget(seconds=11)},
        {"budget": Budget(max_steps=5)},
        {"device": "cpu:0"},
        {"options": {"variant": "corrected"}, "defaults": {"size": 64}},
        {"defaults": {"size": 12288}},
    ],
)
def test_how_and_how_long_it_is_measured_does_not_change_the_key(changes):
    assert msgspec.structs.replace(BASE, **changes).key() == BASE.key()


def test_a_key_survives_the_disk():
    assert msgspec.json.decode(msgspec.json.encode(BASE), type=RunSpec).key() == BASE.key()


def test_a_plan_sums_its_time_and_takes_the_largest_memory():
    cells = (
        Cell(name="a", spec=BASE, seconds=3, memory_bytes=10),
        Cell(name="b", spec=BASE, seconds=4, memory_bytes=None),
        Cell(name="c", spec=BASE, seconds=50, memory_bytes=99, refusal="no"),
        Cell(name="d", spec=BASE, seconds=5, memory_bytes=30),
    )
    plan = RunPlan(name="p", cells=cells)
    assert [cell.name for cell in plan.runnable] == ["a", "b", "d"]
    assert plan.seconds == 12
    assert plan.memory_bytes == 30
    assert RunPlan(name="p", cells=cells[1:2]).memory_bytes is None
