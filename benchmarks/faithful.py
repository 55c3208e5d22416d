"""Check that our `as_published` measures what the published script measures.

The published loop, scripted function and tqdm's own count included, takes turns with our workload under our meter, both
resident in a pair of processes, in random order within a round. The geometric mean over pairs of processes of each
pair's median ratio must be within 10 % of one: the memory layout of a process alone changes its rate by some percent.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from _bars import distance_bar, finish

ARMS = ("published", "ours")


class Arm:
    def __init__(self, name: str, opened: ExitStack) -> None:
        command = [sys.executable, str(Path(__file__).with_name("_add_arms.py")), name]
        self._process = opened.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        self._answer()

    def rate(self, seconds: float) -> float:
        assert self._process.stdin
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"an arm ended with exit code {self._process.wait()}")
        return line


def ratio_of_a_pair(rounds: int, seconds: float, chance: random.Random) -> float:
    with ExitStack() as opened:
        arms = {name: Arm(name, opened) for name in ARMS}
        for arm in arms.values():
            arm.rate(seconds)  # warming up
        ratios = []
        for _ in range(rounds):
            rates = {name: arms[name].rate(seconds) for name in chance.sample(ARMS, len(ARMS))}
            ratios.append(rates["ours"] / rates["published"])
        print(f"{rates['published']:>9.2f} it/s {rates['ours']:>9.2f} {statistics.median(ratios):>7.3f}")
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer pairs of processes, fewer rounds")
    pairs, rounds = (4, 4) if parser.parse_args().quick else (8, 6)
    print("published loop      ours   ratio (of the last round, median of all)")
    chance = random.Random(0)
    ratios = [ratio_of_a_pair(rounds, 2.0, chance) for _ in range(pairs)]
    finish([distance_bar("distance from the published loop", ratios, 0.10)])


if __name__ == "__main__":
    main()
