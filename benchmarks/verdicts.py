"""Check that the validity verdict names what went wrong, and that quiet runs aren't INVALID.

Faults are injected for real into real runs of a small step (_faults.py), in turns with undisturbed runs. A
fault counts as found if its own reason is among those given; at least 95 % must be. At most 2 % of quiet runs may be
INVALID. Other people's load is no fault of ours: a run counts as quiet if no fault was injected and the detectors of
other tenants, run-queue wait and steal, stay below what makes a run SUSPECT. How the others fared is printed too.

A verdict that is nearly always SUSPECT says nothing: of the rows of the default `device` and `scaling` runs at least
80 % must be VALID, on a machine whose own noise, as the device run measures it, is below 3 %. Where it is louder, a
smaller share is neither kept nor broken: it counts as not measured.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from _bars import Bar, NotMeasured, finish, share_bar
from _faults import FAULTS, Fault, Inject, write_step

from rigdyno import api
from rigdyno.analyse.pairs import meaningless_below
from rigdyno.analyse.streams import STEAL, mean_reading, pushed_aside_share, span_of
from rigdyno.analyse.validity import thresholds
from rigdyno.base.errors import DamagedRun
from rigdyno.base.units import NS_PER_S
from rigdyno.contracts import Progress
from rigdyno.plan.request import Request
from rigdyno.report.progress import SilentObserver
from rigdyno.runner.orchestrate import create_run
from rigdyno.schema.record import RunHead
from rigdyno.schema.samples import read_rows
from rigdyno.store.folder import StoredCell

NONE = Fault("none", "", seconds=3.0)
INJECTED_AT = 0.4  # of the stream
LEAST_VALID, MOST_NOISE = 0.80, 0.03


@dataclass(frozen=True)
class Judged:
    fault: str
    right: bool  # whether the reason that belongs to the fault was given
    quiet: bool
    status: str
    codes: tuple[str, ...]


class Injector(SilentObserver):
    """Inject the fault once the stream has come far enough."""

    def __init__(self, inject: Inject | None, after_seconds: float) -> None:
        self._inject, self._after_ns = inject, after_seconds * NS_PER_S

    def planned(self, plan: object, folder: Path) -> None:
        self._folder = folder

    def progress(self, progress: Progress) -> None:
        cell = self._folder / "cells" / progress.cell.name
        if self._inject is not None and _stream_ns(cell) >= self._after_ns:
            self._inject(cell)
            self._inject = None


def _stream_ns(cell: Path) -> int:
    try:
        _, rows = read_rows(cell / "rank0" / "steps.rows")
    except DamagedRun:  # not there yet
        return 0
    return int(rows["end_ns"][-1] - rows["start_ns"][0]) if len(rows) else 0


def judged(fault: Fault, step: Path) -> Judged:
    with contextmanager(fault.setting or _nothing)() as inject:
        head = _head(f"{step}:{fault.function}", fault.seconds)
        folder = create_run(head, step.parent / "runs")
        run = api.carry_out(folder, head, Injector(inject, INJECTED_AT * fault.seconds))
    [measurement] = run.measurements
    codes = tuple(reason.code for reason in measurement.validity.reasons) if measurement.validity else ()
    return Judged(fault.name, fault.code in codes, _is_quiet(run.cells[0]), measurement.status, codes)


@cache
def _head(target: str, seconds: float) -> RunHead:
    return api.prepare(Request(target=target, soak_seconds=seconds, device="cpu"))


def _nothing() -> Iterator[Inject | None]:
    yield None


def _is_quiet(cell: StoredCell) -> bool:
    """Ask only the detectors of other tenants, over the whole stream."""
    found, steps = cell.telemetry(), cell.steps()
    if not found or not steps or not len(steps[0][1]):
        return False
    (_, telemetry), span = found[0], span_of(steps[0][1])
    aside, steal = pushed_aside_share(telemetry, span), mean_reading(telemetry, STEAL, span)
    return (aside or 0.0) < thresholds.PUSHED_ASIDE_SUSPECT and (steal or 0.0) < thresholds.STEAL_SUSPECT


def matrix(results: list[Judged]) -> str:
    """Return a table of how many runs of each fault were given each reason."""
    reasons = sorted({code for result in results for code in result.codes})
    lines = [f"{'fault':<34} {'runs':>4} {'right':>5}  VALID/SUSPECT/INVALID/FAILED  reasons"]
    for name in dict.fromkeys(result.fault for result in results):
        runs = [result for result in results if result.fault == name]
        statuses = Counter(result.status for result in runs)
        verdicts = "/".join(str(statuses[status]) for status in ("VALID", "SUSPECT", "INVALID", "FAILED"))
        given = Counter(code for result in runs for code in result.codes)
        named = ", ".join(f"{code} {given[code]}" for code in reasons if given[code])
        right = str(sum(result.right for result in runs)) if name != NONE.name else "-"
        lines.append(f"{name:<34} {len(runs):>4} {right:>5}  {verdicts:<29}  {named}")
    return "\n".join(lines)


def bars(results: list[Judged]) -> list[Bar]:
    injected = [result for result in results if result.fault != NONE.name]
    undisturbed = [result for result in results if result.fault == NONE.name]
    quiet = [result for result in undisturbed if result.quiet]
    loud_invalid = sum(result.status == "INVALID" for result in undisturbed if not result.quiet)
    aside, steal = f"{thresholds.PUSHED_ASIDE_SUSPECT:.0%} of a core", f"{thresholds.STEAL_SUSPECT:.0%}"
    print(
        f"\n{len(undisturbed)} runs without a fault, {len(quiet)} of them quiet: others kept less than {aside} "
        f"from them, and steal was below {steal}. Of the other {len(undisturbed) - len(quiet)}, "
        f"{loud_invalid} are INVALID.\n"
    )
    return [
        share_bar("faults marked with the right reason", [r.right for r in injected], 0.95, "least", on_value=True),
        share_bar("quiet runs called INVALID", [r.status == "INVALID" for r in quiet], 0.02, "most", on_value=True),
    ]


def judge_faults(faults: list[Fault], step: Path) -> Iterator[Judged]:
    """Run and judge each fault; one that can't be injected here is skipped with a message."""
    for fault in faults:
        try:
            result = judged(fault, step)
        except OSError as error:
            print(f"{fault.name}: can't be injected here: {error}", flush=True)
            continue
        print(f"{fault.name:<34} {result.status:<8} {', '.join(result.codes)}", flush=True)
        yield result


