"""Check extrapolated times: of a whole volume from a sample of its blocks, and of 1001 training iterations.

Each try is three fresh processes that measure a sample each, as `rigdyno run volume` does, and another that runs all of
it. A try hits if the time of the whole run is in the interval predicted from the sample. Network, volume and patches
are small, so that a whole run takes seconds: what is tested is the way from the sample to the whole, not the size.

Decided beforehand: at least 9 of 10 tries hit for the volume, and so do at least 9 of 10 for 1001 iterations.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _bars import Allowance, finish
from _extrapolating import Case, hit_bars

from rigdyno.plan.request import Request
from rigdyno.schema.spec import Budget

TRIES = 10

VOLUME = Case(
    "a volume from a sample of its blocks",
    Request(
        target="unet3d_inference",
        options={"features": "8,16", "volume": "32x216x216", "block": "4x25x25", "halo": "1x1x1"},
        threads=1,
    ),
    items=32 * 216 * 216,
    steps=8 * 9 * 9,
    sampled=Budget(seconds=1.5, max_steps=100),
)
TRAINING = Case(
    "1001 iterations from the first ones",
    Request(target="unet3d", options={"features": "4,8", "patch": "4x18x18", "workers": 1}, threads=1),
    items=1001,
    steps=1001,
    sampled=Budget(seconds=3.0),  # of which the loader's start takes more than one
)
CASES = {"volume": VOLUME, "training": TRAINING}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="as many tries as a minute holds")
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--only", choices=list(CASES))
    asked = parser.parse_args()
    cases = [case for name, case in CASES.items() if asked.only in (None, name)]
    with tempfile.TemporaryDirectory() as folder:
        finish(hit_bars(cases, Allowance(asked.quick), asked.tries, Path(folder)))


if __name__ == "__main__":
    main()
