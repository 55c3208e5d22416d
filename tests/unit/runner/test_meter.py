"""The meter on a clock that is moved by hand: nothing here sleeps, nothing depends on the machine."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rigdyno.base.errors import BadValue
from rigdyno.runner.meter import BUFFER_ROWS, StepMeter
from rigdyno.schema.samples import CLOCK_JUMPED, STEP_FIELDS, WARM_UP, Header, RowFile, read_rows
from rigdyno.schema.spec import Budget
from support import ManualClock, a_rank


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "steps.0.rows"


def a_meter(path, clock, budget, **changes):
    file = RowFile(path, Header(fields=STEP_FIELDS, kinds=("step",), participant=a_rank()))
    return StepMeter(file, clock, budget, **{"settled": lambda durations: len(durations) >= 5, **changes})


def run(meter, clock, seconds, items=1.0, kinds=1):
    """Steps of these lengths until the meter has enough; how many that were."""
    steps = 0
    while meter.more():
        clock.advance(seconds(steps) if callable(seconds) else seconds)
        meter.step(items, steps % kinds)
        steps += 1
    meter.close()
    return steps


def test_the_meter_spends_the_budget_and_keeps_every_step_with_flagged_warm_up(path, clock):
    steps = run(a_meter(path, clock, Budget(seconds=10.0)), clock, 0.1, items=32)
    header, rows = read_rows(path)
    assert steps == len(rows) == 100
    assert header.kinds == ("step",)
    assert (rows["flags"] & WARM_UP).sum() == 5
    assert rows["items"].sum() == 3200
    assert set(rows["end_ns"] - rows["start_ns"]) == {100_000_000}


def test_the_time_is_kept_however_slow_the_steps_become(path, clock):
    """A neighbour who comes after the warm-up must not make a run of ten seconds one of five minutes."""
    began = clock.at_ns
    steps = run(a_meter(path, clock, Budget(seconds=10.0)), clock, lambda step: 0.1 if step < 20 else 1.0)
    assert steps == 20 + 8
    assert clock.at_ns - began == pytest.approx(10e9)


def test_the_time_is_used_however_slow_the_first_steps_were(path, clock):
    """Seen on a busy machine: the number of steps was worked out from slow ones, and 1.4 ms of 12 s were measured."""
    run(a_meter(path, clock, Budget(seconds=4.0)), clock, lambda step: 0.1 if step < 8 else 0.0000467)
    _, rows = read_rows(path)
    measured = rows[rows["flags"] == 0]
    assert (measured["end_ns"] - measured["start_ns"]).sum() > 2.9e9


def test_a_block_is_chosen_again_where_the_first_steps_were_slow(path, clock):
    """Rows of at least a millisecond, whatever the caches or a neighbour did to the first three steps."""
    meter = a_meter(path, clock, Budget(seconds=4.0), settled=lambda durations: len(durations) >= 30)
    run(meter, clock, lambda step: 0.02 if step < 4 else 0.0000467)
    _, rows = read_rows(path)
    measured = rows[rows["flags"] == 0]
    assert (measured["end_ns"] - measured["start_ns"]).min() >= 1_000_000
    assert set(measured["steps"]) == {22}


@pytest.mark.parametrize("budget", [Budget(seconds=4.0), Budget(seconds=60.0, max_steps=50_000), None])
def test_a_block_grows_where_steps_become_quick_after_the_warm_up(path, clock, budget):
    meter = a_meter(path, clock, budget)
    for step in range(60_000):
        if not meter.more():
            break
        clock.advance(0.02 if step < 30 else 0.0000467)
        meter.step()
    meter.close()
    _, rows = read_rows(path)
    late = rows[rows["start_ns"] > rows["start_ns"][0] + 1.3e9]
    assert len(late) > 100
    assert set(late["steps"][:-1]) == {22}
    if budget is not None and budget.max_steps is not None:
        assert 50_000 <= rows["steps"][rows["flags"] == 0].sum() < 50_022


def test_a_block_that_is_chosen_late_does_not_warm_up_for_more_than_half_of_the_time(path, clock):
    """It never settles, and becomes quicker and quicker."""
    meter = a_meter(path, clock, Budget(seconds=4.0), settled=lambda durations: False)
    run(meter, clock, lambda step: max(0.00001, 0.02 * 0.999**step))
    _, rows = read_rows(path)
    measured = rows[rows["flags"] == 0]
    assert measured["start_ns"][0] - rows["start_ns"][0] <= 2.1e9


def test_warm_up_lasts_until_steps_are_steady_but_at_most_half_of_the_budget(path, clock):
    meter = a_meter(path, clock, Budget(seconds=10.0), settled=lambda durations: False)
    run(meter, clock, 0.1)
    _, rows = read_rows(path)
    assert (rows["flags"] & WARM_UP).sum() == 50
    assert len(rows) == 100


def test_a_step_longer_than_the_budget_is_still_measured_once_after_warm_up(path, clock):
    assert run(a_meter(path, clock, Budget(seconds=1.0)), clock, 5.0) == 3
    _, rows = read_rows(path)
    assert list(rows["flags"]) == [WARM_UP, WARM_UP, 0]


@pytest.mark.parametrize("first", [3.0, 30.0])
def test_a_first_step_that_compiles_for_long_says_nothing_about_the_others(path, clock, first):
    """The rest of the budget, and at least a fifth of it, goes to the later steps."""
    steps = run(a_meter(path, clock, Budget(seconds=4.0)), clock, lambda step: first if step == 0 else 0.01)
    _, rows = read_rows(path)
    assert (rows["flags"] & WARM_UP).sum() == 2
    assert steps - 2 == (99 if first == 3.0 else 80)


def test_short_steps_after_a_long_first_one_are_still_timed_in_blocks(path, clock):
    run(a_meter(path, clock, Budget(seconds=4.0)), clock, lambda step: 3.0 if step == 0 else 0.0001)
    _, rows = read_rows(path)
    assert set(rows["steps"][rows["flags"] == 0]) == {10}


def test_max_steps_ends_it_before_the_time(path, clock):
    assert run(a_meter(path, clock, Budget(seconds=10.0, max_steps=10)), clock, 0.1) == 15


def test_a_soak_ends_with_the_clock_however_slow_the_steps_become(path, clock):
    began = clock.at_ns
    steps = run(a_meter(path, clock, Budget(seconds=10.0, stop="clock")), clock, lambda step: 0.1 if step < 20 else 1.0)
    assert steps == 20 + 8
    assert clock.at_ns - began == pytest.approx(10e9)


def test_steps_below_a_millisecond_are_timed_in_blocks_of_at_least_one(path, clock):
    steps = run(a_meter(path, clock, Budget(seconds=1.0)), clock, 0.00003)
    _, rows = read_rows(path)
    blocks = rows[3:]
    assert set(rows["steps"][:3]) == {1}
    assert set(blocks["steps"]) == {34}  # 34 x 30 us = 1.02 ms
    assert (blocks["end_ns"] - blocks["start_ns"]).min() >= 1_000_000
    assert rows["steps"].sum() == rows["items"].sum() == steps
    assert (rows["flags"] & WARM_UP).sum() == 3 + 5  # blocks warm up anew, and then it is over


def test_kinds_that_take_turns_get_a_row_each(path, clock):
    run(a_meter(path, clock, Budget(seconds=1.0), kinds=3), clock, 0.0001, kinds=3)
    _, rows = read_rows(path)
    assert set(rows["steps"]) == {1}
    assert list(rows["kind"][:6]) == [0, 1, 2, 0, 1, 2]
    counts = np.bincount(rows["kind"][rows["flags"] == 0])
    assert len(counts) == 3
    assert max(counts) - min(counts) <= 1


def test_every_kind_is_measured_though_one_round_takes_longer_than_the_budget(path, clock):
    meter = a_meter(path, clock, Budget(seconds=1.0), kinds=3, settled=lambda durations: False)
    run(meter, clock, 0.7, kinds=3)
    _, rows = read_rows(path)
    assert sorted(rows["kind"][rows["flags"] == 0]) == [0, 1, 2]


def test_each_kind_must_settle_by_itself(path, clock):
    """Kinds differ in length: mixed together they would never look steady."""
    seen = []
    meter = a_meter(path, clock, Budget(seconds=10.0), kinds=2, settled=lambda durations: seen.append(set(durations)))
    steps = run(meter, clock, lambda step: (0.1, 0.2)[step % 2], kinds=2)
    assert all(len(lengths) == 1 for lengths in seen)
    assert steps == 67  # of 0.15 s on average


def test_looking_whether_it_is_settled_costs_no_step_anything(path, clock):
    def slow_look(durations):
        clock.advance(0.5)
        return len(durations) >= 8

    run(a_meter(path, clock, Budget(seconds=10.0), settled=slow_look), clock, 0.1)
    _, rows = read_rows(path)
    assert set(rows["end_ns"] - rows["start_ns"]) == {100_000_000}


def test_an_asynchronous_device_is_waited_for_once_a_row_and_rarely(path, clock):
    waits = []
    meter = a_meter(path, clock, Budget(seconds=1.0), synchronise=lambda: waits.append(clock.at_ns))
    run(meter, clock, 0.001)
    _, rows = read_rows(path)
    assert len(waits) == len(rows) + 1  # once before the first step, so that building isn't counted
    assert set(rows["steps"][3:-1]) == {10}


def test_rows_are_written_between_steps_so_that_no_step_contains_it(path, clock):
    """A slow disk costs time, but not of any step."""
    meter = a_meter(path, clock, Budget(seconds=10.0))
    append = meter._file.append

    def slow_append(rows):
        clock.advance(0.05)
        append(rows)

    meter._file.append = slow_append
    run(meter, clock, 0.1)
    _, rows = read_rows(path)
    assert set(rows["end_ns"] - rows["start_ns"]) == {100_000_000}
    gaps = rows["start_ns"][1:] - rows["end_ns"][:-1]
    assert set(gaps) == {0, 50_000_000}


def test_a_crash_loses_half_a_second_of_steps_at_most(path, clock):
    """Never closed: what is on disk is what was flushed."""
    meter = a_meter(path, clock, None)
    for _ in range(100):
        clock.advance(0.03)
        meter.step()
    _, rows = read_rows(path)
    assert clock.at_ns - rows["end_ns"][-1] <= 530_000_000


@pytest.mark.parametrize("seconds", [0.1, 0.02, 0.001, 0.00003, lambda step: 0.01 if step < 200 else 0.3])
@pytest.mark.parametrize("items", [lambda step: None, lambda step: 8, lambda step: 5 if step % 7 == 6 else 8])
@pytest.mark.parametrize("budget", [Budget(seconds=4.0), Budget(seconds=4.0, stop="clock"), Budget(max_steps=31)])
def test_the_meters_own_loop_gives_the_same_rows_as_any_other(tmp_path, seconds, items, budget):
    found = []
    for own in (False, True):
        clock, done = ManualClock(), itertools.count()
        path = tmp_path / f"{own}.rows"
        meter = a_meter(path, clock, budget)

        def step(clock=clock, done=done):
            number = next(done)
            clock.advance(seconds(number) if callable(seconds) else seconds)
            return items(number)

        if own:
            meter.repeat(step, 4.0)
        else:
            while meter.more():
                count = step()
                meter.step(4.0 if count is None else count)
        meter.close()
        found.append(read_rows(path)[1])
    one, other = found
    assert len(one) == len(other) > 5
    assert (one == other).all()


def test_a_batch_of_another_size_is_counted_as_what_it_is(path, clock):
    """Every seventh, as at the end of an epoch."""
    meter = a_meter(path, clock, None)
    sizes = [5 if step % 7 == 6 else 32 for step in range(100)]
    for size in sizes:
        clock.advance(0.01)
        meter.step(size)
    meter.close()
    _, rows = read_rows(path)
    assert list(rows["items"]) == sizes
    assert set(rows["end_ns"] - rows["start_ns"]) == {10_000_000}


def test_a_crash_loses_half_a_second_even_of_steps_that_became_slow(path, clock):
    meter = a_meter(path, clock, None)
    for step in range(2000):
        clock.advance(0.002 if step < 1960 else 0.3)
        meter.step()
    _, rows = read_rows(path)
    assert clock.at_ns - rows["end_ns"][-1] <= 800_000_000


def test_ctrl_c_in_the_middle_of_a_step_leaves_whole_rows(path, clock):
    """It may come at any point, also between reading the clock and storing the reading."""
    ticks = [0]

    def now_ns():
        ticks[0] += 1
        if ticks[0] % 50 == 0:
            raise KeyboardInterrupt
        return clock.at_ns

    meter = a_meter(path, SimpleNamespace(now_ns=now_ns, wall_ns=clock.wall_ns), None)
    interrupted = 0
    for _ in range(1000):
        clock.advance(0.01)
        try:
            meter.step(3)
        except KeyboardInterrupt:
            interrupted += 1
    ticks[0] = 0
    meter.close()
    _, rows = read_rows(path)
    assert interrupted > 10
    assert set(rows["items"] / rows["steps"]) == {3.0}
    assert (rows["end_ns"] > rows["start_ns"]).all()


def test_a_full_buffer_is_written_even_where_no_time_passes(path, clock):
    meter = a_meter(path, clock, None, kinds=2)
    for step in range(3 * BUFFER_ROWS + 5):
        meter.step(1.0, step % 2)
    meter.close()
    _, rows = read_rows(path)
    assert len(rows) == 3 * BUFFER_ROWS + 5


def test_a_users_own_loop_runs_until_they_end_it(path, clock):
    meter = a_meter(path, clock, None, settled=lambda durations: False)
    for _ in range(1000):
        assert meter.more()
        clock.advance(0.1)
        meter.step(items=8)
    meter.close()
    _, rows = read_rows(path)
    assert (rows["flags"] & WARM_UP).sum() == 20  # two seconds, then it counts
    assert rows["items"].sum() == 8000


@pytest.mark.parametrize("loss", [0.123, -1, float("nan"), float("inf"), "8", True, torch.tensor(2.3)])
@pytest.mark.parametrize("steps", [0, 5000])
def test_a_loss_is_no_number_of_items(path, clock, loss, steps):
    """Early, or when the meter is in its stride."""
    meter = a_meter(path, clock, None)
    for _ in range(steps):
        clock.advance(0.002)
        meter.step(8)
    with pytest.raises(BadValue, match="never a loss"):
        meter.step(loss)


def test_closing_keeps_a_block_that_is_not_full_and_nothing_that_came_after_it(path, clock):
    meter = a_meter(path, clock, None)
    for _ in range(57):
        clock.advance(0.0001)
        meter.step()
    clock.advance(5.0)  # a last validation inside of the user's block
    meter.close()
    _, rows = read_rows(path)
    assert rows["steps"].sum() == 57
    assert (rows["end_ns"] - rows["start_ns"]).sum() == 57 * 100_000


def test_restarting_inside_of_a_block_loses_neither_steps_nor_their_time(path, clock):
    meter = a_meter(path, clock, None)
    for step in range(1, 701):
        clock.advance(0.0001)
        meter.step()
        if step % 7 == 0:
            clock.advance(0.5)
            meter.restart()
    meter.close()
    _, rows = read_rows(path)
    assert rows["steps"].sum() == 700
    assert (rows["end_ns"] - rows["start_ns"]).sum() == 700 * 100_000


def test_a_block_that_an_asynchronous_device_may_not_have_done_yet_is_left_out(path, clock):
    meter = a_meter(path, clock, None, synchronise=lambda: None)
    for _ in range(25):
        clock.advance(0.001)
        meter.step()
    clock.advance(5.0)
    meter.close()
    _, rows = read_rows(path)
    assert rows["steps"].sum() == 3 + 20


def test_restart_leaves_out_what_happened_between_two_steps(path, clock):
    meter = a_meter(path, clock, None)
    clock.advance(0.1)
    meter.step()
    clock.advance(30.0)  # a validation pass, say
    meter.restart()
    clock.advance(0.1)
    meter.step()
    meter.close()
    _, rows = read_rows(path)
    assert np.array_equal(rows["end_ns"] - rows["start_ns"], [100_000_000, 100_000_000])


def jumped(path):
    _, rows = read_rows(path)
    return (rows["flags"] & CLOCK_JUMPED) != 0


def steps_with(clock, meter, happens, at=50, count=100):
    for step in range(count):
        if step == at:
            happens()
        clock.advance(0.1)
        meter.step()
    meter.close()


def set_wall_clock(clock):
    clock.wall_ahead_ns += 3_600_000_000_000


@pytest.mark.parametrize(
    "happens",
    [set_wall_clock, lambda clock: clock.jump(0.7), lambda clock: clock.jump(-0.7), lambda clock: clock.jump(-9999)],
    ids=["wall clock set", "forwards", "backwards", "far backwards"],
)
def test_rows_over_which_the_clock_jumped_are_tagged_and_kept(path, clock, happens):
    meter = a_meter(path, clock, None)
    steps_with(clock, meter, lambda: happens(clock))
    hit = np.flatnonzero(jumped(path))
    assert len(jumped(path)) == 100
    assert 50 in hit
    assert len(hit) <= 6  # half a second, and no more
    _, rows = read_rows(path)
    assert (rows["flags"] & WARM_UP).sum() == 5


def test_a_clock_that_jumps_back_while_warming_up_does_not_end_the_run(path, clock):
    seen = []
    meter = a_meter(path, clock, None, settled=lambda durations: seen.extend(durations) or len(durations) >= 20)
    steps_with(clock, meter, lambda: clock.jump(-5), at=7)
    assert min(seen) > 0
    assert jumped(path).any()


@pytest.mark.parametrize("seconds", [0.0005, -0.0005])
def test_what_slewing_and_scheduling_do_is_no_jump(path, clock, seconds):
    meter = a_meter(path, clock, None)
    steps_with(clock, meter, lambda: clock.jump(seconds))
    assert not jumped(path).any()


def test_being_put_aside_between_reading_the_two_clocks_is_no_jump(path, clock):
    """The clock that is read later is then ahead by as much."""
    meter = a_meter(path, clock, None)
    wall_ns, look = clock.wall_ns, meter._watch

    def late():
        clock.advance(0.3)
        return wall_ns()

    def once():
        look._wall_ns = late

    steps_with(clock, meter, once)
    assert not jumped(path).any()


@pytest.mark.parametrize("seconds", [0.1, 0.0007, 0.0000467])
@pytest.mark.parametrize("steps", [1, 3, 7, 1234])
def test_a_job_ends_with_its_last_step_whatever_the_time(path, clock, seconds, steps):
    """Warm-up included; blocks of short steps must lose none."""
    looked = []
    meter = a_meter(path, clock, Budget(seconds=1.0, job_steps=steps), ended=lambda: looked.append(clock.at_ns))
    assert run(meter, clock, seconds, items=64) == steps
    _, rows = read_rows(path)
    assert rows["steps"].sum() == steps
    assert rows["items"].sum() == 64 * steps
    assert len(looked) == 1
    spent = (rows["end_ns"][-1] - rows["start_ns"][0]) / 1e9
    assert spent == pytest.approx(seconds * steps, rel=1e-6)


def test_a_job_on_a_device_that_works_asynchronously_waits_for_its_last_steps(path, clock):
    waited = []
    meter = a_meter(path, clock, Budget(seconds=1.0, job_steps=50), synchronise=lambda: waited.append(clock.at_ns))
    assert run(meter, clock, 0.003) == 50
    _, rows = read_rows(path)
    assert rows["steps"].sum() == 50
    assert waited[-1] == rows["end_ns"][-1] == clock.at_ns


@pytest.mark.parametrize("seconds", [0.1, 0.0007, 0.0000467])
@pytest.mark.parametrize("steps", [1, 3, 1234])
def test_a_job_of_steps_that_are_repeated_ends_with_the_last_of_them(path, clock, seconds, steps):
    """They say themselves how many items they were, and none may be done once more."""
    meter, taken = a_meter(path, clock, Budget(seconds=1.0, job_steps=steps)), []

    def step():
        taken.append(len(taken) % 3)
        clock.advance(seconds)
        return float(taken[-1])

    meter.repeat(step, 1.0)
    meter.close()
    _, rows = read_rows(path)
    assert len(taken) == rows["steps"].sum() == steps
    assert rows["items"].sum() == sum(taken)
