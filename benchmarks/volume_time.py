"""Whether extrapolated times hold: of a whole volume from a sample of its blocks, and of 1001 training iterations.

Each try is a fresh process that measures a sample, as `rigdyno run volume` does, and another that runs all of it; tries
take turns, so that a machine that changes its pace hits both alike. A try hits where the time of the whole run lies in
the interval that the sample gave. The network and the volume are small, so that a whole run takes seconds: what
is tested is the way from the sample to the whole, not the size.

Decided beforehand: at least 9 of 10 tries hit for the volume, and the extrapolated time of 1001 iterations holds the
real one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _bars import Allowance, ValueBar, finish

import rigdyno
from rigdyno.analyse.extrapolation import time_of
from rigdyno.plan.load import Request
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement

VOLUME = "32x216x216"
BLOCKS = {"features": "8,16", "volume": VOLUME, "block": "4x25x25", "halo": "1x1x1"}
VOXELS = 32 * 216 * 216
COUNT = 8 * 9 * 9
SAMPLED = 40
TRAINING = {"features": "4,8", "patch": "4x18x18", "workers": 1}
ITERATIONS, FIRST = 1001, 40
TRIES = 10


def measured(workload: str, options: dict[str, object], out: Path, **how: object) -> Measurement:
    run = rigdyno.run(workload, options=options, threads=1, out=out, **how)
    (only,) = run.measurements
    return only


def whole_seconds(measurement: Measurement, items: float) -> float:
    """Of all steps, warm-up included, from the rows themselves."""
    from rigdyno.analyse.streams import row_seconds
    from rigdyno.schema.samples import read_rows

    (record,) = measurement.records
    del record, items
    raise NotImplementedError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    finish([])
