"""Test duels with real processes: interrupted and resumed, killed, stuck, of functions and of environments."""

import json
import math
import os
import signal
import site
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest

import rigdyno as package
from driving import (
    cell_folders,
    ended,
    interrupt,
    is_alive,
    none_left,
    only_run,
    pid_of,
    records,
    rigdyno,
    said_in_one_line,
    started,
    until,
)
from rigdyno import cli
from rigdyno.base.clock import SystemClock
from rigdyno.features.duel import plan as plan_duel
from rigdyno.runner import orchestrate
from rigdyno.runner.pairs.referee import LEAST_ROUNDS
from rigdyno.schema.record import Completed, Failed
from rigdyno.schema.samples import WARM_UP, read_rows
from rigdyno.store.folder import RunFolder

SCHEMA = Path(__file__).parents[2] / "docs" / "view.schema.json"
STEPS = """
import os, sys, time

with open("prefixes.txt", "a") as file:
    file.write(sys.prefix + "\\n")
with open("prefixes.txt") as file:
    number = len(file.readlines())  # of this process, counted from 1

def spin(rounds):
    while number > 2 and os.path.exists("hold"):
        time.sleep(0.05)  # the second pair waits until the test releases it
    for _ in range(rounds):
        pass
    return 2

def old(rounds=2000):
    return spin(rounds)

def new(rounds=4000):
    return spin(rounds)

def never():
    open("entered", "w").close()
    while True:
        time.sleep(0.1)
"""
SHORT = ("--budget", "20s")  # room for four pairs; on a busy machine it ends after three or two


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(STEPS)
    return tmp_path


@pytest.fixture
def one_pair(monkeypatch):
    """Return options for a single pair, which decides nothing but takes a quarter of the time."""
    monkeypatch.setattr(plan_duel, "FEWEST_PAIRS", 1)
    return ("--budget", "6s")


def pair_folder(where, number, arm):
    (run,) = (where / "runs").glob("[!.]*.*")
    return run / "cells" / f"pair{number:03d}-{arm}"


def arm_exists(where, number, arm, name):
    return any((where / "runs").glob(f"[!.]*.*/cells/pair{number:03d}-{arm}/{name}"))


@dataclass
class ResumedDuel:
    """A duel that was interrupted in its second pair and then resumed."""

    folder: Path
    interrupted: tuple[int, str, str]
    kept: dict[Path, int]
    left: list[int]
    resumed: subprocess.CompletedProcess[str]

    @property
    def run(self) -> RunFolder:
        return only_run(self.folder)

    @property
    def pairs(self) -> list[int]:
        return sorted({record.pair for record in records(self.run)})


@pytest.fixture(scope="module")
def resumed_duel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("duel")
    (folder / "train.py").write_text(STEPS)
    (folder / "hold").touch()
    process = started("duel", "train.py:old", "train.py:new", "--set", "unit=image", *SHORT, cwd=folder)
    until(lambda: arm_exists(folder, 2, "b", "rank0/pid"), "the second pair was starting")
    interrupt(process, signal.SIGINT)
    interrupted = ended(process)
    (folder / "hold").unlink()
    for cell in cell_folders(folder / "runs"):
        none_left(cell)
    pids = [int(path.read_text()) for path in (folder / "runs").rglob("pid")]
    kept = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("pair001-*/*")}
    resumed = rigdyno("run", "--resume", f"runs/{only_run(folder).name}", cwd=folder)
    return ResumedDuel(folder, interrupted, kept, [pid for pid in pids if is_alive(pid)], resumed)


