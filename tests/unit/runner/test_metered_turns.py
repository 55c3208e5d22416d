"""Turns of a duel by joules: as long as the quicker arm needs to fill the time."""

from random import Random

from rigdyno.runner.referee import Referee
from rigdyno.runner.turns import Turn
from support import ManualClock


class Arm:
    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.turns = clock, seconds, []

    def turn(self, steps, flags, core):
        begin = self.clock.now_ns()
        self.clock.advance(steps * self.seconds)
        self.turns.append((steps * self.seconds, flags))
        return Turn(begin, self.clock.now_ns(), float(steps))


def test_every_turn_that_counts_is_long_enough_for_both_arms():
    clock = ManualClock()
    arms = Arm(clock, 0.1), Arm(clock, 0.13)
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
        counted = [seconds for seconds, flags in arm.turns if not flags]
        assert len(counted) >= 2
        assert min(counted) >= 11.0
