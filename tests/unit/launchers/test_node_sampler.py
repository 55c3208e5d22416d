"""How the end of a sampler is told."""

from __future__ import annotations

import signal
import sys

import pytest

from rigdyno.contracts import Exit
from rigdyno.launchers import _node
from rigdyno.launchers._node import NodeSampler, Part, make_folders
from rigdyno.schema.participant import laid_out
from rigdyno.schema.spec import Cell, RunSpec


@pytest.fixture
def sampler(tmp_path, monkeypatch):
    """With this code instead of the sampler's own."""

    def begin(code):
        monkeypatch.setattr(_node, "child_command", lambda *arguments: [sys.executable, "-c", code])
        part = Part(Cell(name="x", spec=RunSpec(workload="w"), participants=laid_out(1, 1, "cpu")), tmp_path)
        make_folders(part)
        return NodeSampler(part)

    return begin


def test_one_that_is_stopped_while_it_still_starts_has_not_died(sampler):
    still_starting = sampler("import time; time.sleep(60)")
    assert still_starting.stop() == [Exit(0, "node0")]
    assert still_starting.stop() == [Exit(0, "node0")]  # however often it is asked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_ended_before_it_was_told_to_has_died(sampler, number):
    dead = sampler(f"import os; os.kill(os.getpid(), {int(number)})")
    assert dead._child.wait(60)
    assert dead.stop() == [Exit(-number, "node0")]