def compute_log_ratio(folder, number):
    """Compute the median of the log ratios, averaged over two rounds at a time. Its value depends on the machine."""
    a, b = (read_rows(pair_folder(folder, number, arm) / "rank0" / "steps.rows")[1] for arm in "ab")
    seconds = [(rows["end_ns"] - rows["start_ns"])[rows["flags"] == 0] for rows in (a, b)]
    rounds = np.log(seconds[0] / seconds[1])
    return np.median(rounds[: len(rounds) // 2 * 2].reshape(-1, 2).mean(axis=1))


class TestInterruptedAndResumed:
    def test_ctrl_c_names_the_resume_command_and_leaves_no_process(self, resumed_duel):
        code, out, err = resumed_duel.interrupted
        assert code == 130
        assert out.splitlines()[-2:] == ["  A: train.py:old", "  B: train.py:new"]
        command = f"rigdyno run --resume runs/{resumed_duel.run.name}"
        assert err.splitlines()[-1] == f"rigdyno: interrupted; 2 of 8 cells are kept. Go on with: {command}"
        assert resumed_duel.left == []

    def test_resume_keeps_finished_pairs_and_runs_the_rest(self, resumed_duel):
        assert resumed_duel.resumed.returncode == 0, resumed_duel.resumed.stderr
        assert resumed_duel.pairs in ([1, 2], [1, 2, 3], [1, 2, 3, 4])
        lines = [line.split(" done in ")[0] for line in resumed_duel.resumed.stderr.splitlines()]
        assert lines == [f"[pair {number}]" for number in resumed_duel.pairs[1:]]
        assert {path: path.stat().st_mtime_ns for path in resumed_duel.kept} == resumed_duel.kept
        arms = [(record.pair, record.arm, type(record.outcome)) for record in records(resumed_duel.run)]
        assert arms == [(number, arm, Completed) for number in resumed_duel.pairs for arm in "ab"]

    def test_the_ratio_matches_the_stored_steps(self, resumed_duel):
        shown = " ".join(resumed_duel.resumed.stdout.split())
        assert "Duel: train.py:old against train.py:new" in shown
        compared = package.load(resumed_duel.run.path).duel.comparison
        assert compared.sentence in shown
        logs = [compute_log_ratio(resumed_duel.folder, number) for number in resumed_duel.pairs]
        assert compared.ratio.value == pytest.approx(math.exp(np.mean(logs)))

    def test_both_arms_took_the_same_turns_and_never_at_once(self, resumed_duel):
        a_began: list[bool] = []
        for number in resumed_duel.pairs:
            a, b = (
                read_rows(pair_folder(resumed_duel.folder, number, arm) / "rank0" / "steps.rows")[1] for arm in "ab"
            )
            assert len(a) == len(b) > LEAST_ROUNDS
            assert a["steps"].tolist() == b["steps"].tolist()
            assert a["flags"].tolist() == b["flags"].tolist()
            assert a["flags"][0] == WARM_UP
            assert a["items"].tolist() == (2.0 * a["steps"]).tolist()
            apart = (a["end_ns"] <= b["start_ns"]) | (b["end_ns"] <= a["start_ns"])
            assert apart.all()  # never at the same time
            a_began += (a["start_ns"] < b["start_ns"]).tolist()
        assert {True, False} == set(a_began)

    def test_report_and_show_print_the_duel(self, resumed_duel):
        report = rigdyno("report", cwd=resumed_duel.folder)
        assert report.returncode == 0, report.stderr
        assert report.stdout == resumed_duel.resumed.stdout.partition("B: train.py:new\n")[2]
        shown = rigdyno("show", cwd=resumed_duel.folder)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith(report.stdout.rstrip())
        assert "pair002-b: done in" in shown.stdout

    def test_every_format_renders_the_duel(self, resumed_duel):
        for form in ("markdown", "csv", "json"):
            answer = rigdyno("report", "--format", form, cwd=resumed_duel.folder)
            assert answer.returncode == 0, answer.stderr
        jsonschema.validate(json.loads(answer.stdout), json.loads(SCHEMA.read_text(encoding="utf-8")))

    def test_an_arm_alone_is_no_measurement(self, resumed_duel):
        run = package.load(resumed_duel.run.path)
        assert run.measurements == []
        assert len(run.records) == 2 * len(resumed_duel.pairs)


class TestLostPairs:
    def test_a_killed_worker_ends_the_duel_and_loses_only_its_pair(self, folder):
        (folder / "hold").touch()
        process = started("duel", "train.py:old", "train.py:new", *SHORT, cwd=folder)
        until(lambda: arm_exists(folder, 2, "b", "rank0/steps.rows"), "the second pair was stepping")
        os.kill(pid_of(pair_folder(folder, 2, "b"), "rank0"), signal.SIGKILL)
        (folder / "hold").unlink()
        code, out, err = ended(process)
        assert code == 1, err
        assert err.splitlines()[-1] == "[pair 2] B: FAILED (signal, measure): SIGKILL: killed from outside"
        shown = " ".join(out.split())
        assert "warning: pair 2: B failed (signal, measure): SIGKILL: killed from outside" in shown
        assert [(record.pair, type(record.outcome)) for record in records(only_run(folder))] == [
            (1, Completed), (1, Completed), (2, Completed), (2, Failed),
        ]  # fmt: skip
        assert [figure.pair for figure in package.load(only_run(folder).path).duel.pairs] == [1]
        for cell in cell_folders(folder / "runs"):
            none_left(cell)

    def test_a_step_that_never_ends_is_stopped(self, folder, monkeypatch, capsys, one_pair):
        """The clock is stopped while the processes start, which takes long on a busy machine."""
        monkeypatch.chdir(folder)
        began_ns = SystemClock.now_ns()
        monkeypatch.setattr(SystemClock, "now_ns", staticmethod(lambda: began_ns))
        monkeypatch.setattr(orchestrate, "time_limit_seconds", lambda _seconds: 8.0)
        assert cli.main(["duel", "train.py:old", "train.py:never", *one_pair]) == 1
        out, _ = capsys.readouterr()
        assert "warning: pair 1: B failed (timeout, measure): no end after 8.0 s" in " ".join(out.split())
        assert "NOT_COMPARABLE: no pair of processes finished" in out
        one, two = records(only_run(folder))
        assert isinstance(one.outcome, Completed)
        assert two.outcome.kind == "timeout"
        assert two.exit_codes["rank0"] in (-signal.SIGTERM, -signal.SIGKILL)
        for cell in cell_folders(folder / "runs"):
            none_left(cell)


@pytest.fixture
def other_python(tmp_path):
    """Return the Python of another environment that has this Rigdyno and all packages of this environment."""
    where = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", where], check=True)
    (libraries,) = where.glob("lib/python*/site-packages")
    needed = {Path(module.__file__).parents[1] for module in (package, msgspec)}
    (libraries / "same.pth").write_text("\n".join(map(str, (*needed, *site.getsitepackages()))) + "\n")
    return str(where / "bin" / "python")


class TestEnvironments:
    def test_two_python_environments_are_compared(self, folder, other_python, monkeypatch, capsys, one_pair):
        monkeypatch.chdir(folder)
        arguments = ("--b", f"python={other_python}", "--json", *one_pair)
        assert cli.main(["duel", "train.py:old", *arguments]) == 0
        view = json.loads(capsys.readouterr().out)
        jsonschema.validate(view, json.loads(SCHEMA.read_text(encoding="utf-8")))
        (compared,) = view["comparisons"]
        assert (compared["baseline"], compared["candidate"]) == ("the defaults", f"python={other_python}")
        assert compared["answer"] == "undecided"  # one pair has no interval
        prefixes = (folder / "prefixes.txt").read_text().split()
        assert sorted(prefixes) == sorted([sys.prefix, str(Path(other_python).parents[1])])

    def test_an_environment_with_another_rigdyno_is_rejected(self, folder, monkeypatch, capsys):
        script = folder / "python"
        script.write_text(f"#!/bin/sh\necho {'0' * 32}\n")
        script.chmod(0o755)
        monkeypatch.chdir(folder)
        assert cli.main(["duel", "train.py:old", "--b", "python=./python"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err == "rigdyno: ./python has another Rigdyno than this one; install the same in both environments\n"


class TestBeforeAnythingRuns:
    def test_a_dry_run_writes_nothing(self, folder):
        answer = rigdyno("duel", "train.py:old", "train.py:new", "--dry-run", cwd=folder)
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.splitlines()[-2:] == ["  A: train.py:old", "  B: train.py:new"]
        assert "pairs of processes, at most" in answer.stdout
        assert sorted(path.name for path in folder.iterdir()) == ["train.py"]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("train.py:old", "--b", "unit=image"), "A counts in steps and B in images: there is no ratio of the two"),
            (("train.py:old", "tensor_add"), "A counts in steps and B in iterations"),
            (("train.py:old", "train.py:nw"), "train.py: no function named 'nw'; did you mean 'new'?"),
            (("train.py:old", "--a", "round=5"), "no argument of old named 'round'; did you mean 'rounds'?"),
            (("device",), "device is a suite of several configurations"),
            (("tensor_add", "--a", "sise=4"), "did you mean 'size'?"),
            (("tensor_add", "--a", "size"), "--a takes key=value"),
            (("tensor_add", "--budget", "3s"), "too short: 4 pairs of processes take at least"),
            (("tensor_add", "--margin", "0%"), "margin must lie between 0 and 100 %"),
            (("tensor_add", "--margin", "x"), "'x' is not a share; write 3% or 0.03"),
            (("tensor_add", "--b", "python=nowhere"), "can't start 'nowhere'"),
            (("tensor_add", "--b", "device=cuda:7"), "try --device cpu"),
        ],
    )
    def test_wrong_use_prints_one_line_and_exits_with_2(self, folder, monkeypatch, capsys, arguments, words):
        monkeypatch.chdir(folder)
        assert cli.main(["duel", *arguments]) == 2
        said_in_one_line(capsys.readouterr(), words, folder)
