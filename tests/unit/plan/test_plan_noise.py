"""Every suite measures the machine's own noise: which cell, how long, and when it says why not."""

import pytest

from rigdyno import catalogue
from rigdyno.plan.baselines import LEAST_MEASURED_SECONDS, PAIRS, cheapest, noise_plan
from rigdyno.plan.budget import LEAST_SECONDS, start_seconds
from rigdyno.plan.expand import expand
from rigdyno.plan.pairs import MOST_MEASURED_SECONDS
from rigdyno.plan.request import Request
from rigdyno.plan.resources import Resources
from rigdyno.schema.spec import Budget, Cell, RunSpec
from support import a_system

PLENTY = Resources(available_bytes=10**12)


def a_cell(workload="launch_latency", memory_bytes=10**6, refusal=None, **spec):
    return Cell(
        name=workload,
        spec=RunSpec(workload=workload, **spec),
        memory_bytes=memory_bytes,
        refusal=refusal,
        seconds=60.0,
    )


def planned(target="device", resources=PLENTY, **fields):
    return expand(Request(target=target, **fields), a_system(), "cpu", resources)


def halves(plan):
    cells = [cell for cell in plan.cells if cell.pair is None]
    return cells, [cell for cell in plan.cells if cell.pair is not None]


class TestShare:
    @pytest.mark.parametrize("run_seconds", [200.0, 600.0, 3600.0, 86400.0])
    def test_pairs_take_at_most_a_tenth_of_the_time(self, run_seconds):
        noise = noise_plan([a_cell()], run_seconds, PLENTY)
        assert 0 < noise.seconds <= 0.1 * run_seconds
        assert noise.duel.budget_seconds == pytest.approx(0.1 * run_seconds)
        assert LEAST_MEASURED_SECONDS <= noise.cells[0].spec.budget.seconds <= MOST_MEASURED_SECONDS

    def test_there_are_at_least_four_pairs_or_a_reason(self):
        assert PAIRS >= 4
        for run_seconds in range(5, 400, 5):
            noise = noise_plan([a_cell()], float(run_seconds), PLENTY)
            if noise.cells:
                assert len(noise.cells) == 2 * PAIRS
                assert noise.missing is None
            else:
                assert noise.duel is None
                assert "a larger --budget measures it" in noise.missing
        assert noise.cells

    def test_both_arms_have_the_same_configuration(self):
        noise = noise_plan([a_cell(options={}, seed=3, threads=2)], 600.0, PLENTY)
        assert noise.duel.self_duel
        assert noise.duel.names == ("launch_latency", "launch_latency")
        assert len({cell.spec.key() for cell in noise.cells}) == 1
        assert [(cell.pair, cell.arm) for cell in noise.cells[:3]] == [(1, "a"), (1, "b"), (2, "a")]


class TestWhich:
    def test_the_cell_that_starts_fastest_is_chosen(self):
        cells = [a_cell("mnist_cnn"), a_cell("launch_latency"), a_cell("memory_bandwidth")]
        starts = {cell.name: catalogue.load("workload", cell.name)().start_seconds() for cell in cells}
        assert starts[cheapest(cells).name] == min(starts.values())

    def test_the_smallest_of_equally_fast_cells_is_chosen(self):
        small, large = a_cell(memory_bytes=10), a_cell(memory_bytes=1000)
        assert cheapest([large, small]) is small

    @pytest.mark.parametrize("unfit", [{"launcher": "inline"}, {"launcher": "own_loop"}, {"world_size": 2}])
    def test_a_cell_that_cannot_take_turns_is_never_chosen(self, unfit):
        fit, other = a_cell("mnist_cnn", memory_bytes=10**9), a_cell(**unfit)
        assert cheapest([other, fit]) is fit
        assert noise_plan([other], 600.0, PLENTY).missing == "no cell of this run can be compared with itself"

    def test_a_refused_cell_is_never_chosen(self):
        noise = noise_plan([a_cell(refusal="no such device")], 600.0, PLENTY)
        assert noise.cells == ()
        assert noise.missing == "no cell of this run can be compared with itself"

    def test_twice_the_cell_must_fit(self):
        noise = noise_plan([a_cell(memory_bytes=10**9)], 600.0, Resources(available_bytes=int(1.5e9)))
        assert noise.missing == "the cheapest cell twice needs 2.00 GB of memory, 1.50 GB are free"
        fitting = noise_plan([a_cell(memory_bytes=10**9)], 600.0, Resources(available_bytes=2 * 10**9))
        assert {cell.memory_bytes for cell in fitting.cells} == {2 * 10**9}

    def test_a_soak_is_not_repeated_as_a_soak(self):
        noise = noise_plan([a_cell(budget=Budget(seconds=600.0, stop="clock"))], 600.0, PLENTY)
        assert {(cell.spec.budget.stop, cell.spec.budget.seconds <= 8.0) for cell in noise.cells} == {("steps", True)}


class TestInASuite:
    @pytest.mark.parametrize("fields", [{}, {"full": True}, {"repeat": 5}, {"soak_seconds": 600.0}])
    def test_pairs_come_after_the_cells_and_cost_a_tenth_of_them(self, fields):
        cells, pairs = halves(planned(**fields))
        own_seconds = sum(cell.seconds for cell in cells)
        if pairs:
            assert len(pairs) == 2 * PAIRS
            assert sum(cell.seconds for cell in pairs) <= 0.1 * own_seconds
        else:
            assert planned(**fields).noise_missing

    @pytest.mark.parametrize("budget", [60.0, 90.0, 200.0, 300.0, 1000.0, 7200.0])
    def test_a_budget_is_kept_with_the_pairs_in_it(self, budget):
        plan = planned(budget_seconds=budget)
        _, pairs = halves(plan)
        assert plan.seconds <= budget * 1.001
        assert sum(cell.seconds for cell in pairs) <= 0.1 * budget
        assert bool(pairs) != bool(plan.noise_missing)
        assert (plan.duel is not None) == bool(pairs)

    def test_a_large_budget_has_room_for_them(self):
        plan = planned(budget_seconds=600.0)
        _, pairs = halves(plan)
        assert len(pairs) == 2 * PAIRS
        assert not plan.is_duel

    def test_the_first_minute_is_too_short_and_says_so(self):
        plan = planned("quick")
        assert halves(plan)[1] == []
        assert "a larger --budget measures it" in plan.noise_missing

    def test_a_single_workload_has_no_noise_pairs(self):
        plan = planned("tensor_add")
        assert (plan.duel, plan.noise_missing) == (None, None)
        assert halves(plan)[1] == []

    def test_a_suite_that_just_fits_its_budget_gives_up_the_pairs_not_a_cell(self):
        """Repeats that the user asked for leave no room."""
        least = _least_budget()
        plan = planned(budget_seconds=least, repeat=40)
        assert plan.noise_missing == "the budget has room for the suite's cells alone"
        assert halves(plan)[1] == []
        assert plan.seconds <= least * 1.001


def _least_budget():
    """Each of 40 repeats starts a process, and measures for the minimum of one second."""
    cells, _ = halves(planned(repeat=40))
    return sum(start_seconds(cell.spec) + LEAST_SECONDS for cell in cells) + 0.01
