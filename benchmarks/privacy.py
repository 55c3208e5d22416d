"""The largest batch that trains within a memory: what private training leaves of it, and whether it is true.

EfficientNet-B0 on images of 32 x 32, as the privacy suite trains it, in 4 GB: plain (BatchNorm, channels_last), our own
engine, and Opacus' hooks. The time of an epoch is compared at each one's own largest batch, with the faster of plain
training with BatchNorm and with GroupNorm.

Whether what `fit` reports is true is asked of the same network in 2 GB, whose steps are short enough for it: five more
processes take 30 steps with the batch that was found, with batches as private training draws them; and 1.15 times that
batch is tried as the search tries it, with the largest batch that is drawn in all likelihood. A quick run asks the
MNIST CNN instead.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _bars import Allowance, Bar, NotMeasured, ValueBar, finish, share_bar
from msgspec.structs import replace

from rigdyno import api
from rigdyno.plan.load import from_python
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import Completed, RunRecord
from rigdyno.schema.spec import Budget, Value
from rigdyno.units import show_bytes

GB = 10**9
EFFICIENTNET, SMALL = "efficientnet_cifar100", "mnist_cnn"
CHANNELS_LAST: dict[str, Value] = {"norm": "batch", "channels_last": True}
GROUP_NORM: dict[str, Value] = {"norm": "group", "channels_last": True}
PRIVATE: dict[str, Value] = {"norm": "group", "channels_last": True}
STEPS, PROCESSES, MORE = 30, 5, 1.15
MOST_TRIES = 8
FEW = 4  # steps behind warm-up, of what is measured at the end of a search: those of 4 GB take seconds each
LONGEST = {
    "efficientnet": 200.0,
    "hooks": 120.0,
    "plain": 150.0,
    "dp_fast": 110.0,
}  # seconds that must be left to begin with it


@dataclass(frozen=True)
class Found:
    """One search, and the figure at its end."""

    name: str
    measurement: Measurement

    @property
    def batch(self) -> int | None:
        value = self.measurement.spec.options.get("batch_size")
        return value if isinstance(value, int) else None

    @property
    def tries(self) -> int:
        return len(self.measurement.attempts)

    def say(self) -> None:
        size = _size(self.measurement.records[-1].memory_bytes)
        rate = self.measurement.throughput()
        speed = f"{rate.value:.4g} items/s" if isinstance(rate, Estimate) else rate.reason
        tried = ", ".join(f"{each.value} ({_size(each.memory_bytes)})" for each in self.measurement.attempts)
        print(f"{self.name}: batch {self.batch} in {self.tries} tries, {size}, {speed}; tried {tried}", flush=True)


def _size(size: int | None) -> str:
    return "?" if size is None else show_bytes(size)


class Bench:
    def __init__(self, out: Path) -> None:
        self._out = out
        self.found: list[Found] = []

    def search(self, name: str, workload: str, allowed: int, update: str, options: Mapping[str, Value]) -> Found:
        run = api.run(
            workload,
            options={**options, "batch_size": "largest"},
            memory=f"{allowed / GB:g}GB",
            update=update,
            steps=FEW,
            out=self._out,
        )
        found = Found(name, run.measurements[0])
        found.say()
        self.found.append(found)
        return found

    def rate(self, workload: str, options: Mapping[str, Value]) -> Estimate | None:
        rate = api.run(workload, options=options, steps=FEW, out=self._out).measurements[0].throughput()
        return rate if isinstance(rate, Estimate) else None

    def processes(self, found: Found, batch: int, allowed: int, count: int, *, as_tried: bool) -> list[RunRecord]:
        """Within the same fence as those of a search."""
        spec = found.measurement.spec
        options = {**spec.options, "batch_size": batch}
        asked = {"target": spec.workload, "options": options, "update": spec.update, "repeat": count}
        head = api.prepare(from_python(asked))
        budget = Budget(seconds=120.0, max_steps=STEPS)
        cells = tuple(
            replace(
                cell,
                allowed_bytes=allowed,
                attempt_of=cell.name if as_tried else None,
                spec=replace(cell.spec, budget=budget),
            )
            for cell in head.plan.cells
        )
        head = replace(head, plan=replace(head.plan, cells=cells))
        return api.carry_out(api.start(head, self._out), head).records


def fits(record: RunRecord, allowed: int) -> bool:
    return isinstance(record.outcome, Completed) and (record.memory_bytes or math.inf) <= allowed


def truth(bench: Bench, workload: str, update: str, allowed: int, processes: int) -> list[Bar]:
    """Whether the batch that was found fits, and a larger one doesn't."""
    options = {} if workload == SMALL else PRIVATE if update == "dp_fast" else CHANNELS_LAST
    found = bench.search(f"{update} in {show_bytes(allowed)}", workload, allowed, update, options)
    if found.batch is None:
        why = found.measurement.why_missing()
        return [NotMeasured.because(f"{update}: survives {STEPS} steps", why, 1.0, "least")]
    records = bench.processes(found, found.batch, allowed, processes, as_tried=False)
    more = bench.processes(found, math.ceil(MORE * found.batch), allowed, 1, as_tried=True)
    for kind, each in (("found", records), ("larger", more)):
        print(f"{update}, {kind}: {', '.join(_size(record.memory_bytes) for record in each)}", flush=True)
    answers = {
        f"{update}: survives {STEPS} steps": [fits(each, allowed) for each in records],
        f"{update}: {MORE} times it doesn't fit": [not fits(each, allowed) for each in more],
    }
    return [share_bar(name, said, 1.0, "least", on_value=True) for name, said in answers.items()]


