"""Turns of a duel by joules: every one that counts is as long as the sensor needs, for either arm."""

from random import Random

import pytest

from rigdyno.runner.pairs.referee import Referee
from rigdyno.runner.pairs.turns import Turn
from support import ManualClock


class Arm:
    """Steps of `seconds` each; the first five take `slow` times as long."""

    def __init__(self, clock, seconds, slow):
        self.clock, self.seconds, self.slow, self.turns, self.done = clock, seconds, slow, [], 0

    def turn(self, steps, flags, core):
        begin, first = self.clock.now_ns(), min(steps, max(0, 5 - self.done))
        self.clock.advance((steps + (self.slow - 1) * first) * self.seconds)
        self.done += steps
        self.turns.append((self.clock.now_ns() - begin, flags))
        return Turn(begin, self.clock.now_ns(), float(steps))


@pytest.mark.parametrize(("a", "b", "slow"), [(0.1, 0.13, 20), (2e-6, 5e-5, 1000), (40.0, 0.001, 1)])
def test_every_turn_that_counts_is_long_enough_for_both_arms(a, b, slow):
    clock = ManualClock()
    arms = Arm(clock, a, slow), Arm(clock, b, slow)
    Referee(
        players=arms,
        clock=clock,
        random=Random(1),
        seconds=66.0,
        settled=lambda durations: False,
        tick=lambda ratios: None,
        least_rounds=1,
        turn_ns=11 * 10**9,
    ).play()
    for arm in arms:
        counted = [duration_ns / 1e9 for duration_ns, flags in arm.turns if not flags]
        assert len(counted) >= 2
        assert min(counted) >= 11.0
        assert max(counted) <= max(12.5, 1.1 * arm.seconds)  # and no longer than it has to be
