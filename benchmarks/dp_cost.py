"""What privacy costs: a private step beside the fastest plain one and beside our own kernels without privacy.

The private arm is what a user has: make_private, and batches from its loader, which vary in size. A varying size slows
plain PyTorch down, so plain PyTorch is also given batches of one size, and the faster counts. In which layout, and
whether compiled, a few rounds decide beforehand: who takes 1.15 times as long as the fastest there is out.

Compiling takes up to minutes: it is tried for the networks where it can win, see COMPILED.
Memory is the peak after the same drawn batches, imports and all, relative to plain training in the fastest layout.
"""

from __future__ import annotations

import argparse
import time

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
COMPILED = ("transformer", "vit", "mnist_cnn")
NO_MAPS = ("transformer",)  # layouts differ for maps alone

TRIAL_ROUNDS, CLEARLY_SLOWER = 3, 1.15
PRIVATE_BARS = {"resnet18": 1.0, "resnet50": 1.0, "vit": 1.1, "transformer": 1.2, "mnist_cnn": 1.2}
EFFICIENTNET_BARS = {"AVX512": (0.70, 0.55), "AVX2": (0.70, 0.45)}  # at batch 16, and from 64 on
MEMORY_BAR = 1.1
LARGE_BATCH = 64


class Trial:
    """One case: who takes part, and what is claimed."""

    def __init__(self, case: Case, compiled: bool) -> None:
        self.case = case
        self.ours, self.dp_off = Arm("ours", case), Arm("ours, DP off", case)
        self.plain = [Arm(kind, case, "fixed") for kind in plain_kinds(case, compiled)]
        self.present = started(self.plain)
        started([self.ours, self.dp_off])

    def layout(self) -> None:
        """Leaves the plain arms that may be the fastest, and gives the fastest of them drawn batches as well."""
        for number in range(TRIAL_ROUNDS):
            for arm in rotated(self.present, number):
                arm.turn()
        fastest = self.fastest_plain()
        self.present = [arm for arm in self.present if arm.seconds < CLEARLY_SLOWER * fastest.seconds]
        eager = min((arm for arm in self.present if arm.kind != COMPILED_PLAIN), key=lambda arm: arm.seconds)
        self.drawn = Arm(eager.kind, self.case)
        self.plain.append(self.drawn)
        self.present += started([self.drawn])

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


def plain_kinds(case: Case, compiled: bool) -> list[str]:
    layouts = [PLAIN] if case.network in NO_MAPS else [PLAIN, CHANNELS_LAST]
    return [*layouts, COMPILED_PLAIN] if compiled and case.network in COMPILED else layouts


def private_bar(case: Case) -> float:
    if case.network != "efficientnet_b0":
        return PRIVATE_BARS[case.network]
    import torch

    small, large = EFFICIENTNET_BARS["AVX512" if "AVX512" in torch.backends.cpu.get_cpu_capability() else "AVX2"]
    return large if case.samples >= LARGE_BATCH else small


def price_bar(case: Case) -> float:
    return 1.15 if case.samples >= LARGE_BATCH else 1.25


def weight(case: Case) -> float:
    """Of its share of the time: steps of a second and more need it."""
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
    for number, case in enumerate(cases):
        share = weight(case) / sum(map(weight, cases[number:]))
        end = time.monotonic() + share * allowed.seconds_left
        trial = Trial(case, compiled=not asked.quick)
        trial.measure(end)
        trial.show()
        bars += trial.bars()
    print()
    finish(bars)


if __name__ == "__main__":
    main()
