"""One process of overhead.py: `python _harness.py SCALE SEED` takes windows with and without the harness in turns.

A bare window is `for _ in range(n): step()` between two readings of the clock. A metered window is the worker's loop
with a meter and its file on disk. Both are a few steps long, so that hundreds of pairs fit into seconds and what the
machine does to one of a pair it mostly does to the other. The sampler's process, with all its probes, is stopped
meanwhile: it reads twice a second, which few windows would see. What it costs is its own time on a core, as the
kernel counts it. Few windows see the meter write, too: that is the time between the rows of a longer loop.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rigdyno.base.clock import SystemClock
from rigdyno.base.errors import DamagedRun
from rigdyno.base.files import write_json
from rigdyno.base.processes import write_pid
from rigdyno.base.units import NS_PER_MS, NS_PER_S
from rigdyno.contracts import Step
from rigdyno.launchers.nodes.local import NodeSampler, NodeShare, make_folders
from rigdyno.runner.meter import StepMeter
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.samples import STEP_FIELDS, STEP_STRUCT, Header, RowFile, read_rows
from rigdyno.schema.spec import Budget, Cell, RunSpec, assign_participants

WINDOWS = {0.05: (80, 150), 1.0: (3, 1600), 5.0: (2, 400), 50.0: (1, 60)}  # by ms a step: steps a window, pairs
SAMPLER_MS = 3000
WRITING_MS = 3000
WARM_UP_ROWS = 5
SETTLE_SECONDS = 0.01  # for the sampler to stop, or to catch up with the reading that it missed

CELL = Cell(name="harness", spec=RunSpec(workload="harness"), participants=assign_participants(1, 1, "cpu"))

now_ns = SystemClock.now_ns


class Sampler:
    """The sampler's process, which can be stopped and continued."""

    def __init__(self, folder: Path) -> None:
        _wait_until(lambda: _readings(folder) >= 2)
        self.pid = int(CellFolder(folder).participant("node0").pid.read_text())

    @contextmanager
    def held(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(SETTLE_SECONDS)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def core_share(self, meanwhile: Callable[[], object]) -> float:
        time.sleep(SETTLE_SECONDS)
        began_ns, cpu_ns = now_ns(), self._spent_ns()
        meanwhile()
        return (self._spent_ns() - cpu_ns) / (now_ns() - began_ns)

    def _spent_ns(self) -> int:
        """Return the CPU time of all its threads: each probe has one."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(path.read_text().split()[0]) for path in threads)


def bare(step: Step, count: int) -> float:
    """Nanoseconds a step; the clock runs from the end of a first one, because code that the other kind of window has
    pushed out of the caches costs that one tens of microseconds, in either kind."""
    began_ns = 0
    for number in range(count + 1):
        step()
        if number == 0:
            began_ns = now_ns()
    return (now_ns() - began_ns) / count


def metered(step: Step, count: int, meter: StepMeter) -> float:
    """Run the worker's own loop for `count` steps. The time between the ends of two rows is all that their steps cost.
    The writing of rows is measured separately."""
    while True:
        meter._rows.clear()
        rows = max(1, count // meter._block)
        repeat(step, rows + 1, meter)
        ends_ns = [row[1] for row in struct.iter_unpack(STEP_STRUCT, meter._rows)]
        if len(ends_ns) == rows + 1:  # else the machine was so busy that they were written in between
            return (ends_ns[-1] - ends_ns[0]) / (rows * meter._block)


def repeat(step: Step, rows: int, meter: StepMeter) -> None:
    meter._running, meter._rows_due, meter._measured_rows, meter._flushed_ns = True, rows, 0, now_ns()
    meter.restart()
    meter.repeat(step, 1.0)


def warmed_up_meter(step: Step, path: Path) -> StepMeter:
    file = RowFile(path, Header(fields=STEP_FIELDS, kinds=("step",), participant=CELL.participants[0]))
    budget = Budget(seconds=1e6)
    meter = StepMeter(file, SystemClock(), budget, settled=lambda durations: len(durations) >= WARM_UP_ROWS)
    while meter._flags:
        step()
        meter.step()
    return meter


def hashing_step(milliseconds: float) -> Step:
    """Make a compute-bound step from the cache: it hashes as many bytes as this processor does in that time."""
    text = bytes(50_000)
    nanoseconds = min(_duration_ns(lambda: hashlib.sha256(text).digest()) for _ in range(200))
    rounds = max(1, round(milliseconds * NS_PER_MS / nanoseconds))
    size = round(len(text) * milliseconds * NS_PER_MS / nanoseconds / rounds)
    piece = bytes(size)

    def step() -> None:
        for _ in range(rounds):
            hashlib.sha256(piece).digest()

    return step


def _duration_ns(work: Callable[[], object]) -> int:
    began_ns = now_ns()
    work()
    return now_ns() - began_ns


def _readings(folder: Path) -> int:
    try:
        return len(read_rows(CellFolder(folder).participant("node0").rows("telemetry"))[1])
    except DamagedRun:  # not there yet
        return 0


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline_ns = now_ns() + 30 * NS_PER_S
    while not condition():
        if now_ns() > deadline_ns:
            sys.exit("the sampler didn't start within 30 s")
        time.sleep(0.02)


def pairs(scale: float, chance: random.Random, folder: Path) -> dict[str, list[list[float]]]:
    """Return for each step's name one row per pair: [bare, metered] in ns per step, the share of a loop's time between
    its steps, and the sampler's share of a core."""
    sampler = Sampler(folder)
    with sampler.held():
        found = {
            f"{step_ms:g} ms": _meter_pairs(hashing_step(step_ms), count, round(scale * number), chance, folder)
            for step_ms, (count, number) in WINDOWS.items()
        }
        found["writing"] = [[_writing_share(scale, folder)]]
    found["sampler"] = [[_sampler_share(sampler, scale)]]
    with sampler.held(), fed_sampler(folder) as fed:
        found["fed sampler"] = [[_sampler_share(fed, scale)]]
    return found


@contextmanager
def fed_sampler(folder: Path) -> Iterator[Sampler]:
    """Measure the sampler with every probe that a machine can have."""
    fed = folder / "fed"
    CellFolder(fed).participant("node0").path.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("_fed_sampler.py")), str(folder), str(fed)]
    )
    try:
        yield Sampler(fed)
    finally:
        process.terminate()
        process.wait()


