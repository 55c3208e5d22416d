"""Whether the largest batch that `fit` reports is true, and how long an epoch takes with it.

EfficientNet-B0 on images of 32 x 32. In 1 GB, for plain training and for our own engine: five more processes take 30
steps with the batch that was found, with batches as private training draws them; and 1.15 times that batch is tried as
the search tries it, with the largest batch that is drawn in all likelihood.

In 2 GB, at each one's own largest batch: the time of an epoch, against the faster of plain training with BatchNorm and
with GroupNorm. They take turns, process by process, because the machine's speed changes over minutes.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

from _bars import Allowance, Bar, NotMeasured, ValueBar, finish, share_bar
from _fitting import (
    BATCH_NORM,
    EFFICIENTNET,
    GB,
    GROUP_NORM,
    SMALL,
    SMALL_BYTES,
    SMALL_SET,
    STEPS,
    Bench,
    Found,
    fits,
    size_of,
    tries_bar,
)

from rigdyno.analyse.statistics import across_processes
from rigdyno.units import show_bytes

PROCESSES, MORE = 5, 1.15
ROUNDS = 6


def truth(bench: Bench, workload: str, update: str, allowed: int, processes: int) -> list[Bar]:
    """Whether the batch that was found fits, and a larger one doesn't."""
    options = SMALL_SET if workload == SMALL else GROUP_NORM if update == "dp_fast" else BATCH_NORM
    found = bench.search(f"{update} in {show_bytes(allowed)}", workload, allowed, update, options)
    if found.batch is None:
        why = found.measurement.why_missing()
        return [NotMeasured.because(f"{update}: survives {STEPS} steps", why, 1.0, "least")]
    records = bench.processes(found, found.batch, allowed, processes, as_tried=False)
    more = bench.processes(found, math.ceil(MORE * found.batch), allowed, 1, as_tried=True)
    for kind, each in (("found", records), ("larger", more)):
        print(f"{update}, {kind}: {', '.join(size_of(record.memory_bytes) for record in each)}", flush=True)
    answers = {
        f"{update}: survives {STEPS} steps": [fits(each, allowed) for each in records],
        f"{update}: {MORE} times it doesn't fit": [not fits(each, allowed) for each in more],
    }
    return [share_bar(name, said, 1.0, "least", on_value=True) for name, said in answers.items()]


def epochs(bench: Bench, allowance: Allowance) -> Bar:
    name, bar = "dp_fast's epoch, of the fastest plain's", 0.6
    ours = bench.search("dp_fast in 2 GB", EFFICIENTNET, 2 * GB, "dp_fast", GROUP_NORM)
    plain = bench.search("plain in 2 GB", EFFICIENTNET, 2 * GB, "plain", BATCH_NORM)
    if ours.batch is None or plain.batch is None:
        return NotMeasured.because(name, "a batch is missing", bar, "most")
    ratios = [_ratio(bench, ours, plain) for _ in allowance.rounds(least=2, most=ROUNDS)]
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < 2:
        return NotMeasured.because(name, "a rate is missing", bar, "most")
    whole = across_processes(known, "x")
    return ValueBar(name, whole.value, *whole.ends, f"{len(known)} rounds", bar, "most")


def _ratio(bench: Bench, ours: Found, plain: Found) -> float | None:
    """Of one round: plain over private, as rates."""
    batch_norm = bench.rate(EFFICIENTNET, {**BATCH_NORM, "batch_size": plain.batch or 1})
    private = bench.rate(EFFICIENTNET, {**GROUP_NORM, "batch_size": ours.batch or 1}, "dp_fast")
    group_norm = bench.rate(EFFICIENTNET, {**GROUP_NORM, "batch_size": plain.batch or 1})
    if batch_norm is None or group_norm is None or private is None:
        return None
    print(f"images/s: {batch_norm:.0f} BatchNorm, {group_norm:.0f} GroupNorm, {private:.0f} private", flush=True)
    return max(batch_norm, group_norm) / private


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small network, plain training: about a minute")
    parser.add_argument("--only", choices=["truth", "epochs"], help="one half alone")
    asked = parser.parse_args()
    allowance = Allowance(asked.quick)
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as out:
        bench = Bench(Path(out))
        if asked.quick:
            bars = truth(bench, SMALL, "plain", SMALL_BYTES, 1)[:1]
        else:
            for update in ("dp_fast", "plain") if asked.only != "epochs" else ():
                bars += truth(bench, EFFICIENTNET, update, GB, PROCESSES)
            bars += [epochs(bench, allowance)] if asked.only != "truth" else []
    finish([*bars, tries_bar(bench.found)])


if __name__ == "__main__":
    main()
