"""What privacy costs: a private step beside the fastest plain one, Opacus' and JAX's, all arms in turns.

Each arm is a process of its own that waits for its turn; rounds go through all of them, so what the machine does to one
it mostly does to the others. A bar is about the ratio within a round. With one thread CPU time is compared, which other
tenants don't lengthen; with two, the time that passed. Memory is an arm's peak, imports and all.

Ten minutes have room for the published network at one batch size, and for a network of another kind; `--all` takes all
sizes and networks, each for as long as it needs (about an hour), `--only NETWORK` all of one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from _bars import Allowance, Bar, NotMeasured, finish, median_bar

HERE = Path(__file__).parent
PLAIN = ("plain", "plain, channels_last", "plain, compiled")
OURS = ("ours, DP off", "ours, torch alone", "ours")
OPACUS = ("opacus_hooks", "opacus_functorch", "opacus_ew", "opacus_ghost")
SECONDS_A_TURN = 0.4
LEAST_ROUNDS, MOST_ROUNDS = 7, 40
MILLION = 1e6


@dataclass(frozen=True)
class Case:
    network: str
    samples: int
    threads: int

    def __str__(self) -> str:
        return f"{self.network}, batch {self.samples}, {self.threads} thread{'s' * (self.threads > 1)}"


EFFICIENTNET = [Case("efficientnet_b0", samples, threads) for samples in (16, 64, 256) for threads in (1, 2)]
OTHERS = [Case("resnet18", 16, 2), Case("resnet50", 8, 2), Case("vit", 8, 2), Case("transformer", 32, 2)]
MNIST = Case("mnist_cnn", 256, 2)
USUAL = [Case("efficientnet_b0", 16, 2), Case("transformer", 32, 2), MNIST]
QUICK = [Case("efficientnet_b0", 16, 1)]
# Of the ways that cost some 35 times a plain step on this network one is enough, the default: functorch costs 5 times.
SLOW = {"efficientnet_b0": ("opacus_ew", "opacus_ghost")}


class Arm:
    """A child that runs so many steps when told to."""

    def __init__(self, kind: str, case: Case, jax: Path) -> None:
        self.kind = kind
        self.rounds: list[float] = []
        self.steps = 1
        self.memory: float | None = None
        self.missing: str | None = None
        self._child = self._started(kind, case, jax)

    @staticmethod
    def _started(kind: str, case: Case, jax: Path) -> subprocess.Popen[str]:
        python, script = (jax, "_jax_arm.py") if kind == "jax" and jax.exists() else (sys.executable, "_dp_arm.py")
        command = [str(python), str(HERE / script), kind, case.network, str(case.samples), str(case.threads)]
        threads = str(case.threads)
        # Generated code takes its threads from torch then, and one compilation serves one and two threads.
        environment = {**os.environ, "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1", "OMP_NUM_THREADS": threads}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, text=True, env=environment, **pipes)

    def wait(self) -> None:
        answer = self._line()
        if answer != "ready":
            self.missing = answer.removeprefix("missing: ") or "ended without a word"
            self._child.wait()

    def turn(self, cpu: bool) -> None:
        passed, spent = self._ask(self.steps)
        self.rounds.append((spent if cpu else passed) / self.steps)

    def settle(self) -> None:
        """Two steps tell how many make a turn."""
        passed, _ = self._ask(2)
        self.steps = max(1, round(SECONDS_A_TURN / (passed / 2)))

    def end(self) -> None:
        if self.missing is None:
            out, _ = self._child.communicate()
            self.memory = float(out)

    def _ask(self, steps: int) -> tuple[float, float]:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{steps}\n")
        self._child.stdin.flush()
        passed, spent = self._line().split()
        return float(passed), float(spent)

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()


Measured = dict[str, Arm]


def keep_kernels(cases: Sequence[Case], jax: Path) -> None:
    """Compiled once and kept on disk: what compiling them takes is no arm's time or memory."""
    for threads in {case.threads for case in cases}:
        arm = Arm("ours", Case("efficientnet_b0", 2, threads), jax)
        arm.wait()
        arm.end()


def measure(case: Case, kinds: Sequence[str], rounds: Iterator[int], jax: Path) -> Measured:
    arms = [Arm(kind, case, jax) for kind in kinds]
    for arm in arms:
        arm.wait()
    present = [arm for arm in arms if arm.missing is None]
    for arm in present:
        arm.settle()
    for number in rounds:
        first = number % len(present)
        for arm in present[first:] + present[:first]:
            arm.turn(cpu=case.threads == 1)
    for arm in arms:
        arm.end()
    return {arm.kind: arm for arm in arms}


def show(case: Case, arms: Measured) -> None:
    kind = "CPU time" if case.threads == 1 else "time"
    print(f"\n{case}\n{'arm':<22} {kind + ' a step':>16} {'of the fastest plain':>21} {'memory':>10}")
    fastest = fastest_plain(arms)
    for name, arm in arms.items():
        if arm.missing is not None:
            print(f"{name:<22} not measured: {arm.missing}")
            continue
        assert arm.memory is not None
        ratio = statistics.median(ratios(arm, fastest))
        milliseconds = 1e3 * statistics.median(arm.rounds)
        print(f"{name:<22} {milliseconds:>13.1f} ms {ratio:>21.2f} {arm.memory / MILLION:>7.0f} MB")
    sys.stdout.flush()


