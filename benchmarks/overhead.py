"""What the whole harness costs, telemetry on, against the bare Python loop: at most 0.5 % of steps from 1 ms on.

The figure is small and the machine noisy, so everything is paired: in one process, windows of 100 ms with and without
the harness follow each other in random order, over the same step (hashing from the cache, one thread). A process gives
the median of its pairs' log-ratios, the interval is Student's t over processes. Steps of 0.05 ms, and of 5 ms on all
cores, where the sampler has no core of its own, are shown without a bar.

Decided beforehand: the bar is on wall time, at the upper end of its 95 % interval; an interval that is too wide fails
like a harness that is too dear. CPU time of the worker and the sampler's share of a core are printed beside it, to tell
the one from the other. Not part of it: the parent's look at the progress, twice a second, some 50 us each.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
from _bars import Bar, finish
from _harness import STEP_MS
from numpy.typing import NDArray

Pairs = dict[str, list[list[float]]]
Floats = NDArray[np.float64]

MOST = 0.005
BARRED_FROM_MS = 1.0


def one_process(rounds: int, seed: int) -> Pairs:
    command = [sys.executable, str(Path(__file__).with_name("_harness.py")), str(rounds), str(seed)]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: Pairs = json.loads(ended.stdout)
    return found


def medians(processes: list[Pairs], name: str, bare: int, harness: int) -> Floats:
    """A process each: by how much of the bare loop's time a step takes longer."""
    tables = [np.array(process[name]) for process in processes]
    return np.array([np.expm1(np.median(np.log(table[:, harness] / table[:, bare]))) for table in tables])


def interval(values: Floats) -> tuple[float, float, float]:
    """Mean, low and high: Student's t, 95 %."""
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    mean = float(values.mean())
    return mean, mean - half, mean + half


def print_table(processes: list[Pairs]) -> None:
    print(f"{'step':<18} {'measured':>10} {'wall time':>11} {'':<18} {'CPU time':>10}")
    for name in (name for name in processes[0] if name != "sampler"):
        step_ms = np.median([pair[0] for process in processes for pair in process[name]]) / 1e6
        wall, low, high = interval(medians(processes, name, 0, 1))
        cpu, cpu_low, cpu_high = interval(medians(processes, name, 2, 3))
        print(f"{name:<18} {step_ms:>7.3f} ms {wall:>+11.2%} [{low:+.2%}, {high:+.2%}] {cpu:>+10.2%}", end=" ")
        print(f"[{cpu_low:+.2%}, {cpu_high:+.2%}]")
    share, low, high = interval(np.array([process["sampler"][0][0] for process in processes]))
    print(f"the sampler's process takes {share:.2%} of a core [{low:.2%}, {high:.2%}]\n")


def bar(processes: list[Pairs], step: str) -> Bar:
    cost, low, high = interval(medians(processes, step, 0, 1))
    return Bar(f"harness on steps of {step}", cost, low, high, "of the bare loop's time", MOST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer processes, fewer pairs")
    count, rounds = (5, 3) if parser.parse_args().quick else (10, 7)
    processes = [one_process(rounds, seed) for seed in range(count)]
    print_table(processes)
    finish([bar(processes, f"{step_ms:g} ms") for step_ms in STEP_MS if step_ms >= BARRED_FROM_MS])


if __name__ == "__main__":
    main()
