"""Phases of training steps that were made up, so that the answer is known."""

import numpy as np
import pytest

from rigdyno import api
from rigdyno.analyse.phases import check_explained, phases_of, phases_over_processes
from rigdyno.suites.scaling.words import shortfall
from stored_runs import made_up_rank, stored_ranks

MS = 1_000_000
STEP = {"data": 1, "broadcast": 4, "forward": 20, "backward": 60, "communication": 10, "optimizer": 5}


def rank(**changes):
    return made_up_rank(**{**STEP, **changes})


def phases(*ranks):
    steady, timed = ({number: rank[part] for number, rank in enumerate(ranks)} for part in (0, 1))
    return phases_of(steady, timed, "image/s")


@pytest.mark.parametrize("block", [1, 3])
def test_rates_are_items_over_the_time_of_their_phases_summed_over_ranks(block):
    found = phases(rank(block=block), rank(block=block))
    assert found.forward.value == pytest.approx(2 * 8 / 0.024)
    assert found.backward.value == pytest.approx(2 * 8 / 0.075)
    assert found.forward.unit == "image/s"


def test_seconds_of_a_step_rank_by_rank():
    found = phases(rank(), rank(communication=2, backward=68))
    assert found.by_rank[0] == pytest.approx({name: milliseconds / 1000 for name, milliseconds in STEP.items()})
    assert found.by_rank[1]["communication"] == pytest.approx(0.002)


def test_the_longest_computing_is_that_of_each_step_by_itself():
    """One rank is slow in even steps, the other in odd ones: every step has a slow rank."""
    one, two = rank(steps=12), rank(steps=12)
    for (_, marks), odd in ((one, 0), (two, 1)):
        marks["backward"]["end_ns"][odd::2] += 9 * MS
    found = phases(one, two)
    assert found.longest_computing == pytest.approx((1 + 20 + 60 + 5 + 9) / 1000)
    assert found.by_rank[0]["backward"] == pytest.approx(0.0645)
    settled_later = phases(one, (two[0][5:], two[1]))
    assert settled_later.longest_computing == pytest.approx(found.longest_computing)


def test_marks_outside_of_the_steady_steps_do_not_count():
    rows, marks = rank(steps=12)
    found = phases((rows[4:], marks))
    assert found.by_rank[0]["forward"] == pytest.approx(0.020)
    assert found.explained == pytest.approx(1.0)


def test_a_step_whose_phases_leave_time_over_is_suspect():
    assert check_explained(phases(rank())) == []
    assert check_explained(phases(rank(gap_ms=1))) == []
    [finding] = check_explained(phases(rank(), rank(gap_ms=10)))
    assert (finding.severity, finding.code) == ("SUSPECT", "unexplained")
    assert "91 %" in finding.sentence


def test_what_was_not_timed_has_no_phases():
    rows, _ = rank()
    assert phases_of({0: rows}, {0: {}}, "image/s") is None
    assert phases_of({0: rows[:0]}, {0: rank()[1]}, "image/s") is None
    assert check_explained(None) == []


def test_several_processes_count_as_their_means():
    one, two = phases(rank()), phases(rank(forward=40))
    both = phases_over_processes([one, two])
    assert both.by_rank[0]["forward"] == pytest.approx(0.030)
    assert one.forward.value > both.forward.value > two.forward.value
    assert phases_over_processes([]) is None
    assert phases_over_processes([one]) is one


def test_a_step_without_a_sample_has_no_forward_and_no_backward():
    """Batches that are drawn at random may be empty."""
    rows, marks = rank()
    empty = 5
    rows["items"][empty] = 0
    for name in ("broadcast", "forward", "backward", "communication", "optimizer"):
        marks[name] = np.delete(marks[name], empty)
    found = phases((rows, marks))
    assert found.forward.value == pytest.approx(8 / 0.024)
    assert found.backward.value == pytest.approx(8 / 0.075)


def stored_phases(root, count, slow=None):
    """Return the phases of a stored run of that many ranks, of which one waits 150 ms for its data."""
    ranks = [rank(data=150, communication=10) if n == slow else rank(communication=159) for n in range(count)]
    [measurement] = api.load(stored_ranks(root, ranks)).measurements
    return measurement.phases


def test_the_slow_rank_of_twelve_is_named(tmp_path):
    """Rank 11 comes before rank 2 in the alphabet."""
    together = stored_phases(tmp_path, 12, slow=11)
    assert list(together.by_rank) == list(range(12))
    assert {number for number, spent in together.by_rank.items() if spent["data"] > 0.1} == {11}
    assert shortfall(stored_phases(tmp_path, 1), together).slowest_rank == 11
