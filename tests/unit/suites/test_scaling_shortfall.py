"""The lost time of several ranks, for steps whose loss is known."""

import pytest

from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Phases
from rigdyno.suites.scaling.words import shortfall

RATE = Estimate(value=1.0, n=1, unit="image/s", method="by hand")


def a_rank(forward=0.2, backward=0.6, optimizer=0.1, broadcast=0.0, communication=0.0):
    return {
        "forward": forward, "backward": backward, "optimizer": optimizer,
        "broadcast": broadcast, "communication": communication,
    }  # fmt: skip


def computed(rank):
    return rank["forward"] + rank["backward"] + rank["optimizer"]


def phases(*ranks, longest=None):
    """`longest`: where now one, now another rank is the slowest of a step."""
    return Phases(
        forward=RATE,
        backward=RATE,
        by_rank=dict(enumerate(ranks)),
        longest_computing=longest or max(map(computed, ranks)),
        explained=1.0,
    )


ALONE = phases(a_rank())


def test_perfect_scaling_loses_nothing():
    found = shortfall(ALONE, phases(a_rank(), a_rank()))
    assert found.lost == pytest.approx(0.0)
    assert found.efficiency == pytest.approx(1.0)
    assert found.share(found.communication) == 0.0


def test_a_slow_link_is_exposed_communication_and_broadcast():
    slow = a_rank(broadcast=0.05, communication=0.40)
    found = shortfall(ALONE, phases(slow, slow))
    assert found.cause == "communication"
    assert found.communication == pytest.approx(0.45)
    assert found.waiting == pytest.approx(0.0)
    assert found.efficiency == pytest.approx(0.9 / 1.35)


def test_a_rank_that_computes_longer_is_waited_for_by_the_others():
    """Three times as slow: the quick ranks spend in communication what the slow one computes."""
    slow, quick = a_rank(0.6, 1.8, 0.3, communication=0.03), a_rank(communication=1.83)
    found = shortfall(ALONE, phases(quick, quick, slow, quick))
    assert found.slowest_rank == 2
    assert found.slowest_ratio == pytest.approx(3.0)
    assert found.cause == "waiting"
    assert found.communication == pytest.approx(0.03)


def test_computing_that_takes_longer_beside_the_others():
    crowded = a_rank(0.3, 0.9, 0.15, communication=0.02)
    found = shortfall(ALONE, phases(crowded, crowded))
    assert found.cause == "computing"
    assert found.computing == pytest.approx(0.45)
    assert found.share(found.computing) == pytest.approx(0.45 / 0.47)


def test_two_ranks_of_which_one_is_slow():
    """The slow rank's extra time is lost to both, and isn't called crowding."""
    found = shortfall(ALONE, phases(a_rank(communication=0.92), a_rank(0.4, 1.2, 0.2, communication=0.02)))
    assert (found.slowest_rank, found.cause) == (1, "waiting")
    assert found.waiting == pytest.approx(0.9)
    assert found.computing == pytest.approx(0.0)
    assert found.communication == pytest.approx(0.02)


def test_ranks_that_wait_for_each_other_in_turns():
    """On the mean they compute alike; in each step one of them is late."""
    found = shortfall(
        ALONE, phases(a_rank(backward=0.7, communication=0.2), a_rank(backward=0.7, communication=0.2), longest=1.19)
    )
    assert found.cause == "waiting"
    assert found.slowest_ratio == pytest.approx(1.0)
    assert found.communication == pytest.approx(0.01)


def test_the_parts_add_up_to_the_step():
    ranks = [a_rank(0.25, 0.7, 0.1, 0.01, 0.2), a_rank(0.2, 0.6, 0.12, 0.02, 0.3)]
    found = shortfall(ALONE, phases(*ranks))
    mean_step = sum(sum(rank.values()) for rank in ranks) / 2
    assert found.ideal + found.lost == pytest.approx(mean_step)
