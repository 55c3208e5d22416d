"""Whether extrapolated times hold: of a whole volume from a sample of its blocks, and of 1001 training iterations.

Each try is a fresh process that measures a sample, as `rigdyno run volume` does, and another that runs all of it. A try
hits where the time of the whole run lies in the interval that the sample gave. Network, volume and patches are small,
so that a whole run takes seconds: what is tested is the way from the sample to the whole, not the size.

Decided beforehand: at least 9 of 10 tries hit for the volume, and so do at least 9 of 10 for 1001 iterations. The bars
are on the values: ten tries are too few for an interval to lie on one side.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
from _bars import Allowance, finish, share_bar

from rigdyno import api
from rigdyno.analyse.extrapolation import time_of
from rigdyno.plan.load import Request
from rigdyno.report.progress import observer_for
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Budget

TRIES = 10


class Case(NamedTuple):
    name: str
    workload: str
    options: dict[str, object]
    items: float  # of the whole
    steps: int  # that the whole takes
    sampled: Budget


VOLUME = Case(
    "a volume from a sample of its blocks",
    "unet3d_inference",
    {"features": "8,16", "volume": "32x216x216", "block": "4x25x25", "halo": "1x1x1"},
    items=32 * 216 * 216,
    steps=8 * 9 * 9,
    sampled=Budget(seconds=3.0, max_steps=100),
)
TRAINING = Case(
    "1001 iterations from the first ones",
    "unet3d",
    {"features": "4,8", "patch": "4x18x18", "workers": 1},
    items=1001,
    steps=1001,
    sampled=Budget(seconds=4.0),
)


def measured(case: Case, budget: Budget, out: Path) -> Measurement:
    head = api.prepare(Request(target=case.workload, options=case.options, threads=1))
    (cell,) = head.plan.cells
    spec = msgspec.structs.replace(cell.spec, budget=budget)
    plan = msgspec.structs.replace(head.plan, cells=(msgspec.structs.replace(cell, spec=spec),))
    head = msgspec.structs.replace(head, plan=plan)
    with api.sessions(head, None, None, lambda words: None) as sessions:
        run = api.carry_out(api.start(head, out), head, observer_for(quiet=True), sessions)
    (only,) = run.measurements
    return only


def tried(case: Case, out: Path) -> bool:
    """Whether the interval holds the whole."""
    rate = measured(case, case.sampled, out).throughput()
    whole = measured(case, Budget(seconds=60.0, job_steps=case.steps), out).job
    if not isinstance(rate, Estimate) or whole is None or whole.items != case.items:
        raise SystemExit(f"{case.name}: a run was lost, see {out}")
    predicted = time_of(case.items, rate, 1)
    low, high = predicted.ends
    ratio = whole.loop / predicted.value
    print(f"{case.name}: {low:.3g} to {high:.3g} s predicted, {whole.loop:.3g} s taken ({ratio:.3f})", flush=True)
    return low <= whole.loop <= high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="as many tries as a minute holds")
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--only", choices=["volume", "training"])
    asked = parser.parse_args()
    allowance, hits = Allowance(asked.quick), dict[str, list[bool]]()
    cases = [case for name, case in (("volume", VOLUME), ("training", TRAINING)) if asked.only in (None, name)]
    with tempfile.TemporaryDirectory() as folder:
        for _ in allowance.rounds(least=1, most=asked.tries):
            for case in cases:
                hits[case.name] = [*hits.get(case.name, []), tried(case, Path(folder))]
    finish([share_bar(case.name, hits[case.name], 0.9, "least", on_value=True) for case in cases])


if __name__ == "__main__":
    main()
