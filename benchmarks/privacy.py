"""Measure the largest batch that trains within 4 GB and the time of an epoch with it, plain and private.

EfficientNet-B0 on images of 32 x 32, as the privacy suite trains it: plain (BatchNorm, channels_last) and our own
engine. Of Opacus' hooks it is asked whether a thirtieth of our batch fits. Epochs take turns, process by process,
because the machine's speed changes over minutes. Whether what is found is true is asked by privacy_fit.py.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _bars import Allowance, Bar, NotMeasured, ValueBar, finish
from _fitting import (
    BATCH_NORM,
    EFFICIENTNET,
    GB,
    GROUP_NORM,
    SMALL,
    SMALL_BYTES,
    SMALL_SET,
    Bench,
    Found,
    is_too_large,
    size_of,
    tries_bar,
)
from msgspec.structs import replace

from rigdyno.analyse.statistics import across_processes

ALLOWED = 4 * GB
TIMES = 30  # Opacus' hooks' batch
ROUNDS = 6


def batches(ours: Found, plain: Found) -> Bar:
    name, bar = "dp_fast's batch, of plain's", 0.9
    if ours.batch is None or plain.batch is None:
        missing = ours if ours.batch is None else plain
        return NotMeasured.because(name, missing.measurement.why_missing(), bar, "least")
    ratio = ours.batch / plain.batch
    return ValueBar(name, ratio, ratio, ratio, f"{ours.batch} of {plain.batch}", bar, "least")


def hooks(bench: Bench, ours: Found) -> Bar:
    """Check that one more than a thirtieth of our batch is too large for Opacus' hooks."""
    name = f"Opacus' hooks with more than 1/{TIMES} of it: doesn't fit"
    if ours.batch is None:
        return NotMeasured.because(name, ours.measurement.why_missing(), 1.0, "least")
    spec, batch = replace(ours.measurement.spec, update="dp_opacus"), ours.batch // TIMES + 1
    [tried] = bench.processes(spec, {"batch_size": batch, "update.mode": "hooks"}, ALLOWED, 1, as_tried=True)
    print(f"hooks: batch {batch}, {size_of(tried.memory_bytes)}: {tried.outcome}", flush=True)
    said = float(is_too_large(tried, ALLOWED))
    return ValueBar(name, said, said, said, f"a batch of {batch}", 1.0, "least")


def epochs(bench: Bench, ours: Found, plain: Found, allowance: Allowance) -> Bar:
    name, bar = "dp_fast's epoch, of plain's", 0.6
    if ours.batch is None or plain.batch is None:
        return NotMeasured.because(name, "a batch is missing", bar, "most")
    ratios = []
    for _ in allowance.rounds(least=1, most=ROUNDS):
        rate = bench.rate(EFFICIENTNET, {**BATCH_NORM, "batch_size": plain.batch})
        private = bench.rate(EFFICIENTNET, {**GROUP_NORM, "batch_size": ours.batch}, "dp_fast")
        if rate is None or private is None:
            return NotMeasured.because(name, "a rate is missing", bar, "most")
        print(f"images/s: {rate:.0f} plain, {private:.0f} private", flush=True)
        ratios.append(rate / private)
    if len(ratios) < 2:
        return NotMeasured.because(name, "there was time for one round, which has no interval", bar, "most")
    whole = across_processes(ratios, "x")
    return ValueBar(name, whole.value, *whole.ends, f"{len(ratios)} rounds", bar, "most")


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
            ours = bench.search("dp_fast", EFFICIENTNET, ALLOWED, "dp_fast", GROUP_NORM)
            plain = bench.search("plain", EFFICIENTNET, ALLOWED, "plain", BATCH_NORM)
            bars = [batches(ours, plain), hooks(bench, ours), epochs(bench, ours, plain, allowance)]
    finish([*bars, tries_bar(bench.found)])


if __name__ == "__main__":
    main()
