"""Does our `as_published` measure what the published script measures?

The published loop, scripted function and tqdm's own count included, takes turns with `rigdyno run tensor_add` in fresh
processes; the order within a pair alternates. The median of the paired ratios must lie within 10 % of one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile

from _bars import distance_bar, finish

import rigdyno
from rigdyno.schema.estimate import Estimate

PUBLISHED_LOOP = """
import sys, torch
from tqdm import tqdm

@torch.jit.script
def sum_of_ones():
    left = torch.ones((12288, 12288), dtype=torch.float32)
    right = torch.ones((12288, 12288), dtype=torch.float32)
    return left + right

total = sum_of_ones()
for seconds in (2.0, float(sys.argv[1])):  # warming up, then what counts: tqdm shows its mean since the beginning
    with tqdm(file=open("/dev/null", "w")) as bar:
        while bar.format_dict["elapsed"] < seconds:
            total += sum_of_ones()
            bar.update()
        rate = bar.n / bar.format_dict["elapsed"]
print(rate)
"""


def published(seconds: float, file: str) -> float:
    ended = subprocess.run([sys.executable, file, str(seconds)], check=True, capture_output=True, text=True)
    return float(ended.stdout)


def ours(seconds: float, out: str) -> float:
    run = rigdyno.run("tensor_add", options={"variant": "as_published"}, device="cpu", budget=seconds + 4, out=out)
    rate = run.measurements[0].throughput()
    assert isinstance(rate, Estimate), rate
    return rate.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    pairs, seconds = (3, 3.0) if parser.parse_args().quick else (10, 5.0)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        script = f"{folder}/published_loop.py"
        with open(script, "w") as file:  # noqa: PTH123
            file.write(PUBLISHED_LOOP)
        print("published loop   rigdyno   ratio")
        for pair in range(pairs):
            if pair % 2:
                mine, theirs = ours(seconds, folder), published(seconds, script)
            else:
                theirs, mine = published(seconds, script), ours(seconds, folder)
            ratios.append(mine / theirs)
            print(f"{theirs:>9.2f} it/s {mine:>9.2f} {mine / theirs:>7.3f}")
    finish([distance_bar("distance from the published loop", ratios, 0.10)])


if __name__ == "__main__":
    main()
