"""Test a user's step that works, and steps that fail in every way."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from driving import environment, only_run, records, rigdyno
from rigdyno import cli
from rigdyno.schema.record import Completed, Failed

STEPS = """
import os, resource, signal, sys, time

def step():
    time.sleep(0.002)
    return 4

def misbehave(how, width=1):
    if how == "raise":
        raise ValueError("the batch\\nis empty")
    if how == "illegal":
        os.kill(os.getpid(), signal.SIGILL)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "leave":
        sys.exit(3)
    if how == "vanish":
        os._exit(5)
    if how == "greed":
        resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
        bytearray(2**31)
    time.sleep(0.002)
    return width

def never():
    open("entered", "w").close()
    while True:
        time.sleep(0.1)
"""

ENDINGS = {
    "raise": ("exception", "ValueError: the batch is empty"),
    "illegal": ("signal", "SIGILL: the processor has no such instruction; `rigdyno doctor` looks for the cause"),
    "kill": ("signal", "SIGKILL: killed from outside"),
    "leave": ("exception", "SystemExit: 3"),
    "vanish": ("exit", "left no report, exit code 5"),
    "greed": ("out_of_memory", "MemoryError"),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(STEPS)
    return tmp_path


def test_a_step_is_measured_in_its_unit(folder):
    answer = rigdyno("run", "train.py:step", "--set", "unit=image", "--steps", "50", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    assert "image/s" in answer.stdout
    (record,) = records(only_run(folder))
    assert record.facts.unit == "image"
    assert record.spec.workload == "train.py:step"


def test_every_failure_is_classified_and_the_next_cell_runs(folder):
    sweep = ",".join([*ENDINGS, "behave"])
    command = ("run", "train.py:misbehave", "--sweep", f"how={sweep}", "--set", "width=7", "--steps", "50")
    answer = rigdyno(*command, cwd=folder)
    assert answer.returncode == 1, answer.stderr
    outcomes = {record.spec.options["how"]: record.outcome for record in records(only_run(folder))}
    assert isinstance(outcomes.pop("behave"), Completed)
    assert {how: (outcome.kind, outcome.message) for how, outcome in outcomes.items()} == ENDINGS
    shown = " ".join(answer.stdout.split())
    for how, (kind, message) in ENDINGS.items():
        assert f"how {how}: {kind.replace('_', ' ')} while in " in shown
        assert f": {message} (log: " in shown
    assert shown.count("FAILED") == len(ENDINGS)
    stored = rigdyno("report", cwd=folder)
    assert stored.returncode == 0
    assert stored.stdout.count("FAILED") == len(ENDINGS)


def test_a_step_that_never_ends_is_stopped(folder, monkeypatch, capsys, time_flies_after):
    monkeypatch.chdir(folder)
    time_flies_after(folder / "entered")
    assert cli.main(["run", "train.py:never"]) == 1
    assert re.search(r"no end after \d min", capsys.readouterr().out)
    (record,) = records(only_run(folder))
    assert isinstance(record.outcome, Failed)
    assert record.outcome.kind == "timeout"
    assert record.exit_codes["rank0"] in (-signal.SIGTERM, -signal.SIGKILL)


def test_a_wrong_argument_suggests_the_right_one(folder):
    answer = rigdyno("run", "train.py:misbehave", "--set", "hw=raise", cwd=folder)
    assert answer.returncode == 2
    assert "no argument of misbehave named 'hw'; did you mean 'how'?" in answer.stderr
    assert not (folder / "runs").exists()


def test_files_of_the_folder_do_not_shadow_modules(folder):
    """The user's step may import files of the folder; rigdyno must not."""
    (folder / "statistics.py").write_text("raise RuntimeError('not this one')")
    command = Path(sys.executable).with_name("rigdyno")
    answer = subprocess.run(
        [command, "run", "train.py:step", "--steps", "50"],
        cwd=folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
