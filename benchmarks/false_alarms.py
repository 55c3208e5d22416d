"""How often a duel is wrong: the same thing against itself, and against what is really 3 % slower.

Step level: hundreds of duels between processes without a framework, each process with its own layout (size of the
environment, address randomisation on or off), half of them under a background load that comes and goes. Process level:
real `rigdyno duel`s of a torch step of one thread. Beside it, on the same samples: what comparing means would have
said, and what Welch's t-test would have said of one arm's early processes and the other's late ones, as sequential runs
see them. Takes about 12 minutes for each level.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
from _bars import Bar, finish, share_bar
from _light_duel import Fought, fight
from scipy import stats

from rigdyno import api
from rigdyno.plan.duel import DuelRequest
from rigdyno.plan.load import Request

MARGIN = 0.01
SLOW_DOWN = 0.03
ONE_SIDED = 0.90  # of the interval: either bound by itself holds with 95 %
TORCH_STEP = """
import torch
x = torch.randn(192, 192)
def step():
    for _ in range(4):
        torch.mm(x, x)
"""
# Busy and idle by turns, each for up to a quarter of a second.
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
    parser.add_argument("--quick", action="store_true", help="as few duels as can meet the bars, and none of torch")
    parser.add_argument("--level", choices=("step", "process", "both"), default="both")
    asked = parser.parse_args()
    bars: list[Bar] = []
    if asked.level != "process":
        bars += _step_level(60 if asked.quick else 400, 60 if asked.quick else 150)
    if asked.level != "step" and not asked.quick:
        bars += _process_level(40)
    finish(bars)


def _step_level(same: int, different: int) -> list[Bar]:
    random = Random(1)
    alike = [_under_load(0.0, random, number) for number in range(same)]
    slower = [_under_load(SLOW_DOWN, random, number) for number in range(different)]
    _print_table(alike, slower)
    answers, found = [*map(_duel, alike)], [*map(_duel, slower)]
    return [
        share_bar("wrongly 'faster' or 'slower'", [*map(_differs, answers)], 0.05, "most", ONE_SIDED),
        share_bar("'same' said of the same", [answer == "same" for answer in answers], 0.80, "least", ONE_SIDED),
        share_bar("3 % slow-down found", [answer == "slower" for answer in found], 0.95, "least", ONE_SIDED),
    ]


def _process_level(count: int) -> list[Bar]:
    answers = [_real_duel(number) for number in range(count)]
    print(f"process level, a torch step against itself: {dict(Counter(answers))}\n")
    # Forty duels without a single false alarm show at most 7 %.
    return [share_bar("torch: wrongly 'faster' or 'slower'", [*map(_differs, answers)], 0.10, "most", ONE_SIDED)]


def _differs(answer: str) -> bool:
    return answer in ("faster", "slower")


def _under_load(slow_down: float, random: Random, number: int) -> Fought:
    with _load(on=number % 2 == 1):
        return fight(slow_down, random)


@contextmanager
def _load(on: bool) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", LOAD]) if on else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _real_duel(number: int) -> str:
    """Through the product: real workers, run folders, the stored turns."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps.py"
        file.write_text(TORCH_STEP)
        arm = Request(target=f"{file}:step", seed=number, threads=1)
        head = api.prepare_duel(DuelRequest(a=arm, b=arm, budget_seconds=24.0))
        duel = api.carry_out(api.start(head, Path(folder) / "runs"), head).duel
        assert duel is not None
        return duel.comparison.answer


def _print_table(alike: list[Fought], slower: list[Fought]) -> None:
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
    pairs = [len(fought.a) for fought in (*alike, *slower)]
    print(f"{len(alike)} and {len(slower)} duels, {np.median(pairs):.0f} process pairs each (median)\n")


def _duel(fought: Fought) -> str:
    return fought.duel.comparison.answer


def _means(fought: Fought) -> str:
    ratio = np.mean(np.concatenate(fought.a)) / np.mean(np.concatenate(fought.b))
    if abs(np.log(ratio)) <= np.log1p(MARGIN):
        return "same"
    return "faster" if ratio > 1 else "slower"


def _t_test(fought: Fought) -> str:
    half = len(fought.a) // 2
    a, b = np.concatenate(fought.a[:half]), np.concatenate(fought.b[half:])
    if stats.ttest_ind(a, b, equal_var=False).pvalue >= 0.05:
        return "same"
    return "slower" if b.mean() > a.mean() else "faster"


if __name__ == "__main__":
    main()
