"""Whose turn it is, with players that follow a script on a clock that is moved by hand."""

import math
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from rigdyno.runner.pairs.referee import (
    BLOCK_ROUNDS,
    LEAST_ROUNDS,
    LONGEST_TURN,
    MAX_WARM_UP_SHARE,
    MIN_WARM_UP_ROUNDS,
    TURN_NS,
    WARM_UP,
    Referee,
    log_rate_ratio,
)
from rigdyno.runner.pairs.turns import Turn
from rigdyno.schema import samples
from support import ManualClock


class Player:
    """Takes so long for a step, or as the function of the turn's number says."""

    def __init__(self, name, clock, seconds, log):
        self.name, self.clock, self.log, self.count = name, clock, log, 0
        self.seconds = seconds if callable(seconds) else lambda _turn: seconds

    def turn(self, steps, flags, core):
        began_ns = self.clock.now_ns()
        self.clock.advance(steps * self.seconds(self.count))
        self.count += 1
        self.log.append((self.name, steps, flags, core))
        return Turn(began_ns, self.clock.now_ns(), float(steps))


def played(a=0.01, b=0.01, *, seconds=10.0, settled=lambda durations: True, seed=0, tick=lambda ratios: None):
    """The referee when it is over, its log of turns, and the seconds that it took."""
    clock, log = ManualClock(), []
    players = (Player("a", clock, a, log), Player("b", clock, b, log))
    referee = Referee(players, clock, Random(seed), seconds, settled, tick)
    began_ns = clock.now_ns()
    referee.play()
    return referee, log, (clock.now_ns() - began_ns) / 1e9


def rounds(log):
    return list(zip(log[::2], log[1::2], strict=True))


def warm_up_rounds(log):
    return sum(first[2] == WARM_UP for first, _ in rounds(log))


def counted(log):
    return [turn for turn in log if turn[2] == 0]


def test_the_flag_is_the_one_of_the_stored_rows():
    assert WARM_UP == samples.WARM_UP


def test_both_arms_step_in_every_round_as_often_and_from_the_same_core():
    _, log, _ = played(a=0.00012, b=0.00031)
    for first, second in rounds(log):
        assert {first[0], second[0]} == {"a", "b"}
        assert first[1:] == second[1:]


def test_who_begins_is_random_and_the_next_round_goes_the_other_way():
    _, log, _ = played(a=0.001, b=0.001)
    begins = [first[0] for first, _ in rounds(log)][warm_up_rounds(log) :]
    there, back = begins[::2], begins[1::2]
    assert all(one != two for one, two in zip(there, back, strict=True))
    count = len(there)
    assert count > 2000
    expected, spread = count / 2, math.sqrt(count) / 2
    assert abs(there.count("a") - expected) < 4 * spread
    changes = sum(one != two for one, two in pairwise(there))
    assert abs(changes - expected) < 4 * spread  # not in turn, and not in long stretches


def test_being_second_costs_neither_arm_anything():
    """The second arm of a turn takes twice as long here, and the result is still a tie."""
    clock, log = ManualClock(), []

    class Second(Player):
        def turn(self, steps, flags, core):
            self.seconds = lambda _turn: 0.01 if len(log) % 2 == 0 else 0.02
            return super().turn(steps, flags, core)

    players = (Second("a", clock, 0.01, log), Second("b", clock, 0.01, log))
    referee = Referee(players, clock, Random(0), 10.0, lambda durations: True, lambda ratios: None)
    referee.play()
    assert referee.log_ratios == pytest.approx([0.0] * len(referee.log_ratios))


def test_every_core_is_begun_on():
    _, log, _ = played(a=0.001, b=0.001)
    begun = Counter(turn[3] % 4 for turn in log[::2])
    assert set(begun) == {0, 1, 2, 3}
    assert min(begun.values()) > 0.8 * len(log) / 2 / 4


def test_the_same_seed_plays_the_same_order():
    orders = [[turn[0] for turn in played(seed=seed)[1]] for seed in ("0 1", "0 1", "0 2")]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_warm_up_ends_once_both_are_settled():
    looked = []

    def settled(durations):
        looked.append(len(durations))
        return len(durations) >= 9

    _, log, _ = played(settled=settled)
    assert looked[0] == MIN_WARM_UP_ROUNDS
    assert warm_up_rounds(log) >= 9
    assert all(turn[2] == WARM_UP for turn in log[: 2 * warm_up_rounds(log)])  # and none later
    assert len(looked) < warm_up_rounds(log)  # looking costs: not after every round


