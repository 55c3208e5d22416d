"""Measure how long an audit takes to refute a false claim, and how often it refutes a true one.

Each fault is planted around an engine and audited several times, with seeds of their own, until it is refuted with
99.9 % confidence: training and test, without the accounting of the claim. Correct engines, ours and Opacus, are audited
for a fixed number of runs: of 40 such audits at most 5 may be refuted with 95 % confidence, and none with 99.9 %.
"""

from __future__ import annotations

import argparse
import logging
import time
from dataclasses import dataclass

import torch
from _audit_arms import CORRECT, FAULTS, ONCE_CORRECT, ONCE_FAULTS, OPACUS_CORRECT, OPACUS_FAULT, Arm
from _bars import Allowance, Bar, NotMeasured, ValueBar, finish

from rigdyno.engines.dp import Audit, audit
from rigdyno.engines.dp.audit.verdict import CURVE_DELTAS

DELTA, ONCE_DELTA = 1e-5, 1e-7
SURE, USUAL = 0.999, 0.95
MOST_RUNS = 3000
MOST_SECONDS = 20.0  # to 99.9 %, the slowest of all seeds
CORRECT_AUDITS, MOST_ALARMS = 40, 5


@dataclass(frozen=True)
class Audited:
    arm: Arm
    found: Audit
    seconds: float
    usual_seconds: float | None  # until 95 %

    def line(self) -> str:
        verdict = "not refuted" if self.found.holds else f"{'99.9' if self.found.refuted(SURE) else '95'} %"
        usual = "-" if self.usual_seconds is None else f"{self.usual_seconds:.2f}"
        figures = f"{self.found.runs:>5} {usual:>7} {self.seconds:>7.2f} {self.found.p_value:>9.2g}"
        return f"{self.arm.name:<36} {figures}  {verdict}"


def audited(arm: Arm, runs: int, seed: int) -> Audited:
    delta = ONCE_DELTA if runs == 1 else DELTA
    claimed = {each: arm.claimed(each) for each in (delta, *CURVE_DELTAS)}  # accounted before the clock starts
    began, usual = time.perf_counter(), []

    def look(done: int, total: int, p_value: float) -> None:
        if p_value <= 1 - USUAL and not usual:
            usual.append(time.perf_counter() - began)

    found = audit(arm.train, claimed=claimed.__getitem__, delta=delta, runs=runs, seed=seed, progress=look)
    seconds = time.perf_counter() - began
    result = Audited(arm, found, seconds, usual[0] if usual else None)
    print(result.line(), flush=True)
    return result


def refuted_bar(name: str, results: list[Audited], bar: float) -> Bar:
    """The slowest counts."""
    missed = [each for each in results if not each.found.refuted(SURE)]
    if missed:
        worst = max(each.found.p_value for each in missed)
        return NotMeasured.because(name, f"not refuted with 99.9 % confidence: p {worst:.2g}", bar, "most")
    seconds = [each.seconds for each in results]
    middle = sorted(seconds)[len(seconds) // 2]
    return Bar(name, middle, min(seconds), max(seconds), f"s, slowest of {len(seconds)}", bar)


def alarm_bars(results: list[Audited]) -> list[Bar]:
    usual = sum(each.found.refuted(USUAL) for each in results)
    sure = sum(each.found.refuted(SURE) for each in results)
    most = max(1, MOST_ALARMS * len(results) // CORRECT_AUDITS)
    of = f"of {len(results)}"
    return [
        ValueBar("correct engines refuted at 95 %", usual, usual, usual, of, most),
        ValueBar("correct engines refuted at 99.9 %", sure, sure, sure, of, 0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every fault once, and fewer correct engines")
    quick = parser.parse_args().quick
    logging.disable(logging.WARNING)  # the accountant's, about orders that it leaves out
    torch.set_num_threads(1)
    allowed = Allowance(quick)
    print(f"{'arm':<36} {'runs':>5} {'s, 95 %':>7} {'s, end':>7} {'p':>9}  refuted at")
    repeats, runs = (1, 150) if quick else (5, 400)
    bars = []
    for arm in [*FAULTS, OPACUS_FAULT, ONCE_FAULTS[0]]:
        most = 1 if arm in ONCE_FAULTS else MOST_RUNS
        bars.append(refuted_bar(arm.name, [audited(arm, most, seed) for seed in range(repeats)], MOST_SECONDS))
    for arm in ONCE_FAULTS[1:]:  # stated, not claimed: beyond what a single run shows
        audited(arm, 1, 0)
    finish([*bars, *alarm_bars(correct_audits(allowed, runs, quick))])


def correct_audits(allowed: Allowance, runs: int, quick: bool) -> list[Audited]:
    usual = [*CORRECT, ONCE_CORRECT, *CORRECT, OPACUS_CORRECT[0], *CORRECT, OPACUS_CORRECT[1]]
    engines = [CORRECT[0], ONCE_CORRECT] if quick else usual
    results = []
    for number in allowed.rounds(*((4, 8) if quick else (CORRECT_AUDITS, CORRECT_AUDITS))):
        arm = engines[number % len(engines)]
        results.append(audited(arm, 1 if arm is ONCE_CORRECT else runs, 1000 + number))
    return results


if __name__ == "__main__":
    main()
