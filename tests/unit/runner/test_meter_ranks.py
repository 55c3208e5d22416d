"""Meters of several ranks, each in its thread with a clock of its own: they must ask each other at the same steps."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rigdyno.runner.meter import StepMeter
from rigdyno.schema.samples import STEP_FIELDS, WARM_UP, Header, RowFile, read_rows
from rigdyno.schema.spec import Budget
from support import ManualClock, a_rank

PATIENCE_SECONDS = 60.0  # ranks that miss each other would wait for ever


class Ranks:
    """The largest of all numbers, once all have given theirs: what an all-reduce does."""

    def __init__(self, count):
        self.numbers, self.asked = [0] * count, [[] for _ in range(count)]
        self.barrier = threading.Barrier(count, timeout=PATIENCE_SECONDS)

    def agree(self, rank, number):
        self.numbers[rank] = number
        self.asked[rank].append(number)
        self.barrier.wait()
        largest = max(self.numbers)
        self.barrier.wait()
        return largest


def run_ranks(folder, budget, *seconds, settled=lambda durations: len(durations) >= 5):
    """Each rank with its own length of a step, by number; the rows of each."""
    ranks = Ranks(len(seconds))

    def one(rank):
        clock, length = ManualClock(), seconds[rank]
        file = RowFile(
            folder / f"steps.{rank}.rows", Header(fields=STEP_FIELDS, kinds=("step",), participant=a_rank(rank))
        )
        meter = StepMeter(file, clock, budget, settled=settled, agree=lambda number: ranks.agree(rank, number))
        steps = 0
        while meter.more():
            clock.advance(length(steps) if callable(length) else length)
            meter.step(1.0)
            steps += 1
        meter.close()

    with ThreadPoolExecutor(len(seconds)) as pool:
        list(pool.map(one, range(len(seconds))))
    assert len({len(asked) for asked in ranks.asked}) == 1
    return [read_rows(folder / f"steps.{rank}.rows")[1] for rank in range(len(seconds))]


def warm_up(rows):
    return int((rows["flags"] & WARM_UP != 0).sum())


@pytest.mark.parametrize("slower", [0.1, 0.11, 0.3, 2.0])
def test_all_ranks_take_the_same_steps_however_slow_one_of_them_is(tmp_path, slower):
    """In truth they wait for each other in every step; here each goes by its own clock, which is harder."""
    one, two = run_ranks(tmp_path, Budget(seconds=10.0), 0.1, slower)
    assert len(one) == len(two)
    assert warm_up(one) == warm_up(two)


def test_the_last_rank_to_settle_ends_the_warm_up_of_all(tmp_path):
    def settled(durations):
        return durations[-1] < 0.15e9

    late = lambda step: 0.1 if step >= 20 else 0.2  # noqa: E731
    one, two = run_ranks(tmp_path, Budget(seconds=60.0), 0.1, late, settled=settled)
    assert warm_up(one) == warm_up(two) > 20


def test_blocks_are_as_long_as_the_quickest_rank_needs_them(tmp_path):
    one, two = run_ranks(tmp_path, Budget(seconds=1.0), 0.0001, 0.0005)
    assert set(one["steps"][one["flags"] == 0]) == set(two["steps"][two["flags"] == 0]) == {10}
    assert len(one) == len(two)


@pytest.mark.parametrize("stop", ["clock", "steps"])
def test_the_first_clock_whose_time_is_up_ends_it_for_all(tmp_path, stop):
    budget = Budget(seconds=10.0, stop=stop)
    one, two = run_ranks(tmp_path, budget, 0.1, lambda step: 0.1 if step < 30 else 0.5)
    assert len(one) == len(two)
    spent = (two["end_ns"][-1] - two["start_ns"][0]) / 1e9
    assert 10.0 <= spent <= 11.0


def test_the_time_is_kept_by_ranks_however_slow_their_steps_become(tmp_path):
    late = lambda step: 0.002 if step < 100 else 0.1  # noqa: E731
    one, two = run_ranks(tmp_path, Budget(seconds=2.0), late, late)
    assert len(one) == len(two)
    assert (one["end_ns"][-1] - one["start_ns"][0]) / 1e9 < 8.0  # a stretch of a tenth of a second, 50 times as long


def test_a_block_is_chosen_again_by_all_ranks_together(tmp_path):
    one, two = run_ranks(tmp_path, Budget(seconds=4.0), lambda step: 0.02 if step < 8 else 0.0001, 0.0001)
    assert set(one["steps"][-100:]) == set(two["steps"][-100:]) == {10}
    assert list(one["steps"]) == list(two["steps"])


def test_ranks_take_at_most_the_given_number_of_steps(tmp_path):
    one, two = run_ranks(tmp_path, Budget(seconds=10.0, max_steps=7), 0.1, 0.2)
    assert len(one) == len(two) == warm_up(one) + 7


@pytest.mark.parametrize("seconds", [(0.01, 0.013), (0.0002, 0.0003)])
def test_a_job_ends_at_the_same_step_on_every_rank(tmp_path, seconds):
    found = run_ranks(tmp_path, Budget(seconds=1.0, job_steps=777), *seconds)
    assert [int(rows["steps"].sum()) for rows in found] == [777, 777]
