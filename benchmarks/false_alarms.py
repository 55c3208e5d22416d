"""Measure how often a duel is wrong: between two identical arms, and against an arm that is really 3 % slower.

Hundreds of duels between processes without a framework, each process with its own layout (size of the environment,
address randomisation on or off), half of them under a background load that comes and goes. For comparison, the same
samples are judged by the difference of means, and by Welch's t-test of one arm's early processes and the other's late
ones, as in sequential runs. Whole duels of a torch step are in false_alarms_torch.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
from _bars import ONE_SIDED, Allowance, finish, share_bar
from _light_duel import DuelResult, run_duel
from scipy import stats

MARGIN = 0.01
SLOW_DOWN = 0.03
# Busy and idle alternately, each for up to a quarter of a second.
LOAD = """
import random, time
while True:
    until = time.perf_counter() + random.uniform(0, 0.25)
    while time.perf_counter() < until:
        pass
    time.sleep(random.uniform(0, 0.25))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer: the bars are then on what was seen")
    quick = parser.parse_args().quick
    random, allowed = Random(1), Allowance(quick)
    alike, slower = [], []
    for number in allowed.rounds(8, 400):
        alike.append(_under_load(0.0, random, number))
        if number % 3 == 0:
            slower.append(_under_load(SLOW_DOWN, random, number))
    _print_table(alike, slower)
    answers, found = [*map(_duel, alike)], [*map(_duel, slower)]
    finish(
        [
            share_bar("wrongly 'faster' or 'slower'", [*map(_differs, answers)], 0.05, "most", ONE_SIDED, quick),
            share_bar("'same' said of the same", [each == "same" for each in answers], 0.80, "least", ONE_SIDED, quick),
            share_bar("3 % slow-down found", [each == "slower" for each in found], 0.95, "least", ONE_SIDED, quick),
        ]
    )


def _differs(answer: str) -> bool:
    return answer in ("faster", "slower")


def _under_load(slow_down: float, random: Random, number: int) -> DuelResult:
    with _load(on=number % 2 == 1):
        return run_duel(slow_down, random)


@contextmanager
def _load(on: bool) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", LOAD]) if on else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _print_table(alike: list[DuelResult], slower: list[DuelResult]) -> None:
    print(f"{'':<28}{'the same thing':>30}{f'really {SLOW_DOWN:.0%} slower':>30}")
    print(f"{'':<28}{'same':>8}{'differs':>10}{'undecided':>12}{'same':>8}{'slower':>10}{'undecided':>12}")
    for name, judge in (
        ("duel", _duel),
        ("means, beyond the margin", _means),
        ("t-test, one after the other", _t_test),
    ):
        of_same, of_slower = Counter(map(judge, alike)), Counter(map(judge, slower))
        differs = of_same["faster"] + of_same["slower"]
        cells = [(of_same["same"], 8), (differs, 10), (of_same["undecided"], 12)]
        cells += [(of_slower["same"], 8), (of_slower["slower"], 10), (of_slower["undecided"], 12)]
        print(f"{name:<28}" + "".join(f"{count:>{width}}" for count, width in cells))
    pairs = [len(result.a) for result in (*alike, *slower)]
    print(f"{len(alike)} and {len(slower)} duels, {np.median(pairs):.0f} process pairs each (median)\n")


def _duel(result: DuelResult) -> str:
    return result.duel.comparison.answer


def _means(result: DuelResult) -> str:
    ratio = np.mean(np.concatenate(result.a)) / np.mean(np.concatenate(result.b))
    if abs(np.log(ratio)) <= np.log1p(MARGIN):
        return "same"
    return "faster" if ratio > 1 else "slower"


def _t_test(result: DuelResult) -> str:
    half = len(result.a) // 2
    a, b = np.concatenate(result.a[:half]), np.concatenate(result.b[half:])
    if stats.ttest_ind(a, b, equal_var=False).pvalue >= 0.05:
        return "same"
    return "slower" if b.mean() > a.mean() else "faster"


if __name__ == "__main__":
    main()
