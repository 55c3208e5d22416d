"""Test that the verdict names faults injected into real runs. Other load may add reasons: no run must be VALID."""

import os
import signal
from pathlib import Path

import pytest

import rigdyno as package
from driving import cell_folders, ended, only_run, pid_of, rigdyno, started, steps_began, until
from rigdyno.schema.samples import WARM_UP, read_rows

STEP = """
import time
from pathlib import Path

calls = 0


def step():
    global calls
    calls += 1
    # Keep running, slowly, until the test releases it.
    time.sleep(0.6 if calls > 400 and Path("hold").exists() else 0.002)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(STEP)
    return tmp_path


def read_channel(cell, channel):
    _, rows = read_rows(cell / "node0" / "telemetry.rows")
    return list(rows[channel])


def count_measured_steps(cell):
    _, rows = read_rows(cell / "rank0" / "steps.rows")
    return int((rows["flags"] & WARM_UP == 0).sum())


def find_reasons(folder):
    [measurement] = package.load(only_run(folder).path).measurements
    return {reason.code: reason.sentence for reason in measurement.validity.reasons}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the state of a process is read from /proc")
def test_a_worker_that_was_stopped_is_reported(folder):
    (folder / "hold").touch()
    process = started("run", "train.py:step", "--budget", "30s", "--steps", "600", cwd=folder)
    until(lambda: steps_began(folder / "runs"), "the worker was stepping")
    (cell,) = cell_folders(folder / "runs")
    until(lambda: count_measured_steps(cell) >= 5, "its warm-up was over")
    worker = pid_of(cell, "rank0")
    os.kill(worker, signal.SIGSTOP)
    try:
        until(lambda: read_channel(cell, "worker_stopped_share").count(1.0) >= 5, "the sampler had seen it")
    finally:
        os.kill(worker, signal.SIGCONT)
        (folder / "hold").unlink()
    code, _, err = ended(process)
    assert code == 0, err
    assert "the worker was stopped for about" in find_reasons(folder)["stopped"]
    assert " stopped" in rigdyno("show", cwd=folder).stdout


def test_a_clock_that_jumps_is_reported(folder):
    """A module that Python loads at its start moves the clock of the worker alone: an hour every 200 steps."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'rigdyno.runner.worker' in sys.orig_argv:\n"
        "    import time\n"
        "    real, time.calls = time.time_ns, 0\n"
        "    time.time_ns = lambda: real() + time.calls // 200 * 3600 * 10**9\n"
    )
    (folder / "train.py").write_text(STEP + "    time.calls += 1\n")
    answer = rigdyno("run", "train.py:step", "--steps", "1000", cwd=folder, PYTHONPATH=str(folder))
    assert answer.returncode == 0, answer.stderr
    assert "doesn't agree with the wall clock" in find_reasons(folder)["clock_jumped"]
