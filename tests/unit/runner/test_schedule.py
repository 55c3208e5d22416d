"""The schedule allots measuring times and the remaining time; the tests use a manual clock."""

from __future__ import annotations

import math

import msgspec
import pytest

from rigdyno.runner.schedule import Schedule, still_to_run, width
from rigdyno.runner.worker import in_time
from rigdyno.schema.estimate import Estimate, Reason, Validity
from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.record import Completed, Facts, Failed
from rigdyno.schema.spec import ROWS_FOR_A_VERDICT, Budget, Cell, RunPlan, RunSpec
from support import ManualClock, a_record

START = 3.0


def a_cell(name, seconds=7.0, *, size=0, spare=False, pair=None, **budget):
    spec = RunSpec(workload="tensor_add", options={"size": size}, budget=Budget(seconds=seconds, **budget))
    return Cell(name=name, spec=spec, seconds=START + seconds, spare=spare, pair=pair)


def a_schedule(*cells, budget=None, spare_seconds=0.0, left=None):
    plan = RunPlan(name="p", cells=cells, budget_seconds=budget, spare_seconds=spare_seconds)
    return Schedule(plan, plan.runnable if left is None else left, ManualClock())


def ends(schedule, cell, seconds, start=START):
    schedule.clock.advance(seconds)
    schedule.note_end(cell, a_record(cell.spec, start_seconds=start, seconds=seconds))


def measured(size, half_width, *, processes=3, status="VALID", codes=(), outcome=None):
    spec = RunSpec(workload="tensor_add", options={"size": size})
    rate = Estimate(value=1.0, low=math.exp(-half_width), high=math.exp(half_width), n=9, unit="x/s", method="")
    reasons = tuple(Reason(code=code, sentence="") for code in codes)
    return Measurement(
        spec=spec,
        records=(a_record(spec),) * processes,
        outcome=outcome or Completed(),
        facts=Facts(),
        kinds={"step": KindFigures(throughput=rate, step_seconds=rate)},
        validity=Validity(verdict=status, reasons=reasons),
    )


class TestTheBudgetIsKept:
    def test_a_run_on_time_gets_the_planned_seconds(self):
        one, two = cells = [a_cell("1"), a_cell("2")]
        schedule = a_schedule(*cells, budget=20.0)
        assert schedule.allot(one).spec.budget.seconds == 7.0
        ends(schedule, one, 10.0)
        assert schedule.allot(two).spec.budget.seconds == 7.0

    def test_a_delay_shortens_the_following_cells(self):
        """Ten seconds became sixteen: four are left to measure, after a start of three."""
        one, two = cells = [a_cell("1"), a_cell("2")]
        schedule = a_schedule(*cells, budget=20.0)
        ends(schedule, one, 13.0)
        assert schedule.allot(two).spec.budget.seconds == pytest.approx(4.0)

    def test_slow_starts_are_expected_again(self):
        """Twice as long as planned: of the ten seconds left, six are the next one's start."""
        one, two = cells = [a_cell("1"), a_cell("2")]
        schedule = a_schedule(*cells, budget=20.0)
        ends(schedule, one, 10.0, start=6.0)
        allotted = schedule.allot(two).spec.budget
        assert (allotted.seconds, allotted.start_seconds) == pytest.approx((4.0, 6.0))

    def test_a_cell_that_no_longer_fits_is_not_started(self):
        one, two = cells = [a_cell("1"), a_cell("2")]
        schedule = a_schedule(*cells, budget=20.0)
        ends(schedule, one, 18.0)
        assert schedule.allot(two) is None

    def test_the_first_cell_is_started_in_any_case(self):
        """A budget that just fits must not be lost to the milliseconds before it."""
        cell = a_cell("1", 1.0)
        schedule = a_schedule(cell, budget=4.0)
        schedule.clock.advance(0.9)
        assert schedule.allot(cell).spec.budget.seconds == 1.0

    def test_a_few_milliseconds_do_not_cost_the_last(self):
        one, two = cells = [a_cell("1", 1.0), a_cell("2", 1.0)]
        schedule = a_schedule(*cells, budget=8.0)
        ends(schedule, one, 4.05)
        assert schedule.allot(two).spec.budget.seconds == 1.0

    def test_without_a_budget_no_cell_is_shortened(self):
        one, two = cells = [a_cell("1"), a_cell("2")]
        schedule = a_schedule(*cells)
        ends(schedule, one, 500.0)
        budget = schedule.allot(two).spec.budget
        assert (budget.seconds, budget.start_seconds) == (7.0, None)

    def test_a_resumed_run_has_the_time_of_what_it_left(self):
        cells = [a_cell("1"), a_cell("2"), a_cell("3")]
        schedule = a_schedule(*cells, budget=30.0, left=cells[2:])
        assert schedule.left_seconds == pytest.approx(10.0)

    def test_a_soak_is_as_long_as_it_says(self):
        cell = a_cell("1", 60.0, stop="clock")
        budget = a_schedule(cell).allot(cell).spec.budget
        assert (budget.seconds, budget.rows) == (60.0, 0)

    def test_a_dropped_cell_keeps_no_time(self):
        """The session of a cell is lost: the others get what was meant for it."""
        lost, mine = cells = [a_cell("1", 60.0), a_cell("2", 14.0)]
        schedule = a_schedule(*cells, budget=80.0)
        schedule.clock.advance(40.0)
        assert schedule.allot(mine).spec.budget.seconds < 14.0
        schedule.drop(lost)
        assert schedule.allot(mine).spec.budget.seconds == 14.0


