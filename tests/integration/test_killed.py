"""Test runs that are killed: no process stays, no finished cell is lost, and the rest can be resumed."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

import rigdyno as package
from driving import (
    PATIENCE_SECONDS,
    cell_folders,
    ended,
    interrupt,
    is_alive,
    none_left,
    only_run,
    pid_of,
    records,
    rigdyno,
    started,
    steps_began,
    until,
)
from rigdyno.schema.record import Completed, Failed
from rigdyno.schema.samples import read_rows

STEP = """
import time
from pathlib import Path

with Path("starts").open("a") as file:
    file.write("x")
hold = Path(f"hold{len(Path('starts').read_text())}")
calls = 0


def step(part=0):
    global calls
    calls += 1
    # The process of that number keeps running, slowly, until the test releases it.
    time.sleep(0.6 if calls > 400 and hold.exists() else 0.001)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(STEP)
    return tmp_path


def test_resume_after_kill_9_completes_the_record(folder):
    (folder / "hold2").touch()
    process = started("run", "train.py:step", "--repeat", "3", "--budget", "10m", "--steps", "500", cwd=folder)
    until(lambda: steps_began(folder / "runs", cell=1), "the second process was stepping")
    first, second = cell_folders(folder / "runs")
    process.kill()
    ended(process)
    none_left(second)
    assert not (second / "record.json").exists()
    run = only_run(folder)
    unfinished = rigdyno("report", cwd=folder)
    assert unfinished.returncode == 0
    assert "2 of 3 cells are not finished" in unfinished.stdout
    before = {path: path.stat().st_mtime_ns for path in first.iterdir()}
    (folder / "hold2").unlink()
    resumed = rigdyno("run", "--resume", str(run.path), cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert {path: path.stat().st_mtime_ns for path in first.iterdir()} == before
    assert [line.split()[0] for line in resumed.stderr.splitlines()] == ["[2/3]", "[3/3]"]
    assert [(type(record.outcome), record.repeat) for record in records(run)] == [
        (Completed, 1), (Completed, 2), (Completed, 3),
    ]  # fmt: skip
    again = rigdyno("run", "--resume", str(run.path), cwd=folder)
    assert again.returncode == 0
    assert again.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_workers_and_names_the_resume_command(folder, number):
    process = started("run", "train.py:step", "--budget", "10m", cwd=folder)
    until(lambda: steps_began(folder / "runs"), "the worker was stepping")
    interrupt(process, number)
    code, _, err = ended(process)
    (cell,) = cell_folders(folder / "runs")
    none_left(cell)
    assert code == 130
    command = f"rigdyno run --resume runs/{only_run(folder).name}"
    assert err == f"rigdyno: interrupted; 0 of 1 cells are kept. Go on with: {command}\n"


# A torch built only for CPUs isn't asked for devices.
FOR_CARDS = """
from importlib import metadata

version = metadata.version
metadata.version = lambda name: version(name).removesuffix("+cpu")
"""


def test_an_interrupt_while_planning_leaves_nothing(folder):
    (folder / "sitecustomize.py").write_text(FOR_CARDS)
    process = started("run", "train.py:step", "--budget", "10m", cwd=folder, PYTHONPATH=str(folder))
    until(lambda: psutil.Process(process.pid).children(), "it was asking the framework for its devices")
    (child,) = psutil.Process(process.pid).children()
    interrupt(process, signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert err.strip() == "rigdyno: interrupted"
    assert not (folder / "runs").exists()
    until(lambda: not is_alive(child.pid), "its child was gone")


def test_a_killed_worker_or_sampler_loses_only_its_own_data(folder):
    for number in (1, 2):
        (folder / f"hold{number}").touch()
    process = started("run", "train.py:step", "--sweep", "part=1,2", "--budget", "10m", "--steps", "500", cwd=folder)
    until(lambda: steps_began(folder / "runs"), "the first worker was stepping")
    (first,) = cell_folders(folder / "runs")
    os.kill(pid_of(first, "rank0"), signal.SIGKILL)
    until(lambda: steps_began(folder / "runs", cell=1), "the second worker was stepping")
    os.kill(pid_of(cell_folders(folder / "runs")[1], "node0"), signal.SIGKILL)
    (folder / "hold2").unlink()
    code, out, err = ended(process)
    assert code == 1, err
    one, two = records(only_run(folder))
    assert one.outcome == Failed(kind="signal", phase="measure", message="SIGKILL: killed from outside")
    assert one.exit_codes["rank0"] == -signal.SIGKILL
    _, rows = read_rows(first / "rank0" / "steps.rows")
    assert len(rows) > 100  # rows written before are kept
    assert isinstance(two.outcome, Completed)
    assert two.exit_codes["node0"] == -signal.SIGKILL
    assert "dead_sampler: the sampler died (exit code -9)" in " ".join(out.split())
    first_found, second_found = package.load(only_run(folder).path).measurements
    assert first_found.status == "FAILED"
    assert second_found.status in ("SUSPECT", "INVALID")


@pytest.mark.parametrize("module", ["worker", "sampler"])
def test_a_child_ends_if_its_parent_died_during_startup(module, tmp_path):
    somebody_else = subprocess.Popen(["true"])
    somebody_else.wait()
    child = subprocess.run(
        [sys.executable, "-m", f"rigdyno.runner.{module}", str(tmp_path), str(somebody_else.pid), "rank0"],
        capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert child.returncode == 1
    assert list(tmp_path.iterdir()) == []
    assert not is_alive(somebody_else.pid)
