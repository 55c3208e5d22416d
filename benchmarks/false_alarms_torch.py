"""Measure how often `rigdyno duel` calls a torch step of one thread different from itself, in whole duels.

Each takes six pairs of processes and more, so that thirty of them are what ten minutes have room for: without a single
false alarm they show that there is one in ten at most.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from _bars import ONE_SIDED, Allowance, finish, share_bar

from rigdyno import api
from rigdyno.features.duel.plan import DuelRequest
from rigdyno.plan.request import Request
from rigdyno.runner.orchestrate import create_run

DUEL_SECONDS = 20.0
TORCH_STEP = """
import torch
x = torch.randn(192, 192)
def step():
    for _ in range(4):
        torch.mm(x, x)
"""


def answer(number: int, folder: Path) -> str:
    """Run a complete duel: real workers, run folders, the stored turns."""
    file = folder / "steps.py"
    file.write_text(TORCH_STEP)
    arm = Request(target=f"{file}:step", seed=number, threads=1)
    head = api.prepare_duel(DuelRequest(a=arm, b=arm, budget_seconds=DUEL_SECONDS))
    duel = api.carry_out(create_run(head, folder / "runs"), head).duel
    assert duel is not None
    print(f"duel {number + 1}: {duel.comparison.sentence}", flush=True)
    return duel.comparison.answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two or three duels: the bar is then on what was seen")
    quick = parser.parse_args().quick
    answers = []
    for number in Allowance(quick).rounds(2, 60):
        with tempfile.TemporaryDirectory() as folder:
            answers.append(answer(number, Path(folder)))
    print(f"a torch step against itself: {dict(Counter(answers))}")
    wrong = [each in ("faster", "slower") for each in answers]
    finish([share_bar("torch: wrongly 'faster' or 'slower'", wrong, 0.10, "most", ONE_SIDED, quick)])


if __name__ == "__main__":
    main()