class TestResumed:
    CELLS = (a_cell("1"), a_cell("2", spare=True), a_cell("3", spare=True), a_cell("4", pair=1))

    def test_a_run_that_is_complete_gets_no_further_processes(self):
        plan = RunPlan(name="p", cells=self.CELLS, spare_seconds=90.0)
        assert [cell.name for cell in still_to_run(plan, lambda cell: False)] == ["1", "2", "3", "4"]
        assert [cell.name for cell in still_to_run(plan, lambda cell: cell.name == "1")] == ["4"]
        assert still_to_run(plan, lambda cell: cell.name in "14") == []

    def test_spare_time_that_was_spent_is_not_given_again(self):
        plan = RunPlan(name="p", cells=self.CELLS, spare_seconds=90.0)
        schedule = Schedule(plan, plan.runnable[:2], ManualClock(), spare_spent=70.0)
        assert schedule.left_seconds == pytest.approx(10.0 + 20.0)


class TestRowsForAVerdict:
    def test_rows_for_a_verdict_are_waited_for(self):
        cell = a_cell("1")
        budget = a_schedule(cell).allot(cell).spec.budget
        assert budget.rows == ROWS_FOR_A_VERDICT
        assert budget.most_seconds > 2 * budget.seconds

    def test_only_uncommitted_time_of_a_budget_is_used(self):
        cell = a_cell("1")
        assert a_schedule(cell, budget=10.0).allot(cell).spec.budget.most_seconds == 7.0
        assert 7.0 < a_schedule(cell, budget=30.0).allot(cell).spec.budget.most_seconds < 27.0

    def test_a_maximum_of_steps_limits_the_rows(self):
        cell = a_cell("1", max_steps=4)
        assert a_schedule(cell).allot(cell).spec.budget.rows == 4


class TestSpareProcesses:
    SPARES = (a_cell("5", 4.0, size=1, spare=True), a_cell("6", 4.0, size=2, spare=True))

    def given(self, measurements, seconds=30.0):
        schedule = a_schedule(*self.SPARES, spare_seconds=seconds)
        return schedule.choose_spare(self.SPARES, measurements)

    def test_the_widest_interval_gets_the_next_process(self):
        assert self.given([measured(1, 0.05), measured(2, 0.2)]).name == "6"
        assert self.given([measured(1, 0.5), measured(2, 0.2)]).name == "5"

    def test_a_narrow_interval_gets_no_process(self):
        assert self.given([measured(1, 0.01), measured(2, 0.015)]) is None

    def test_a_spare_cell_must_end_in_time(self):
        assert self.given([measured(1, 0.5), measured(2, 0.2)], seconds=6.9) is None

    def test_an_unsteady_single_process_comes_first_if_there_is_time_for_two(self):
        unsteady = measured(1, 0.05, processes=1, status="SUSPECT", codes=("never_settled",))
        assert self.given([unsteady, measured(2, 0.2)]).name == "5"
        assert self.given([unsteady, measured(2, 0.2)], seconds=13.0).name == "6"

    @pytest.mark.parametrize(
        "useless",
        [
            measured(1, 0.05, processes=1),  # nothing is wrong with it
            measured(1, 0.5, status="INVALID", codes=("other_tenants",)),
            measured(1, 0.5, outcome=Failed(kind="signal", phase="measure", message="")),
        ],
    )
    def test_no_process_is_added_where_more_do_not_help(self, useless):
        assert width(useless) == 0.0

    def test_a_spare_cell_is_not_promised_its_own_time_twice(self):
        cell = a_cell("7", 14.0, spare=True)
        schedule = a_schedule(cell, budget=23.0, spare_seconds=23.0)
        assert schedule.allot(cell).spec.budget.most_seconds <= 23.0 - START

    def test_pairs_for_the_noise_keep_their_time(self):
        pair = a_cell("p", 20.0, pair=1)
        schedule = a_schedule(*self.SPARES, pair, spare_seconds=8.0)
        ends(schedule, pair, 2.0)
        assert schedule.choose_spare(self.SPARES, [measured(1, 0.5)]) is None


@pytest.mark.parametrize(
    ("start", "seconds", "most"),
    [(2.0, 10.0, 30.0), (3.0, 10.0, 30.0), (7.0, 6.0, 26.0), (50.0, 2.0, 0.0), (None, 10.0, 30.0)],
)
def test_a_late_start_is_taken_off_but_never_all(start, seconds, most):
    budget = Budget(seconds=10.0, most_seconds=30.0, start_seconds=3.0)
    found = in_time(budget, start)
    assert (found.seconds, found.most_seconds) == (seconds, most)
    assert in_time(msgspec.structs.replace(budget, start_seconds=None), start).seconds == 10.0
