"""The largest batch that trains within 4 GB: what private training leaves of it.

EfficientNet-B0 on images of 32 x 32, as the privacy suite trains it: plain (BatchNorm, channels_last), our own engine,
and Opacus' hooks. How long an epoch takes with it, and whether what is found is true, is asked by privacy_fit.py.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _bars import Allowance, Bar, NotMeasured, ValueBar, finish
from _fitting import BATCH_NORM, EFFICIENTNET, GB, GROUP_NORM, SMALL, SMALL_BYTES, SMALL_SET, Bench, Found, tries_bar

LONGEST = 100.0  # seconds that must be left to begin with Opacus


def batches(name: str, one: Found, other: Found, bar: float) -> Bar:
    if one.batch is None or other.batch is None:
        missing = one if one.batch is None else other
        return NotMeasured.because(name, missing.measurement.why_missing(), bar, "least")
    ratio = one.batch / other.batch
    return ValueBar(name, ratio, ratio, ratio, f"{one.batch} of {other.batch}", bar, "least")


def of_opacus(bench: Bench, allowance: Allowance, ours: Found) -> Bar:
    name, bar = "dp_fast's batch, of Opacus' hooks'", 30
    if allowance.seconds_left < LONGEST:
        return NotMeasured.because(name, "no time was left", bar, "least")
    hooks = bench.search("hooks", EFFICIENTNET, 4 * GB, "dp_opacus", {**GROUP_NORM, "update.mode": "hooks"})
    return batches(name, ours, hooks, bar)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small network in 0.5 GB, plain: about a minute")
    quick = parser.parse_args().quick
    allowance = Allowance(quick)
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as out:
        bench = Bench(Path(out))
        if quick:
            bench.search("plain", SMALL, SMALL_BYTES, "plain", SMALL_SET)
        else:
            ours = bench.search("dp_fast", EFFICIENTNET, 4 * GB, "dp_fast", GROUP_NORM)
            plain = bench.search("plain", EFFICIENTNET, 4 * GB, "plain", BATCH_NORM)
            bars = [batches("dp_fast's batch, of plain's", ours, plain, 0.9), of_opacus(bench, allowance, ours)]
    finish([*bars, tries_bar(bench.found)])


if __name__ == "__main__":
    main()
