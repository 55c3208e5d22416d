"""A private run that is killed and restarted with its ledger: the epsilon spent before stays counted. All updates of
Rigdyno's engine share the code; dp_expanded starts fastest."""

import itertools
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

dp_accounting = pytest.importorskip("dp_accounting")

from rigdyno.contracts import CannotRun, Samples, Training, WorkerPlace  # noqa: E402
from rigdyno.engines.dp import Spent, epsilon  # noqa: E402
from rigdyno.updates.dp_expanded import DpExpanded  # noqa: E402
from rigdyno.updates.dp_fast import DpFast  # noqa: E402

IS_KILLED = """
import os, signal, sys
import test_update_ledger

test_update_ledger.train(sys.argv[1], steps=5)
os.kill(os.getpid(), signal.SIGKILL)
"""


def train(path, steps):
    """Train for some steps with a ledger, and return the epsilon that is reported then."""
    inputs, targets = torch.randn(200, 8), torch.randint(3, (200,))
    training = Training(
        model=nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batches=iter(()),
        samples=Samples(200, 20, lambda chosen: (inputs[chosen], targets[chosen])),
    )
    step = DpExpanded(ledger=str(path)).prepare(training, WorkerPlace(device="cpu"), None)
    for batch in itertools.islice(training.batches, steps):
        step(*batch)
    return training.epsilon()


def test_steps_of_a_killed_run_are_counted_by_the_next_one(tmp_path):
    path = tmp_path / "ledger"
    killed = subprocess.run(
        [sys.executable, "-c", IS_KILLED, str(path)], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    reported = train(path, steps=3)
    both, alone = (epsilon([Spent(1.0, 0.1, steps)], 1e-5).epsilon for steps in (8, 3))
    assert reported >= both > alone  # steps that were written ahead stay counted after a kill
    histories = json.loads(path.read_text())["histories"].values()
    assert sum(run["steps"] for history in histories for run in history) >= 8


def test_a_file_that_is_not_a_ledger_is_refused_in_one_line(tmp_path):
    from test_update_private import training

    path = tmp_path / "ledger"
    path.write_text("not a ledger")
    with pytest.raises(CannotRun) as refusal:
        DpFast(ledger=str(path)).prepare(training(), WorkerPlace(device="cpu"), None)
    assert "\n" not in str(refusal.value)
