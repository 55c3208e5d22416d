"""Tests of how the end of a sampler is reported."""

from __future__ import annotations

import signal
import sys

import pytest

from rigdyno.contracts import Exit
from rigdyno.launchers.nodes import local
from rigdyno.launchers.nodes.local import NodeSampler, NodeShare, make_folders
from rigdyno.schema.spec import Cell, RunSpec, assign_participants


@pytest.fixture
def sampler(tmp_path, monkeypatch):
    """Return a function that starts a sampler with the given code."""

    def begin(code):
        monkeypatch.setattr(local, "child_command", lambda *arguments: [sys.executable, "-c", code])
        part = NodeShare(
            Cell(name="x", spec=RunSpec(workload="w"), participants=assign_participants(1, 1, "cpu")), tmp_path
        )
        make_folders(part)
        return NodeSampler(part)

    return begin


def test_a_sampler_stopped_while_starting_has_not_died(sampler, monkeypatch):
    monkeypatch.setattr("rigdyno.launchers.nodes.local.SAMPLER_START_SECONDS", 0.1)
    still_starting = sampler("import time; time.sleep(60)")
    assert still_starting.stop() == [Exit(0, "node0")]
    assert still_starting.stop() == [Exit(0, "node0")]  # the same if it is stopped again


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_sampler_that_ended_before_its_stop_has_died(sampler, number):
    dead = sampler(f"import os; os.kill(os.getpid(), {int(number)})")
    assert dead._child.wait(60)
    assert dead.stop() == [Exit(-number, "node0")]
