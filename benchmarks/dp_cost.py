"""Measure what privacy costs: compare a private step with the fastest plain one and with our kernels without privacy.

The private arm is what a user has: make_private, and batches from its loader, which vary in size. A varying size slows
plain PyTorch down, so plain PyTorch is also given batches of one size, and the faster counts. A few rounds decide
beforehand which layout to use, and whether to compile: arms that take 1.15 times as long as the fastest are left out.
Arms that take twice as long in a single step are left out at once, also for the network's other cases.

Compiling takes a minute or two a network: it is tried where it comes near the fastest, see COMPILED.
Memory is the peak after the same drawn batches, imports and all, relative to plain training in the fastest layout.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

from _arms import Arm, Case, Claim, end_all, keep_kernels, rotated, rounds, show, started
from _bars import Allowance, Bar, finish

PLAIN, CHANNELS_LAST, COMPILED_PLAIN = "plain", "plain, channels_last", "plain, compiled"
EFFICIENTNET = [Case("efficientnet_b0", samples, threads) for samples in (16, 64, 256) for threads in (1, 2)]
OTHERS = [
    Case("resnet18", 16, 2),
    Case("resnet50", 8, 2),
    Case("vit", 8, 2),
    Case("transformer", 32, 2),
    Case("mnist_cnn", 256, 2),
]
ALL = EFFICIENTNET + OTHERS
QUICK = [Case("efficientnet_b0", 16, 2)]
# On one thread, relative to eager training with channels_last: ViT 0.97, transformer 0.99, MNIST CNN 1.76; by earlier
# measurements EfficientNet-B0 1.08, after two minutes of compiling for each batch size.
COMPILED = ("transformer", "vit")
NO_MAPS = ("transformer",)  # layouts differ for maps alone

TRIAL_ROUNDS, CLEARLY_SLOWER, FAR_SLOWER = 3, 1.15, 2.0
PRIVATE_BARS = {"resnet18": 1.0, "resnet50": 1.0, "vit": 1.1, "transformer": 1.2, "mnist_cnn": 1.2}
EFFICIENTNET_BARS = {"AVX512": (0.70, 0.55), "AVX2": (0.70, 0.45)}  # at batch 16, and from 64 on
MEMORY_BAR = 1.1
LARGE_BATCH = 64


class Trial:
    """One case: its arms and its claims."""

    def __init__(self, case: Case, kinds: Sequence[str]) -> None:
        self.case = case
        self.plain = [Arm(kind, case, "fixed") for kind in kinds]
        self.ours, self.dp_off = Arm("ours", case), Arm("ours, DP off", case)
        self.present = [arm for arm in started([*self.plain, self.ours, self.dp_off]) if arm in self.plain]
        least = min(arm.first or math.inf for arm in self.present)
        self.far_slower = [arm for arm in self.present if (arm.first or math.inf) > FAR_SLOWER * least]
        self.present = [arm for arm in self.present if arm not in self.far_slower]

    def layout(self) -> None:
        """Keep the plain arms that may be the fastest, and give the fastest of them drawn batches as well."""
        for number in range(TRIAL_ROUNDS):
            for arm in rotated(self.present, number):
                arm.turn()
        fastest = self.fastest_plain()
        self.present = [arm for arm in self.present if arm.seconds < CLEARLY_SLOWER * fastest.seconds]
        self.drawn = Arm(self._fastest_eager().kind, self.case)
        self.plain.append(self.drawn)
        self.present += started([self.drawn])

    def _fastest_eager(self) -> Arm:
        """Return the fastest arm without a compiler, which would compile again for every size. An arm that dropped out
        may still be the fastest."""
        eager = [arm for arm in self.plain if arm.kind != COMPILED_PLAIN and arm.first is not None]
        return min(eager, key=lambda arm: arm.seconds if arm.rounds else arm.first or math.inf)

    def fastest_plain(self) -> Arm:
        return min(self.present, key=lambda arm: arm.seconds)

    def measure(self, end: float) -> None:
        self.layout()
        rounds([*self.present, self.ours, self.dp_off], end, self.claims)
        end_all([*self.plain, self.ours, self.dp_off])

    def claims(self) -> list[Claim]:
        case = self.case
        return [
            Claim(f"{case}: private", self.ours, self.fastest_plain(), "of the fastest plain", private_bar(case)),
            Claim(f"{case}: price of DP", self.ours, self.dp_off, "of the same kernels, DP off", price_bar(case)),
        ]

    def bars(self) -> list[Bar]:
        found = [claim.as_bar() for claim in self.claims()]
        if self.case.samples >= LARGE_BATCH:
            share = (self.ours.memory or 0) / (self.drawn.memory or 1)
            found.append(Bar(f"{self.case}: memory", share, share, share, "of plain on the same batches", MEMORY_BAR))
        return found

    def show(self) -> None:
        show(self.case, [*self.plain, self.dp_off, self.ours], self.fastest_plain(), "the fastest plain")


class PlainKinds:
    """Return the arms to try on a network, as long as they aren't far slower."""

    def __init__(self, compiled: bool) -> None:
        self._compiled = compiled
        self._out: set[tuple[str, str]] = set()

    def of(self, network: str) -> list[str]:
        kinds = [PLAIN] if network in NO_MAPS else [PLAIN, CHANNELS_LAST]
        if self._compiled and network in COMPILED:
            kinds.append(COMPILED_PLAIN)
        return [kind for kind in kinds if (network, kind) not in self._out]

    def leave_out(self, network: str, arms: Sequence[Arm]) -> None:
        self._out |= {(network, arm.kind) for arm in arms}


def private_bar(case: Case) -> float:
    if case.network != "efficientnet_b0":
        return PRIVATE_BARS[case.network]
    import torch

    small, large = EFFICIENTNET_BARS["AVX512" if "AVX512" in torch.backends.cpu.get_cpu_capability() else "AVX2"]
    return large if case.samples >= LARGE_BATCH else small


def price_bar(case: Case) -> float:
    return 1.15 if case.samples >= LARGE_BATCH else 1.25


def weight(case: Case) -> float:
    """Return the weight of the case's share of the time: steps of a second and more need more."""
    return 2.0 if case.network == "resnet50" or (case.samples, case.threads) == (256, 1) else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one network, nothing compiled: about a minute")
    networks = sorted({case.network for case in ALL})
    parser.add_argument("--only", choices=networks, help="one network alone")
    asked = parser.parse_args()
    cases = QUICK if asked.quick else [case for case in ALL if asked.only in (None, case.network)]
    allowed = Allowance(asked.quick)
    keep_kernels(cases)
    bars: list[Bar] = []
    kinds = PlainKinds(compiled=not asked.quick)
    for number, case in enumerate(cases):
        share = weight(case) / sum(map(weight, cases[number:]))
        end = time.monotonic() + share * allowed.seconds_left
        trial = Trial(case, kinds.of(case.network))
        kinds.leave_out(case.network, trial.far_slower)
        trial.measure(end)
        trial.show()
        bars += trial.bars()
    print()
    finish(bars)


if __name__ == "__main__":
    main()
