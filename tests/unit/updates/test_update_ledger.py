"""A private run that is killed and begun again with its ledger: what it spent before stays counted. All updates of our
engine share the code; this one starts quickly."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

dp_accounting = pytest.importorskip("dp_accounting")

from rigdyno.contracts import CannotRun, Place  # noqa: E402
from rigdyno.engines.dp import Ledger, Spent, epsilon  # noqa: E402
from rigdyno.updates.dp_fast import DpFast  # noqa: E402

WORKER = """
import itertools, os, signal, sys
import torch
from torch import nn
from rigdyno.contracts import Place, Samples, Training
from rigdyno.updates.dp_expanded import DpExpanded

inputs, targets = torch.randn(200, 8), torch.randint(3, (200,))
training = Training(
    model=nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)),
    loss=nn.functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    batches=iter(()),
    samples=Samples(200, 20, lambda chosen: (inputs[chosen], targets[chosen])),
)
step = DpExpanded(ledger=sys.argv[1]).prepare(training, Place(device="cpu"), None)
for batch in itertools.islice(training.batches, {steps}):
    step(*batch)
if {killed}:
    os.kill(os.getpid(), signal.SIGKILL)
print(training.epsilon())
"""


def trained(path, *, steps, killed):
    code = textwrap.dedent(WORKER).format(steps=steps, killed=killed)
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_what_a_killed_run_spent_is_counted_by_the_one_after_it(tmp_path):
    path = tmp_path / "ledger"
    first = trained(path, steps=5, killed=True)
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = trained(path, steps=3, killed=False)
    assert second.returncode == 0, second.stderr
    told = float(second.stdout)
    both, alone = (epsilon([Spent(1.0, 0.1, steps)], 1e-5).epsilon for steps in (8, 3))
    assert told >= both > alone  # a kill leaves the steps that were written ahead counted
    with Ledger.open(path) as ledger:
        assert sum(run.steps for run in ledger.spent) >= 8


def test_a_file_that_is_no_ledger_is_refused_in_a_line(tmp_path):
    from test_update_private import training

    path = tmp_path / "ledger"
    path.write_text("not a ledger")
    with pytest.raises(CannotRun) as refusal:
        DpFast(ledger=str(path)).prepare(training(), Place(device="cpu"), None)
    assert "\n" not in str(refusal.value)