def test_one_arm_that_settles_does_not_settle_for_the_other():
    """B is ten times as slow for its first 20 turns."""
    _, log, _ = played(
        a=0.01,
        b=lambda turn: 0.1 if turn < 20 else 0.01,
        seconds=100.0,
        settled=lambda durations: max(durations) < 2e7 or len(durations) >= 30,
    )
    assert warm_up_rounds(log) >= 30


def test_a_pair_that_never_settles_is_measured_all_the_same():
    _, log, seconds = played(a=0.01, b=0.01, seconds=10.0, settled=lambda durations: False)
    assert warm_up_rounds(log) * 0.02 == pytest.approx(10.0 * MAX_WARM_UP_SHARE, abs=0.021)
    assert seconds == pytest.approx(10.0, abs=0.041)


def test_the_referee_stops_when_the_time_is_up():
    referee, log, seconds = played(a=0.03, b=0.05, seconds=10.0)
    assert seconds == pytest.approx(10.0, abs=0.161)
    assert len(referee.log_ratios) == len(counted(log)) / 4


@pytest.mark.parametrize("step_seconds", [1.0, 60.0, 1e4])
def test_long_steps_still_give_the_least_number_of_rounds(step_seconds):
    referee, log, _ = played(a=step_seconds, b=step_seconds, seconds=1.0)
    assert len(referee.log_ratios) == LEAST_ROUNDS
    assert warm_up_rounds(log) == 1  # even then: the first step is never like the others


def test_a_turn_is_long_enough_for_the_clock():
    _, log, _ = played(a=0.00012, b=0.00031, seconds=1.0)
    steps = {turn[1] for turn in counted(log)}
    assert steps == {math.ceil(TURN_NS / 120_000)}
    assert [turn[1] for turn in log[: 2 * BLOCK_ROUNDS]] == [1] * 2 * BLOCK_ROUNDS


def test_the_slower_of_two_very_different_arms_bounds_the_turn():
    """A step of 1 us against one of 10 ms: a thousand steps a turn would take ten seconds of the slower arm."""
    _, log, _ = played(a=1e-6, b=0.01, seconds=10.0)
    (steps,) = {turn[1] for turn in counted(log)}
    assert steps * 0.01 <= LONGEST_TURN * TURN_NS / 1e9 + 0.01
    assert steps >= 1


def test_steps_of_a_millisecond_are_turns_of_their_own():
    _, log, _ = played(a=0.001, b=0.0011)
    assert {turn[1] for turn in log} == {1}


def test_a_clock_that_stands_still_is_no_division_by_zero():
    clock, log = ManualClock(), []
    players = (Player("a", clock, 0.0, log), Player("b", clock, 0.0, log))

    def tick(_ratios):
        clock.advance(0.01)

    referee = Referee(players, clock, Random(0), 1.0, lambda durations: True, tick)
    referee.play()
    assert set(referee.log_ratios) == {0.0}


def test_after_turns_become_long_the_warm_up_begins_anew():
    """Turns of a single step are slower here by the step, and don't stay among the others."""
    seen = []

    def seconds(turn):
        return 3e-5 if turn < BLOCK_ROUNDS else 1e-5

    played(a=seconds, b=seconds, settled=lambda durations: not seen.append(list(durations)))
    assert len(seen[0]) == MIN_WARM_UP_ROUNDS
    assert seen[0] == pytest.approx([1e4] * MIN_WARM_UP_ROUNDS)  # by the step, whatever a turn holds


def test_the_observer_gets_the_ratios_between_rounds():
    told = []
    referee, log, _ = played(a=0.01, b=0.0125, seconds=3.0, tick=lambda ratios: told.append(list(ratios)))
    assert told[0] == []  # of the warm-up
    assert told[-1] == referee.log_ratios
    assert referee.log_ratios == pytest.approx([math.log(0.8)] * (len(counted(log)) // 4))


def test_the_ratio_of_two_turns_agrees_with_a_hand_calculation():
    a, b = Turn(0, 2_000_000, 10.0), Turn(5, 4_000_005, 30.0)
    assert log_rate_ratio(a, b) == pytest.approx(math.log(1.5))
    assert log_rate_ratio(b, a) == pytest.approx(-math.log(1.5))
    for spoiled in (Turn(0, 0, 1.0), Turn(5, 1, 1.0), Turn(0, 5, 0.0), Turn(0, 5, -1.0)):
        assert log_rate_ratio(a, spoiled) == log_rate_ratio(spoiled, a) == 0.0
