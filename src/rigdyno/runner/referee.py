"""Whose turn it is: rounds of one turn each, in random order and then the other way round, warm-up first, until the
time of this pair of processes is up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from rigdyno.clock import Clock
from rigdyno.runner.turns import Turn

WARM_UP = 1  # the flag of schema/samples, which would bring msgspec along
MIN_WARM_UP_ROUNDS = 5
MAX_WARM_UP_SHARE = 0.3  # of the pair's time: a pair that won't settle is measured all the same
LEAST_ROUNDS = 5  # that count, each there and back: the median of fewer is one stray step's
BLOCK_ROUNDS = 3  # of single steps, after which the length of a turn is chosen
TURN_NS = 1_000_000  # shorter turns would measure the clock and the way to sleep and back
MOST_AT_ONCE, AIM_BEYOND = 8.0, 1.05  # how many times longer the next turn becomes, and how far beyond what is asked
LONGEST_TURN = 50  # times that, for the slower arm of two very different ones


class Player(Protocol):
    def turn(self, steps: int, flags: int, core: int) -> Turn: ...


@dataclass
class Referee:
    players: tuple[Player, Player]
    clock: Clock
    random: Random
    seconds: float  # for warm-up and steps together
    settled: Callable[[Sequence[float]], bool]
    tick: Callable[[Sequence[float]], None]  # told the logarithms of B's rate over A's so far, between rounds
    least_rounds: int = LEAST_ROUNDS
    turn_ns: int = TURN_NS  # the least that a turn takes; where it is more, that is all the warm-up
    log_ratios: list[float] = field(default_factory=list)
    _steps: list[int] = field(default_factory=lambda: [1, 1])  # in a turn of each arm

    def play(self) -> None:
        began_ns = self.clock.now_ns()
        if self.turn_ns > TURN_NS:
            self._first_steps(began_ns)
            self._lengthen()
        else:
            self._warm_up(began_ns)
        while len(self.log_ratios) < self.least_rounds or self._spent(began_ns) < 1:
            self.log_ratios.append(self._two_rounds())
            self.tick(self.log_ratios)

    def _two_rounds(self) -> float:
        """In opposite order: who comes second finds the caches and cores as the first one left them. With pools of
        threads that costs up to 40 %, and cancels only if either is second equally often."""
        first = self.random.getrandbits(1)
        there, back = (log_rate_ratio(*self._round(0, arm)) for arm in (first, 1 - first))
        return (there + back) / 2

    def _warm_up(self, began_ns: int) -> None:
        durations: tuple[list[float], list[float]] = ([], [])
        next_look, rounds = MIN_WARM_UP_ROUNDS, 0
        while self._spent(began_ns) < MAX_WARM_UP_SHARE or rounds == 0:
            rounds += 1
            for arm, turn in enumerate(self._round(WARM_UP, self.random.getrandbits(1))):
                durations[arm].append(turn.duration_ns / self._steps[arm])
            if rounds == BLOCK_ROUNDS and self._choose_turn_length(durations):
                durations = ([], [])  # a turn of one step isn't like a turn of many: they warm up anew
            if len(durations[0]) >= next_look:
                next_look = len(durations[0]) + 1 + len(durations[0]) // 5  # looking costs: ever more rarely
                if all(map(self.settled, durations)):
                    return
            self.tick(self.log_ratios)

    def _first_steps(self, began_ns: int) -> None:
        """They may compile, or fill caches, and tell nothing of those to come."""
        for _ in range(MIN_WARM_UP_ROUNDS):
            self._round(WARM_UP, self.random.getrandbits(1))
            if self._spent(began_ns) > MAX_WARM_UP_SHARE:
                return

    def _lengthen(self) -> None:
        """A few steps tell little of how many fill seconds: more and more of them, until each arm's turn is as long as
        asked. That warms up as well; and a switch weighs nothing beside such turns, so each arm has its own number."""
        shortest_ns = 0.0
        while shortest_ns < self.turn_ns:
            turns = self._round(WARM_UP, self.random.getrandbits(1))
            shortest_ns = min(turn.duration_ns for turn in turns)
            for arm, turn in enumerate(turns):
                short_by = self.turn_ns / max(1, turn.duration_ns)
                if short_by > 1:
                    self._steps[arm] = math.ceil(self._steps[arm] * min(MOST_AT_ONCE, AIM_BEYOND * short_by))
            self.tick(self.log_ratios)

    def _choose_turn_length(self, durations: Sequence[Sequence[float]]) -> bool:
        """The same number of steps for both: what a switch costs must weigh the same on either side."""
        quickest, slowest = sorted(min(arm) for arm in durations)
        pace_ns = max(1.0, quickest, slowest / LONGEST_TURN)
        steps = max(1, math.ceil(TURN_NS / pace_ns))
        self._steps = [steps, steps]
        return steps > 1

    def _round(self, flags: int, first: int) -> tuple[Turn, Turn]:
        """Both on the same core, and not always the same one: so that a neighbour there disturbs both alike."""
        core = self.random.getrandbits(16)
        turns: dict[int, Turn] = {}
        for arm in (first, 1 - first):
            turns[arm] = self.players[arm].turn(self._steps[arm], flags, core)
        return turns[0], turns[1]

    def _spent(self, began_ns: int) -> float:
        return (self.clock.now_ns() - began_ns) / (self.seconds * 1e9)


def log_rate_ratio(a: Turn, b: Turn) -> float:
    """Of B's items a second over A's; a live figure: the verdict rests on what the arms have stored."""
    if min(a.items, b.items) <= 0 or min(a.duration_ns, b.duration_ns) <= 0:
        return 0.0
    return math.log(b.items / b.duration_ns) - math.log(a.items / a.duration_ns)