def sizes(bench: Bench, allowance: Allowance, allowed: int) -> list[Bar]:
    """What is left of plain's batch, and how long an epoch takes with it."""
    if allowance.seconds_left < LONGEST["efficientnet"]:
        return [NotMeasured.because("dp_fast's batch, of plain's", "no time was left", 0.9, "least")]
    plain = bench.search("plain", EFFICIENTNET, allowed, "plain", CHANNELS_LAST)
    ours = bench.search("dp_fast", EFFICIENTNET, allowed, "dp_fast", PRIVATE)
    bars = [batches("dp_fast's batch, of plain's", ours, plain, 0.9), epochs(bench, ours, plain)]
    if allowance.seconds_left < LONGEST["hooks"]:
        return [*bars, NotMeasured.because("dp_fast's batch, of Opacus' hooks'", "no time was left", 30, "least")]
    hooks = bench.search("hooks", EFFICIENTNET, allowed, "dp_opacus", {**PRIVATE, "update.mode": "hooks"})
    return [*bars, batches("dp_fast's batch, of Opacus' hooks'", ours, hooks, 30)]


def batches(name: str, one: Found, other: Found, bar: float) -> Bar:
    if one.batch is None or other.batch is None:
        missing = one if one.batch is None else other
        return NotMeasured.because(name, missing.measurement.why_missing(), bar, "least")
    ratio = one.batch / other.batch
    return ValueBar(name, ratio, ratio, ratio, f"{one.batch} of {other.batch}", bar, "least")


def epochs(bench: Bench, ours: Found, plain: Found) -> Bar:
    name, bar = "dp_fast's epoch, of the fastest plain's", 0.6
    private, rates = ours.measurement.throughput(), [plain.measurement.throughput()]
    if plain.batch is not None:
        rates.append(bench.rate(EFFICIENTNET, {**GROUP_NORM, "batch_size": plain.batch}) or rates[0])
    known = [rate for rate in rates if isinstance(rate, Estimate)]
    if not isinstance(private, Estimate) or not known:
        return NotMeasured.because(name, "a rate is missing", bar, "most")
    fastest = max(known, key=lambda rate: rate.value)
    low, high = fastest.ends[0] / private.ends[1], fastest.ends[1] / private.ends[0]
    return ValueBar(name, fastest.value / private.value, low, high, "worst of both intervals", bar, "most")


def tries_bar(found: Sequence[Found]) -> Bar:
    most = max((each.tries for each in found), default=math.inf)
    least = min((each.tries for each in found), default=math.inf)
    return Bar("tries of a search", most, least, most, f"the most of {len(found)} searches", MOST_TRIES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the small network, plain training: about a minute")
    parser.add_argument("--only", choices=["batches", "truth"], help="one half alone")
    asked = parser.parse_args()
    quick = asked.quick
    allowance = Allowance(quick)
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as out:
        bench = Bench(Path(out))
        if quick:
            bars += truth(bench, SMALL, "plain", 2 * GB, 2)[:1]
        else:
            bars += sizes(bench, allowance, 4 * GB) if asked.only != "truth" else []
            for update in ("dp_fast", "plain") if asked.only != "batches" else ():
                if allowance.seconds_left < LONGEST[update]:
                    bars.append(NotMeasured.because(f"{update}: survives {STEPS} steps", "no time", 1.0, "least"))
                    continue
                bars += truth(bench, EFFICIENTNET, update, 2 * GB, PROCESSES)
    finish([*bars, tries_bar(bench.found)])


if __name__ == "__main__":
    main()
