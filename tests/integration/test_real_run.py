"""Test one small real run: output, files, record, and every command that reads it."""

import getpass
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import rigdyno as package
from driving import ended, only_run, records, rigdyno, started
from rigdyno.schema.record import Completed
from rigdyno.schema.view import View
from rigdyno.store.folder import run_folders

SMALL = ("run", "tensor_add", "--set", "size=256", "--steps", "50")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def finished_run(folder) -> subprocess.CompletedProcess[str]:
    return rigdyno(*SMALL, "--label", "my machine", cwd=folder)


def test_the_output_has_plan_result_and_location(finished_run, folder):
    assert finished_run.returncode == 0, finished_run.stderr
    saved = f"runs/{only_run(folder).name}"
    for words in (
        "This machine: ",
        "Plan: tensor_add, 1 cell",
        "my machine",
        "it/s",
        "Verdict: ",
        saved,
        "Worth trying next",
    ):
        assert words in finished_run.stdout
    assert finished_run.stderr.startswith("[1/1] 01-tensor_add-256: done in")


def test_a_pipe_gets_plain_text_of_80_columns(finished_run):
    assert "\x1b" not in finished_run.stdout + finished_run.stderr
    assert max(map(len, finished_run.stdout.splitlines())) <= 80


def test_the_folder_has_exactly_the_documented_files(finished_run, folder):
    run = only_run(folder)
    (cell,) = (run.path / "cells").iterdir()
    assert {path.name for path in run.path.iterdir()} == {"head.json", "lock", "cells"}
    assert {str(path.relative_to(cell)) for path in cell.rglob("*") if path.is_file()} == {
        "spec.json", "record.json", "rank0/steps.rows", "rank0/report.json", "rank0/log.txt", "rank0/pid",
        "node0/telemetry.rows", "node0/log.txt", "node0/pid",
    }  # fmt: skip


def test_the_record_has_outcome_memory_label_and_versions(finished_run, folder):
    (record,) = records(only_run(folder))
    assert isinstance(record.outcome, Completed)
    assert record.outcome.quality.correct is True
    assert record.exit_codes == {"rank0": 0, "node0": 0}
    assert record.peak_memory_bytes > 50_000_000
    assert record.label == "my machine"
    assert record.environment.packages["torch"] == record.environment.framework["torch"]
    assert record.environment.packages["rigdyno"] == package.__version__


def user_name() -> str:
    """Return the name of the user; in a container there may be none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "root"


def test_no_file_contains_user_host_or_path(finished_run, folder):
    secrets = {socket.gethostname(), str(Path.home()), str(folder), user_name()} - {"root", "localhost"}
    for path in only_run(folder).path.rglob("*.json"):
        text = path.read_text()
        assert [secret for secret in secrets if secret in text] == []
        assert "/root" not in text
        assert "/home" not in text


@pytest.mark.parametrize("command", ["report", "show", "leaderboard"])
def test_stored_runs_are_read_without_measuring(finished_run, folder, command):
    answer = rigdyno(command, *(["device"] if command == "leaderboard" else []), cwd=folder)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    assert ("Leaderboard" if command == "leaderboard" else "tensor_add") in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 80


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "json"])
def test_every_format_renders_the_run(finished_run, folder, form):
    answer = rigdyno("report", "--format", form, cwd=folder)
    assert answer.returncode == 0, answer.stderr
    assert "it/s" in answer.stdout


def test_a_closed_pipe_is_no_error(finished_run, folder):
    script = f"{package.__name__} show | head -n 1"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 0
    assert answer.stderr == ""
    assert answer.stdout == "tensor_add\n"


def test_python_loads_the_run_by_name_and_path(finished_run, folder, monkeypatch):
    monkeypatch.chdir(folder)
    name = only_run(folder).name
    for path in (name, f"runs/{name}", folder / "runs" / name):
        run = package.load(path)
        (measurement,) = run.measurements
        assert measurement.throughput().unit == "it/s"
        assert run.records[0].outcome == Completed(quality=run.records[0].outcome.quality)
        assert run.warnings == []


def test_json_is_valid_if_the_folder_name_is_not_utf8(finished_run, folder):
    target = folder / "ru\udcffns"
    target.symlink_to("runs")
    answer = rigdyno("report", "--format", "json", "--out", os.fsencode("ru\udcffns"), cwd=folder)
    target.unlink()
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["title"] == "tensor_add"


def test_two_runs_at_once_share_one_store(tmp_path):
    as_json, quietly = (started(*SMALL, flag, cwd=tmp_path) for flag in ("--json", "--quiet"))
    boards = [started("leaderboard", "device", cwd=tmp_path) for _ in range(2)]
    assert [ended(board)[0] for board in boards] == [0, 0]
    code, out, err = ended(as_json)
    assert code == 0, err
    document = json.loads(out)
    assert document["title"] == "tensor_add"
    assert set(document) == set(View.__struct_fields__)
    code, out, err = ended(quietly)
    assert (code, err) == (0, "")
    assert "it/s" in out
    assert "Verdict: " in out
    assert [words for words in ("This machine", "Plan:", "Saved in", "Worth trying") if words in out] == []
    runs = run_folders(tmp_path / "runs")
    assert [type(record.outcome) for run in runs for record in records(run)] == [Completed, Completed]
    assert document["saved_in"][0] in {f"runs/{run.name}" for run in runs}
    both = rigdyno("report", *(run.name for run in runs), cwd=tmp_path)
    assert both.stdout.count("Saved in") == 2


def test_python_starts_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = package.run("tensor_add", options={"size": 128}, steps=50, label="api")
    assert run.path.parent == Path("runs")
    assert [type(record.outcome) for record in run.records] == [Completed]
    assert run.head.plan.label == "api"
    assert run.measurements[0].status in ("VALID", "SUSPECT", "INVALID")
