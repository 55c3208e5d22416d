"""Compare a private step with those of Opacus, in each of its modes, and of JAX, which compiles the whole step.

Opacus gets each network as its own users would give it: activations that work in place replaced, and what its validator
knows how to replace. Each peer is compared with ours alone, as some take many gigabytes. Which way of Opacus is best
on a network is found by one step of each; on EfficientNet-B0 there are bars for its default and for functorch.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from _arms import HERE, Arm, Case, Claim, keep_kernels, rounds, show, started
from _bars import Allowance, Bar, NotMeasured, finish

OPACUS = ("opacus_functorch", "opacus_hooks", "opacus_ew", "opacus_ghost")
EFFICIENTNET, MNIST = Case("efficientnet_b0", 64, 2), Case("mnist_cnn", 256, 2)
CASES = [
    MNIST,
    Case("transformer", 32, 2),
    Case("vit", 8, 2),
    Case("resnet18", 16, 2),
    EFFICIENTNET,
    Case("resnet50", 8, 2),
]


def surveyed(case: Case, kind: str) -> Arm:
    """Time one warm step of an arm that runs alone, so that the next one has the memory."""
    arm = Arm(kind, case)
    started([arm])
    arm.end()
    return arm


def duel(claimed: str, ours: Arm, peer: Arm, bar: float, end: float) -> Bar:
    """Compare one peer with ours, then end it; ours stays for the next peer."""
    name = f"{ours.case}: {claimed}"
    if not started([peer]):
        return NotMeasured.because(name, peer.missing or "", bar, "least")
    ours.rounds.clear()
    claim = Claim(name, peer, ours, "times ours", bar, "least")
    rounds([ours, peer], end, lambda: [claim])
    peer.end()
    show(ours.case, [ours, peer], ours, "ours")
    return claim.as_bar()


def opponents(case: Case, jax: Path) -> Iterator[tuple[str, Arm, float]]:
    """Yield the claims: a name, the peer, and how many times as long as ours it must take."""
    if case == MNIST:
        yield "JAX's vmap and jit", Arm("jax", case, "fixed", jax if jax.exists() else sys.executable), 1.0
    if case == EFFICIENTNET:
        yield "Opacus' hooks", Arm("opacus_hooks", case), 40.0
        yield "Opacus' functorch", Arm("opacus_functorch", case), 6.0
        return
    survey = [surveyed(case, kind) for kind in OPACUS]
    for arm in survey:
        said = f"not measured: {arm.missing}" if arm.first is None else f"{1e3 * arm.first:.1f} ms in one step"
        print(f"{case}, {arm.kind}: {said}")
    best = min(survey, key=lambda arm: arm.first or math.inf)
    yield f"Opacus' best ({best.kind})", Arm(best.kind, case), 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one network: about a minute")
    parser.add_argument("--only", choices=sorted({case.network for case in CASES}), help="one network alone")
    parser.add_argument("--jax", type=Path, default=HERE.parent / ".venv-jax/bin/python", help="a Python that has JAX")
    asked = parser.parse_args()
    cases = [MNIST] if asked.quick else [case for case in CASES if asked.only in (None, case.network)]
    allowed = Allowance(asked.quick)
    keep_kernels(cases)
    bars: list[Bar] = []
    for number, case in enumerate(cases):
        end = time.monotonic() + allowed.seconds_left / (len(cases) - number)
        ours = Arm("ours", case)
        started([ours])
        bars += [duel(claimed, ours, peer, bar, end) for claimed, peer, bar in opponents(case, asked.jax)]
        ours.end()
    print()
    finish(bars)


if __name__ == "__main__":
    main()
