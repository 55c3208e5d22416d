"""Measure the overhead of the whole harness with telemetry over a bare Python loop: at most 0.5 % of steps from 1 ms.

The figure is small and the machine noisy, so it is put together from three that can be had precisely. The meter: in
about ten processes, windows of a few steps with and without it follow each other in random order, over the same step
(hashing from the cache, one thread); the median of the pairs' ratios, with an interval that allows for correlation. The
writing of its rows twice a second: the time between a loop's steps. The sampler: its time on a core, counted by the
kernel, as if all of it were taken from the steps, though it mostly runs on another core. It is measured twice: as it is
here, and with every probe that a rig can have, fed from files of the real size and format.

Decided beforehand: the bar is on the upper end of the sum's 95 % interval (the parts are measured apart, so the squares
of their half-widths add up); an interval that is too wide fails like a harness that is too dear. Steps of 0.05 ms are
shown without a bar. Not part of it: the parent's look at the progress, twice a second.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
from _bars import Allowance, Bar, finish, mean_and_half
from _harness import WINDOWS

from rigdyno.analyse.statistics import median_estimate

Pairs = dict[str, list[list[float]]]
Interval = tuple[float, float, float]  # value, low, high

MOST = 0.005
BARRED_FROM_MS = 1.0


def one_process(scale: float, seed: int) -> Pairs:
    command = [sys.executable, str(Path(__file__).with_name("_harness.py")), str(scale), str(seed)]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: Pairs = json.loads(ended.stdout)
    return found


def longer_by(processes: list[Pairs], name: str) -> Interval:
    """Return how much longer the second window takes, as a share of the first, over the pairs of all processes."""
    table = np.concatenate([np.array(process[name]) for process in processes])
    ratio = median_estimate(np.log(table[:, 1] / table[:, 0]), "log")
    return math.expm1(ratio.value), math.expm1(ratio.low), math.expm1(ratio.high)


def mean_share(processes: list[Pairs], name: str) -> Interval:
    share, half = mean_and_half([process[name][0][0] for process in processes])
    return share, share - half, share + half


def shown(interval: Interval) -> str:
    value, low, high = interval
    return f"{value:>+7.2%} [{low:+.2%}, {high:+.2%}]"


def bar(step_ms: float, *parts: Interval, with_: str = "") -> Bar:
    value = sum(part[0] for part in parts)
    low = value - math.hypot(*(middle - end for middle, end, _ in parts))
    high = value + math.hypot(*(end - middle for middle, _, end in parts))
    name = f"harness on steps of {step_ms:g} ms" + (f", {with_}" if with_ else "")
    return Bar(name, value, low, high, "of the bare loop's time", MOST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer processes, fewer pairs")
    quick = parser.parse_args().quick
    processes = [one_process(0.25 if quick else 1.0, seed) for seed in Allowance(quick).rounds(3, 12)]
    writing, sampler = mean_share(processes, "writing"), mean_share(processes, "sampler")
    fed = mean_share(processes, "fed sampler")
    meters = {step_ms: longer_by(processes, f"{step_ms:g} ms") for step_ms in WINDOWS}
    for step_ms, meter in meters.items():
        print(f"meter, steps of {step_ms:>5g} ms              {shown(meter)}")
    print(f"rows, between the steps                 {shown(writing)}")
    print(f"sampler, of a core                      {shown(sampler)}")
    print(f"sampler with every probe, of a core     {shown(fed)}")
    print()
    barred = {step_ms: meter for step_ms, meter in meters.items() if step_ms >= BARRED_FROM_MS}
    here = [bar(step_ms, meter, writing, sampler) for step_ms, meter in barred.items()]
    finish(here + [bar(step_ms, meter, writing, fed, with_="every probe") for step_ms, meter in barred.items()])


if __name__ == "__main__":
    main()