def fastest_plain(arms: Measured) -> Arm:
    plain = [arm for name, arm in arms.items() if name in PLAIN and arm.missing is None]
    return min(plain, key=lambda arm: statistics.median(arm.rounds))


def ratios(one: Arm, other: Arm) -> list[float]:
    return [a / b for a, b in zip(one.rounds, other.rounds, strict=True)]


def ratio_bar(name: str, one: Arm, other: Arm, bar: float, unit: str) -> Bar:
    return median_bar(name, ratios(one, other), unit, bar)


def efficientnet_bars(case: Case, arms: Measured) -> list[Bar]:
    ours, fastest = arms["ours"], fastest_plain(arms)
    memory = (ours.memory or 0.0) / (fastest.memory or 1.0)
    return [
        ratio_bar(f"{case}: private", ours, fastest, 0.75, "of the fastest plain"),
        Bar(f"{case}: memory", memory, memory, memory, "of the fastest plain", 1.2),
        ratio_bar(f"{case}: price of DP", ours, arms["ours, DP off"], 1.2, "of the same kernels, DP off"),
        ratio_bar(f"{case}: torch alone", arms["ours, torch alone"], arms["plain"], 1.3, "of plain"),
    ]


def opacus_bars(case: Case, arms: Measured) -> list[Bar]:
    best_bar = 4.0 if case.network == "efficientnet_b0" else 1.8
    present = [arms[name] for name in OPACUS if name in arms and arms[name].missing is None]
    if not present:
        why = next((arms[name].missing for name in OPACUS if name in arms), None) or "left out"
        return [NotMeasured.because(f"{case}: Opacus' best", why, best_bar, "least")]
    best = min(present, key=lambda arm: statistics.median(arm.rounds))
    bars = [_at_least(f"{case}: Opacus' best ({best.kind})", best, arms["ours"], best_bar)]
    if case.network == "efficientnet_b0" and arms["opacus_hooks"].missing is None:
        bars.append(_at_least(f"{case}: Opacus' default", arms["opacus_hooks"], arms["ours"], 20.0))
    return bars


def jax_bars(case: Case, arms: Measured) -> list[Bar]:
    jax = arms["jax"]
    if jax.missing is not None:
        return [NotMeasured.because(f"{case}: JAX", jax.missing, 1.0, "least")]
    return [_at_least(f"{case}: JAX's vmap and jit", jax, arms["ours"], 1.0)]


def _at_least(name: str, peer: Arm, ours: Arm, bar: float) -> Bar:
    found = ratio_bar(name, peer, ours, bar, "times ours")
    return Bar(found.name, found.value, found.low, found.high, found.unit, bar, "least")


def case_bars(case: Case, arms: Measured) -> list[Bar]:
    if case.network == "efficientnet_b0":
        return efficientnet_bars(case, arms) + opacus_bars(case, arms)
    if case == MNIST:
        return jax_bars(case, arms)
    private = ratio_bar(f"{case}: private", arms["ours"], fastest_plain(arms), 1.4, "of the fastest plain")
    return [private, *opacus_bars(case, arms)]


def kinds(case: Case, eager: bool, every: bool) -> list[str]:
    plain = [name for name in PLAIN if not (eager and name == "plain, compiled")]
    theirs = [name for name in OPACUS if every or name not in SLOW.get(case.network, ())]
    return [*plain, *theirs, *OURS, *(["jax"] if case == MNIST else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one network, nothing compiled: about a minute")
    parser.add_argument("--all", action="store_true", help="every network and batch size: about an hour")
    parser.add_argument("--eager", action="store_true", help="nothing compiled")
    parser.add_argument("--only", metavar="NETWORK", help="one network alone")
    parser.add_argument("--jax", type=Path, default=HERE.parent / ".venv-jax/bin/python", help="a Python that has JAX")
    asked = parser.parse_args()
    every = asked.all or asked.only is not None
    cases = QUICK if asked.quick else [*EFFICIENTNET, *OTHERS, MNIST] if every else USUAL
    cases = [case for case in cases if asked.only in (None, case.network)]
    allowed = Allowance(asked.quick)
    keep_kernels(cases, asked.jax)
    bars: list[Bar] = []
    for number, case in enumerate(cases):
        share = 1.0 if every else 1 / (len(cases) - number)
        rounds = iter(range(12)) if every else allowed.rounds(LEAST_ROUNDS, MOST_ROUNDS, share)
        arms = measure(case, kinds(case, asked.quick or asked.eager, every), rounds, asked.jax)
        show(case, arms)
        bars += case_bars(case, arms)
    print()
    finish(bars)


if __name__ == "__main__":
    main()
