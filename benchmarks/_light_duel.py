"""A duel between arms without a framework: the product's own turns, referee and verdict, without its run folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from rigdyno.analyse.pairs import is_enough, judge_duel
from rigdyno.analyse.statistics import median_estimate
from rigdyno.analyse.steady import settled_so_far
from rigdyno.base.clock import SystemClock
from rigdyno.runner.pairs.referee import Referee
from rigdyno.runner.pairs.turns import Seat, Turn, socket_pair
from rigdyno.schema.comparison import Duel, PairFigure
from rigdyno.schema.spec import DuelPlan

ARM = Path(__file__).with_name("_light_arm.py")
BLOCK_BYTES = 400_000  # to digest: a fraction of a millisecond, so that a turn is several steps
PLAN = DuelPlan(what="sha256", names=("A", "B"), margin=0.01, least_pairs=6, budget_seconds=10.0)
MOST_PAIRS = 24
SECONDS = 0.12  # a pair, warm-up included
LEAST_ROUNDS = 30
MOST_PADDING_BYTES = 4096  # added to the environment: it moves the stack, and so the alignment of data in the cache


@dataclass
class Listener:
    """A seat that stores all samples, so that other statistical tests can be applied to the same ones."""

    seat: Seat
    seconds: list[float] = field(default_factory=list)  # per step, warm-up left out

    def turn(self, steps: int, flags: int, core: int) -> Turn:
        turn = self.seat.turn(steps, flags, core)
        if flags == 0:
            self.seconds.append(turn.duration_ns / steps / 1e9)
        return turn


@dataclass(frozen=True)
class DuelResult:
    duel: Duel
    a: list[list[float]]  # seconds of A's steps, pair by pair
    b: list[list[float]]


def run_duel(slow_down: float, random: Random) -> DuelResult:
    """Run a duel in which B does more work than A by the given share; every process has its own memory layout."""
    figures: list[PairFigure] = []
    a_all, b_all = [], []
    duel = judge_duel(PLAN, figures, ())
    while len(figures) < MOST_PAIRS and not is_enough(duel, PLAN):
        with _pair(slow_down, random) as (a, b):
            referee = Referee((a, b), SystemClock(), random, SECONDS, settled_so_far, _nothing, LEAST_ROUNDS)
            referee.play()
        figures.append(_figure(len(figures) + 1, referee.log_ratios))
        a_all.append(a.seconds)
        b_all.append(b.seconds)
        duel = judge_duel(PLAN, figures, ())
    return DuelResult(duel, a_all, b_all)


def _nothing(_log_ratios: object) -> None:
    pass


def _figure(number: int, log_ratios: list[float]) -> PairFigure:
    ratio = median_estimate(np.exp(log_ratios), "x")
    return PairFigure(pair=number, ratio=ratio, seconds=SECONDS)


@contextmanager
def _pair(slow_down: float, random: Random) -> Iterator[tuple[Listener, Listener]]:
    clock = SystemClock()
    until_ns = clock.now_ns() + 60_000_000_000
    processes, seats = [], []
    try:
        for arm, size in enumerate((BLOCK_BYTES, round(BLOCK_BYTES * (1 + slow_down)))):
            ours, theirs = socket_pair()
            with theirs:
                processes.append(_started(theirs.fileno(), size, random))
            seats.append((Seat(arm, ours, clock, until_ns), ours))
        for seat, _ in seats:
            seat.wait_until_ready(lambda: None, 1.0)
        a, b = (Listener(seat) for seat, _ in seats)
        yield a, b
    finally:
        for seat, end in seats:
            seat.dismiss()
            end.close()
        for process in processes:
            process.wait(60)


def _started(descriptor: int, size: int, random: Random) -> subprocess.Popen[bytes]:
    """Vary the memory layout: half of the processes have a fixed address space, all another size of environment."""
    fixed = ["setarch", "-R"] if random.random() < 0.5 and shutil.which("setarch") else []
    command = [*fixed, sys.executable, "-S", "-E", str(ARM), str(descriptor), str(size)]
    environment = {**os.environ, "PADDING": "x" * random.randrange(MOST_PADDING_BYTES)}
    return subprocess.Popen(command, env=environment, pass_fds=(descriptor,), stdin=subprocess.DEVNULL)
