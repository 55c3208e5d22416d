"""Check the time of an epoch that the privacy suite extrapolates from some of its steps.

Each try is three fresh processes that measure some seconds of steps each, and another that runs a whole epoch: a small
network over 24,000 images, plain and with differential privacy, whose batches vary in size. A try hits if the time
of the whole epoch is in the interval predicted from the steps.

Decided beforehand: at least 9 of 10 tries hit for each.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _bars import Allowance, finish
from _extrapolating import Case, hit_bars
from _fitting import SMALL, SMALL_SET
from _small_set import IMAGES

from rigdyno.plan.request import Request
from rigdyno.schema.spec import Budget

TRIES = 10
BATCH = 128
SAMPLED = Budget(seconds=1.5)


def case_of(update: str) -> Case:
    request = Request(target=SMALL, update=update, options={**SMALL_SET, "batch_size": BATCH}, threads=1)
    return Case(f"an epoch from its steps, {update}", request, IMAGES, -(-IMAGES // BATCH), SAMPLED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="as many tries as a minute holds")
    parser.add_argument("--tries", type=int, default=TRIES)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = [case_of(update) for update in ("plain", "dp_fast")]
        finish(hit_bars(cases, Allowance(asked.quick), asked.tries, Path(folder)))


if __name__ == "__main__":
    main()