def _meter_pairs(step: Step, count: int, number: int, chance: random.Random, folder: Path) -> list[list[float]]:
    meter = warmed_up_meter(step, folder / f"steps.{count}.{number}.rows")
    found = []
    for _ in range(number):
        times = {}
        for name in _order(chance, "bare", "metered"):
            times[name] = bare(step, count) if name == "bare" else metered(step, count, meter)
        found.append([times["bare"], times["metered"]])
    meter.close()
    return found


def _writing_share(scale: float, folder: Path) -> float:
    """Measure the writing of rows with steps of 1 ms, which make the most rows."""
    step, path = hashing_step(1.0), folder / "writing.rows"
    meter = warmed_up_meter(step, path)
    repeat(step, round(scale * WRITING_MS), meter)
    meter.close()
    _, rows = read_rows(path)
    rows = rows[rows["flags"] == 0]
    between_ns = (rows["start_ns"][1:] - rows["end_ns"][:-1]).sum()
    return float(between_ns / (rows["end_ns"][-1] - rows["start_ns"][0]))


def _sampler_share(sampler: Sampler, scale: float) -> float:
    """Measure the sampler while one core is busy."""
    step = hashing_step(1.0)
    return sampler.core_share(lambda: bare(step, round(scale * SAMPLER_MS)))


def _order(chance: random.Random, *names: str) -> list[str]:
    return chance.sample(names, len(names))


def main() -> None:
    scale, seed = float(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        part = NodeShare(CELL, folder)
        write_json(CellFolder(folder).spec, CELL)
        make_folders(part)
        write_pid(CellFolder(folder).participant("rank0").pid)
        sampler = NodeSampler(part)
        try:
            found = pairs(scale, random.Random(seed), folder)
        finally:
            sampler.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
