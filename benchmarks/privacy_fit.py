"""Check the largest batch that `fit` reports.

EfficientNet-B0 on images of 32 x 32 in 1.8 GB, for plain training and for our own engine: five more processes take 30
steps with the batch that was found, with batches as private training draws them; and 1.15 times that batch is tried as
the search tries it, with the largest batch that is drawn in all likelihood.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

from _bars import Bar, NotMeasured, finish, share_bar
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
    fits,
    is_too_large,
    size_of,
    tries_bar,
)

from rigdyno.base.units import show_bytes

PROCESSES, MORE = 5, 1.15
ALLOWED = int(1.8 * GB)


def truth(bench: Bench, workload: str, update: str, allowed: int, processes: int) -> list[Bar]:
    """Check that the batch that was found fits, and that a larger one doesn't."""
    options = SMALL_SET if workload == SMALL else GROUP_NORM if update == "dp_fast" else BATCH_NORM
    found = bench.search(f"{update} in {show_bytes(allowed)}", workload, allowed, update, options)
    if found.batch is None:
        why = found.measurement.why_missing()
        return [NotMeasured.because(f"{update}: survives {STEPS} steps", why, 1.0, "least")]
    spec, larger = found.measurement.spec, math.ceil(MORE * found.batch)
    records = bench.processes(spec, {"batch_size": found.batch}, allowed, processes, as_tried=False)
    more = bench.processes(spec, {"batch_size": larger}, allowed, 1, as_tried=True)
    for kind, each in (("found", records), ("larger", more)):
        print(f"{update}, {kind}: {', '.join(size_of(record.memory_bytes) for record in each)}", flush=True)
    answers = {
        f"{update}: survives {STEPS} steps": [fits(each, allowed) for each in records],
        f"{update}: {MORE} times it doesn't fit": [is_too_large(each, allowed) for each in more],
    }
    return [share_bar(name, said, 1.0, "least", on_value=True) for name, said in answers.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small network, plain training: about a minute")
    asked = parser.parse_args()
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as out:
        bench = Bench(Path(out))
        if asked.quick:
            bars = truth(bench, SMALL, "plain", SMALL_BYTES, 1)[:1]
        else:
            for update in ("dp_fast", "plain"):
                bars += truth(bench, EFFICIENTNET, update, ALLOWED, PROCESSES)
    finish([*bars, tries_bar(bench.found)])


if __name__ == "__main__":
    main()
