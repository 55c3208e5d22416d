"""Run ways of training that take turns, each in its own process, so that a disturbance affects all of them.

A round gives each arm a turn; claims are about the ratio within a round. With one thread CPU time is compared, which
other tenants don't lengthen; with two, the time that passed. Batches that are drawn differ in size: all figures are
seconds a sample, times the batch that is expected.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from _bars import Bar

from rigdyno.analyse.statistics import median_estimate

HERE = Path(__file__).parent
MEGA = 1e6
SECONDS_A_TURN = 0.3
# Rounds go on until every bar is decided, or for as long as there is time. To look often and to stop at the first
# decision would decide wrongly more often than stated: so it is looked at a few times only, with more confidence.
LOOKS = (8, 12, 18, 27, 40, 60)
CONFIDENCE_TO_STOP = 0.99
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Case:
    network: str
    samples: int
    threads: int

    def __str__(self) -> str:
        return f"{self.network}, batch {self.samples}, {self.threads} thread{'s' * (self.threads > 1)}"


class Arm:
    """A child process that runs a given number of steps on request."""

    def __init__(self, kind: str, case: Case, batches: str = "drawn", python: Path | str = sys.executable) -> None:
        self.kind, self.batches, self.case = kind, batches, case
        self.rounds: list[float] = []
        self.memory: int | None = None
        self.first: float | None = None
        self.missing: str | None = None
        self._steps = 1
        script = "_jax_arm.py" if python != sys.executable else "_dp_arm.py"
        command = [str(python), str(HERE / script), kind, batches, case.network, str(case.samples), str(case.threads)]
        self._child = subprocess.Popen(
            command,
            text=True,
            env=_environment(case),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @property
    def name(self) -> str:
        return f"{self.kind} ({self.batches})"

    @property
    def seconds(self) -> float:
        return statistics.median(self.rounds)

    def wait(self) -> None:
        """Wait until the arm is warm."""
        word, _, rest = self._line().partition(" ")
        if word != "ready":
            self.missing = rest or "ended without a word"
            self._child.wait()
            return
        self.memory = int(rest)

    def try_out(self) -> None:
        """Time one step to find how many steps make a turn."""
        self.first = self._ask(1)
        self._steps = max(1, round(SECONDS_A_TURN / self.first))

    def turn(self) -> None:
        self.rounds.append(self._ask(self._steps))

    def end(self) -> None:
        if self._child.poll() is None:
            self._child.communicate()

    def _ask(self, steps: int) -> float:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{steps}\n")
        self._child.stdin.flush()
        passed, spent, samples = map(float, self._line().split())
        if samples == 0:  # drawn batches may be empty
            return self._ask(steps)
        return (spent if self.case.threads == 1 else passed) / samples * self.case.samples

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()


def _environment(case: Case) -> dict[str, str]:
    """Generated code takes its threads from torch, so that one compilation serves one and two; it is kept for the next
    run, as the kernels are."""
    kept = Path(tempfile.gettempdir()) / "rigdyno-benchmarks" / "inductor"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(kept),
        **os.environ,
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
        "OMP_NUM_THREADS": str(case.threads),
    }


def started(arms: Sequence[Arm]) -> list[Arm]:
    """Return the arms that can run. The first is timed when the last is warm: until then they would slow it down."""
    for arm in arms:
        arm.wait()
    present = [arm for arm in arms if arm.missing is None]
    for arm in present:
        arm.try_out()
    return present


def keep_kernels(cases: Sequence[Case]) -> None:
    """Compile the kernels once and keep them on disk, so that compiling adds no time or memory to an arm."""
    for threads in {case.threads for case in cases}:
        for network in {case.network for case in cases}:
            end_all(started([Arm("ours", Case(network, 2, threads))]))


def ratios(one: Arm, other: Arm) -> list[float]:
    """Return the ratios of the newest rounds that both arms took part in."""
    both = min(len(one.rounds), len(other.rounds))
    return [a / b for a, b in zip(one.rounds[-both:], other.rounds[-both:], strict=True)]


@dataclass
class Claim:
    """A claim about the time of one arm relative to another's."""

    name: str
    one: Arm
    other: Arm
    unit: str
    bar: float
    at: str = field(default="most")

    def as_bar(self, confidence: float = CONFIDENCE) -> Bar:
        found = median_estimate(ratios(self.one, self.other), self.unit, confidence, independent=True)
        return Bar(self.name, found.value, found.low, found.high, self.unit, self.bar, self.at)  # type: ignore[arg-type]

    @property
    def decided(self) -> bool:
        found = self.as_bar(CONFIDENCE_TO_STOP)
        return found.high <= self.bar or found.low >= self.bar


def rounds(arms: Sequence[Arm], end: float, claims: Callable[[], Sequence[Claim]]) -> int:
    """How many there were; at least the first look's, as there is nothing to say before."""
    longest = 0.0
    for number in range(LOOKS[-1]):
        began = time.monotonic()
        if number >= LOOKS[0] and began + longest > end:
            return number
        if number in LOOKS and all(claim.decided for claim in claims()):
            return number
        for arm in rotated(arms, number):
            arm.turn()
        longest = max(longest, time.monotonic() - began)
    return LOOKS[-1]


def rotated(arms: Sequence[Arm], by: int) -> Iterator[Arm]:
    first = by % len(arms)
    yield from [*arms[first:], *arms[:first]]


def end_all(arms: Sequence[Arm]) -> None:
    for arm in arms:
        arm.end()


def show(case: Case, arms: Sequence[Arm], beside: Arm, beside_called: str) -> None:
    kind = "CPU time" if case.threads == 1 else "time"
    print(f"\n{case}\n{'arm (batches)':<30} {kind + ' a step':>16} {'of ' + beside_called:>22} {'memory':>10}")
    for arm in arms:
        if arm.missing is not None:
            print(f"{arm.name:<30} not measured: {arm.missing}")
            continue
        seconds = arm.seconds if arm.rounds else arm.first or 0.0  # who was out after one step has that alone
        ratio = statistics.median(ratios(arm, beside)) if arm.rounds else seconds / beside.seconds
        memory = (arm.memory or 0) / MEGA
        print(f"{arm.name:<30} {1e3 * seconds:>13.1f} ms {ratio:>22.2f} {memory:>7.0f} MB")
    sys.stdout.flush()