def default_rows(folder: Path) -> Bar:
    """Count the VALID rows of suites that run with their defaults: every row that has a figure."""
    name, statuses, noise = "rows of default runs that are VALID", Counter[str](), None
    for suite in ("device", "scaling"):
        run = api.run(suite, out=folder)
        view = run.view()
        rows = Counter(row.status for table in view.tables for row in table.rows if row.status)
        noise = meaningless_below(run.duel) if run.duel is not None and suite == "device" else noise
        statuses += rows
        reasons = "; ".join(each.sentence for each in view.validity.reasons) if view.validity is not None else ""
        print(f"default {suite} run: {dict(rows)}; {reasons or 'no reasons'}", flush=True)
    valid = [each == "VALID" for each in statuses.elements() if each in ("VALID", "SUSPECT", "INVALID")]
    found = share_bar(name, valid, LEAST_VALID, "least", on_value=True)
    heard = "not measured" if noise is None else f"{noise:.1%}"
    print(f"the machine's own noise: {heard}")
    if not found.holds and (noise is None or noise >= MOST_NOISE):
        why = f"the machine's own noise is {heard}, and {found.value:.0%} were VALID"
        return NotMeasured.because(f"{name}; {why}", why, LEAST_VALID, "least")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every fault once, and shorter; no default runs")
    quick = parser.parse_args().quick
    rounds, quiet_each = (1, 1) if quick else (2, 4)
    faults = [replace(fault, seconds=fault.seconds * 2 / 3) if quick else fault for fault in FAULTS]
    results: list[Judged] = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["PYTHONPATH"] = folder
        step = write_step(Path(folder))
        for _ in range(rounds):
            results += judge_faults([*faults, *[NONE] * quiet_each], step)
        default = [] if quick else [default_rows(Path(folder) / "default")]
        os.chdir("/")
    print(f"\n{matrix(results)}")
    finish([*bars(results), *default])


if __name__ == "__main__":
    main()
