"""One process of overhead.py: `python _harness.py ROUNDS SEED` takes windows with and without the harness in turns.

A bare window is `for _ in range(n): step()` between two readings of the clock. A harness window is what a worker does:
the arrangement's loop, a meter with its file on disk, and the sampler's process with all its probes at 10 Hz beside it.
The sampler is stopped during bare windows and goes on for the others, so that its cost counts where it belongs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rigdyno.analyse.steady import settled_so_far
from rigdyno.arrangements.single import Single
from rigdyno.clock import SystemClock
from rigdyno.contracts import Collective, Job, Place, Step, Steps, Training
from rigdyno.errors import DamagedRun
from rigdyno.processes import write_pid
from rigdyno.runner.device import usable_cores
from rigdyno.runner.measure import StepMeter
from rigdyno.runner.sampling import sampled
from rigdyno.schema.samples import STEP_FIELDS, WARM_UP, Header, RowFile, read_rows
from rigdyno.schema.spec import Budget
from rigdyno.units import NS_PER_MS, NS_PER_S
from rigdyno.updates.plain import Plain

STEP_MS = (0.05, 1.0, 5.0, 50.0)
ALL_CORES_MS = 5.0
ALL_CORES = "5 ms on all cores"
WINDOW_MS = 100.0  # one reading of the sampler
LEAST_STEPS = 5  # in a window
PAIRS = 2  # of a step in a round; one where they take longer
WARM_UP_STEPS = 5  # before a bare window: the meter's take as long
SETTLE_SECONDS = 0.01  # for the sampler to stop, or to catch up with the reading that it missed

now_ns = SystemClock.now_ns


@dataclass(frozen=True)
class Window:
    wall_ns: float  # per step
    cpu_ns: float  # of this process, all threads, per step


@dataclass(frozen=True)
class Bench:
    """A step that is built already, as the arrangement wants it."""

    step: Step

    def build(self, _place: Place) -> Steps:
        return Steps(kinds={"step": self.step})


class Sampler:
    """The sampler's process, as far as it can be held."""

    def __init__(self, folder: Path) -> None:
        _wait_until(lambda: _readings(folder) >= 2)
        self.pid = int((folder / "sampler.pid").read_text())
        self._running_ns = self._cpu_ns = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(SETTLE_SECONDS)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def going(self) -> Iterator[None]:
        time.sleep(SETTLE_SECONDS)
        began_ns, cpu_ns = now_ns(), self._spent_ns()
        yield
        self._running_ns += now_ns() - began_ns
        self._cpu_ns += self._spent_ns() - cpu_ns

    def core_share(self) -> float:
        return self._cpu_ns / max(1, self._running_ns)

    def _spent_ns(self) -> int:
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0])


def bare(step: Step, count: int) -> Window:
    for _ in range(WARM_UP_STEPS):
        step()
    cpu_ns, began_ns = time.process_time_ns(), now_ns()
    for _ in range(count):
        step()
    wall_ns = now_ns() - began_ns
    return Window(wall_ns / count, (time.process_time_ns() - cpu_ns) / count)


def harness(step: Step, count: int, path: Path) -> Window:
    """From where the meter calls it warmed up to where its file is closed: one more write than in a longer run."""
    began: list[int] = []

    def start_meter(_built: Steps | Training, _collective: Collective) -> StepMeter:
        file = RowFile(path, Header(fields=STEP_FIELDS, kinds=("step",)))
        meters.append(
            StepMeter(
                file,
                SystemClock(),
                Budget(seconds=1000.0, max_steps=count),
                settled=lambda durations: len(durations) >= WARM_UP_STEPS or settled_so_far(durations),
                warmed_up=lambda: began.extend((time.process_time_ns(), now_ns())),
            )
        )
        return meters[0]

    meters: list[StepMeter] = []
    Single().run(Job(Bench(step), Plain(), Place("cpu"), start_meter))  # type: ignore[arg-type]
    meters[0].close()
    wall_ns, cpu_ns = now_ns() - began[1], time.process_time_ns() - began[0]
    _, rows = read_rows(path)
    steps = int(rows["steps"][(rows["flags"] & WARM_UP) == 0].sum())
    path.unlink()
    return Window(wall_ns / steps, cpu_ns / steps)


def hashing_step(milliseconds: float) -> Step:
    """Bound by computing, from the cache: as many bytes as this processor hashes in that time."""
    text = bytes(50_000)
    nanoseconds = min(_duration_ns(lambda: hashlib.sha256(text).digest()) for _ in range(200))
    rounds = max(1, round(milliseconds * NS_PER_MS / nanoseconds))
    size = round(len(text) * milliseconds * NS_PER_MS / nanoseconds / rounds)
    piece = bytes(size)

    def step() -> None:
        for _ in range(rounds):
            hashlib.sha256(piece).digest()

    return step


def on_all_cores(step: Step) -> Step:
    pool, cores = ThreadPoolExecutor(usable_cores()), range(usable_cores())

    def shared() -> None:
        for _ in pool.map(lambda _core: step(), cores):
            pass

    return shared


def _duration_ns(work: Callable[[], object]) -> int:
    began_ns = now_ns()
    work()
    return now_ns() - began_ns


def _readings(folder: Path) -> int:
    try:
        return len(read_rows(folder / "telemetry.rows")[1])
    except DamagedRun:  # not there yet
        return 0


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline_ns = now_ns() + 30 * NS_PER_S
    while not condition():
        if now_ns() > deadline_ns:
            sys.exit("the sampler didn't start within 30 s")
        time.sleep(0.02)


def pairs(rounds: int, chance: random.Random, folder: Path) -> dict[str, list[list[float]]]:
    """By name of the step: [bare wall, harness wall, bare CPU, harness CPU] in ns a step, a row a pair."""
    steps = {f"{milliseconds:g} ms": (hashing_step(milliseconds), milliseconds) for milliseconds in STEP_MS}
    steps[ALL_CORES] = on_all_cores(hashing_step(ALL_CORES_MS)), ALL_CORES_MS
    sampler = Sampler(folder)
    found: dict[str, list[list[float]]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, (step, milliseconds) in steps.items():
            count = max(LEAST_STEPS, math.ceil(WINDOW_MS / milliseconds))
            for _ in range(PAIRS if milliseconds * LEAST_STEPS <= WINDOW_MS else 1):
                found[name].append(_pair(step, count, sampler, folder / "steps.0.rows", chance.random() < 0.5))
    return {**found, "sampler": [[sampler.core_share()]]}


def _pair(step: Step, count: int, sampler: Sampler, path: Path, bare_first: bool) -> list[float]:
    windows: dict[str, Window] = {}
    for name in ("bare", "harness") if bare_first else ("harness", "bare"):
        with sampler.held() if name == "bare" else sampler.going():
            windows[name] = bare(step, count) if name == "bare" else harness(step, count, path)
    without, beside = windows["bare"], windows["harness"]
    return [without.wall_ns, beside.wall_ns, without.cpu_ns, beside.cpu_ns]


def main() -> None:
    rounds, seed = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pid(folder, "worker.0")
        with sampled(folder):
            found = pairs(rounds, random.Random(seed), folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
