"""Decide whose turn it is in a pair of processes.

After a warm-up there are rounds of one turn for each arm, in random order and then in the opposite order, until the
time of the pair is up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from rigdyno.base.clock import Clock, Stopwatch
from rigdyno.runner.pairs.turns import Turn

WARM_UP = 1  # the flag of schema/samples, not imported because that would import msgspec

MIN_WARM_UP_ROUNDS = 5

MAX_WARM_UP_SHARE = 0.3  # of the pair's time: a pair that doesn't become steady is measured nevertheless

LEAST_ROUNDS = 5  # measured double rounds: a median of fewer could be a single outlier

BLOCK_ROUNDS = 3  # rounds of single steps, after which the length of a turn is chosen

TURN_NS = 1_000_000  # shorter turns would measure the clock and the switch between processes

MOST_AT_ONCE, AIM_BEYOND = 8.0, 1.05  # maximum growth of a turn per round; margin above the requested length

LONGEST_TURN = 50  # maximum turn of the slower arm, in units of TURN_NS, if the arms differ a lot


class Player(Protocol):
    def turn(self, steps: int, flags: int, core: int) -> Turn: ...


@dataclass
class Referee:
    players: tuple[Player, Player]
    clock: Clock
    random: Random
    seconds: float  # for warm-up and steps together
    settled: Callable[[Sequence[float]], bool]
    tick: Callable[[Sequence[float]], None]  # called between rounds with the logarithms of B's rate over A's
    least_rounds: int = LEAST_ROUNDS
    turn_ns: int = TURN_NS  # minimum length of a turn; above TURN_NS, reaching it replaces the warm-up
    log_ratios: list[float] = field(default_factory=list)
    _steps: list[int] = field(default_factory=lambda: [1, 1])  # in a turn of each arm

    def play(self) -> None:
        """Run the warm-up, then rounds until the time is up."""
        stopwatch = Stopwatch(self.clock)
        if self.turn_ns > TURN_NS:
            self._play_first_steps(stopwatch)
            self._lengthen()
        else:
            self._warm_up(stopwatch)
        while len(self.log_ratios) < self.least_rounds or self._spent_share(stopwatch) < 1:
            self.log_ratios.append(self._play_two_rounds())
            self.tick(self.log_ratios)

    def _play_two_rounds(self) -> float:
        """Run two rounds in opposite order, and return the mean of the log ratios.

        The second arm of a round finds the caches and cores as the first left them. With thread pools that costs up to
        40 %, which cancels only if each arm is second equally often."""
        first = self.random.getrandbits(1)
        forwards, backwards = (log_rate_ratio(*self._play_round(0, arm)) for arm in (first, 1 - first))
        return (forwards + backwards) / 2

    def _warm_up(self, stopwatch: Stopwatch) -> None:
        durations: tuple[list[float], list[float]] = ([], [])
        next_look, rounds = MIN_WARM_UP_ROUNDS, 0
        while self._spent_share(stopwatch) < MAX_WARM_UP_SHARE or rounds == 0:
            rounds += 1
            for arm, turn in enumerate(self._play_round(WARM_UP, self.random.getrandbits(1))):
                durations[arm].append(turn.duration_ns / self._steps[arm])
            if rounds == BLOCK_ROUNDS and self._choose_turn_length(durations):
                durations = ([], [])  # a turn of one step isn't comparable with a turn of many: warm up again
            if len(durations[0]) >= next_look:
                next_look = len(durations[0]) + 1 + len(durations[0]) // 5  # checking takes time: do it less often
                if all(map(self.settled, durations)):
                    return
            self.tick(self.log_ratios)

    def _play_first_steps(self, stopwatch: Stopwatch) -> None:
        """Run the first steps, which may compile or fill caches, and say nothing about the later ones."""
        for _ in range(MIN_WARM_UP_ROUNDS):
            self._play_round(WARM_UP, self.random.getrandbits(1))
            if self._spent_share(stopwatch) > MAX_WARM_UP_SHARE:
                return

    def _lengthen(self) -> None:
        """Increase the steps of each arm's turn until it is as long as requested.

        A few steps don't show how many would fill seconds, so the number grows step by step. This also serves as
        warm-up. The cost of a switch is negligible in such turns, so each arm has its own number of steps."""
        shortest_ns = 0.0
        while shortest_ns < self.turn_ns:
            turns = self._play_round(WARM_UP, self.random.getrandbits(1))
            shortest_ns = min(turn.duration_ns for turn in turns)
            for arm, turn in enumerate(turns):
                short_by = self.turn_ns / max(1, turn.duration_ns)
                if short_by > 1:
                    self._steps[arm] = math.ceil(self._steps[arm] * min(MOST_AT_ONCE, AIM_BEYOND * short_by))
            self.tick(self.log_ratios)

    def _choose_turn_length(self, durations: Sequence[Sequence[float]]) -> bool:
        """Choose the steps of a turn, the same number for both arms: the cost of a switch must weigh equally on both.

        Return whether a turn has more than one step."""
        quickest, slowest = sorted(min(arm) for arm in durations)
        pace_ns = max(1.0, quickest, slowest / LONGEST_TURN)
        steps = max(1, math.ceil(TURN_NS / pace_ns))
        self._steps = [steps, steps]
        return steps > 1

    def _play_round(self, flags: int, first: int) -> tuple[Turn, Turn]:
        """Run a turn of each arm on the same, randomly chosen core, so that other load there affects both alike."""
        core = self.random.getrandbits(16)
        turns: dict[int, Turn] = {}
        for arm in (first, 1 - first):
            turns[arm] = self.players[arm].turn(self._steps[arm], flags, core)
        return turns[0], turns[1]

    def _spent_share(self, stopwatch: Stopwatch) -> float:
        return stopwatch.seconds / self.seconds


def log_rate_ratio(a: Turn, b: Turn) -> float:
    """Return the logarithm of B's items per second over A's, as a live figure; the verdict uses the stored rows."""
    if min(a.items, b.items) <= 0 or min(a.duration_ns, b.duration_ns) <= 0:
        return 0.0
    return math.log(b.items / b.duration_ns) - math.log(a.items / a.duration_ns)
