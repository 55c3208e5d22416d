"""Test wrong use: one line on standard error, exit code 2, no traceback, nothing written."""

import os
import shutil
from pathlib import Path

import pytest

from driving import here, rigdyno, said_in_one_line
from rigdyno import cli
from support import a_stored_run

WRONG = {
    ("runn",): "no command named 'runn'; did you mean 'run'?",
    ("run",): "name what to run",
    ("run", "devise"): "did you mean 'device'?",
    ("run", "tensor_ad"): "did you mean 'tensor_add'?",
    ("run", "tensor_add", "--sett", "a=1"): "--set",
    ("run", "tensor_add", "--set", "sise=4"): "did you mean 'size'?",
    ("run", "device", "--set", "sise=4"): "did you mean 'size'?",
    ("run", "tensor_add", "--set", "size=abc"): "size must be a whole number of at least 1, not 'abc'",
    ("run", "tensor_add", "--set", "size=0"): "at least 1",
    ("run", "tensor_add", "--set", "size"): "takes key=value",
    ("run", "tensor_add", "--set", "size=1000000"): "would fit",
    ("run", "tensor_add", "--set", "variant=x"): "as_published, as_intended, corrected",
    ("run", "tensor_add", "--budget", "5x"): "'5x' is not a duration; try 30s, 5m or 1h30m",
    ("run", "tensor_add", "--budget", "0.1s"): "too short",
    ("run", "tensor_add", "--soak", "9s", "--budget", "9s"): "not both",
    ("run", "tensor_add", "--set", "size=3", "--sweep", "size=4"): "both set and swept",
    ("run", "tensor_add", "--repeat", "0"): "repeat must be at least 1",
    ("run", "resnet50", "--ranks", "0"): "ranks must be at least 1",
    ("run", "resnet50", "--weights", "nowhere.pt"): "there is no file nowhere.pt to load weights from",
    ("run", "tensor_add", "--weights", "nowhere.pt"): "no option of tensor_add named 'weights'",
    ("run", "resnet50", "--nodes", "2"): "several nodes need HOST:PORT of node 0",
    ("run", "resnet50", "--nodes", "2", "--rendezvous", "here"): "not 'here'; e.g. 10.0.0.1:29500",
    ("run", "resnet50", "--nodes", "2", "--rendezvous", "here:99999"): "not 'here:99999'",
    ("run", "resnet50", "--nodes", "2", "--node-rank", "2", "--rendezvous", "a:1"): "node_rank must be between 0 and 1",
    ("run", "resnet50", "--node-rank", "1"): "are for several nodes; add --nodes",
    ("run", "resnet50", "--rendezvous", "a:1"): "are for several nodes; add --nodes",
    ("run", "resnet50", "--ranks", "2", "--set", "batch_size=100000"): "batch_size=",
    ("run", "resnet50", "--ranks", "2", "--arrangement", "single"): "is for one process, not 2",
    ("run", "scaling", "--soak", "1m"): "the scaling suite has no soak",
    ("duel", "resnet50", "--a", "arrangement=ddp", "--b", "seed=1"): "B has one rank: a duel is between arms of",
    ("run", "tensor_add", "--repeat", "x"): "integer",
    ("run", "tensor_add", "--threads", "0"): "threads must be at least 1",
    ("run", "tensor_add", "--seed", "-1"): "seed",
    ("run", "tensor_add", "--device", "cuda:7"): "try --device cpu",
    ("run", "tensor_add", "--update", "plane"): "did you mean 'plain'?",
    ("run", "tensor_add", "--launcher", "proces"): "did you mean 'process'?",
    ("run", "tensor_add", "--resume", "runs"): "leave out a target",
    ("run", "--resume", "nowhere"): "no run folder at nowhere",
    ("run", "--resume", "nowhere", "--seed", "0"): "leave out --seed",
    ("run", "--resume", "nowhere", "--set", "a=1", "--remote-python", "x"): "leave out --set, --remote-python",
    ("run", "tensor_add", "--seed"): "'--seed' requires an argument",
    ("run", "--resume", "."): "is not a run folder",
    ("run", "nofile.py:step"): "no file nofile.py here",
    ("run", "step.py"): "try step.py:step",
    ("run", "step.py:stp"): "step.py: no function named 'stp'; did you mean 'step'?",
    ("run", "step.py:"): "there is step",
    ("run", "broken.py:step"): "broken.py:2 is not Python",
    ("run", "nofile.toml"): "no file nofile.toml",
    ("run", "typo.toml"): "typo.toml:2: no key of a plan named 'bugdet'; did you mean 'budget'?",
    ("run", "option.toml"): "option.toml:3: ",
    ("run", "option.toml", "--set", "size=0"): "rigdyno: size must be a whole number of at least 1, not 0",
    ("run", "part.toml"): "part.toml:2: no update named 'plane'; did you mean 'plain'?",
    ("run", "latin.toml"): "latin.toml: not UTF-8 text",
    ("run", "syntax.toml"): "syntax.toml: ",
    ("run", "tensor_add", "--label", b"\xff"): "UTF-8",
    ("report", "nowhere"): "no run folder at runs/nowhere",
    ("report",): "there is no run in runs yet",
    ("report", "--format", "xml"): "markdown",
    ("show", "nowhere"): "no run folder at runs/nowhere",
    ("leaderboard", "devise"): "did you mean 'device'?",
    ("clean", "--all", "--older-than", "3d"): "choose one",
    ("compare", "one"): "CANDIDATE",
    ("compare", "one", "two"): "no run folder at runs/one",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "step.py").write_text("import time\n\ndef step():\n    pass\n")
    (folder / os.fsdecode(b"\xff.py")).write_text("def step():\n    pass\n")
    (folder / "broken.py").write_text("def step():\n    return (\n")
    (folder / "typo.toml").write_text('target = "tensor_add"\nbugdet = 5\n')
    (folder / "option.toml").write_text('target = "tensor_add"\n[set]\nsize = "large"\n')
    (folder / "part.toml").write_text('target = "tensor_add"\nupdate = "plane"\n')
    (folder / "latin.toml").write_bytes(b'target = "\xff"\n')
    (folder / "syntax.toml").write_text("target = \n")
    return folder


@pytest.mark.parametrize(("arguments", "words"), WRONG.items(), ids=lambda value: repr(value)[:60])
def test_wrong_use_prints_one_line_and_exits_with_2(arguments, words, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert cli.main([os.fsdecode(argument) for argument in arguments]) == 2
    said_in_one_line(capsys.readouterr(), words, folder)


@pytest.mark.parametrize("name", [b"\xff.toml", b"\xff.py:step", b"\xff"])
def test_names_that_are_not_utf8_are_printed(name, folder):
    answer = rigdyno("run", name, cwd=folder)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "xff" in answer.stderr or "udcff" in answer.stderr


def test_a_run_without_any_measurement_exits_with_3(tmp_path):
    answer = rigdyno("run", "device", "--device", "cuda:7", cwd=tmp_path)
    assert answer.returncode == 3
    assert answer.stderr.splitlines()[-1].startswith("rigdyno: nothing could be measured: no ")
    assert "SKIPPED" in here("report", cwd=tmp_path).stdout


def test_a_run_of_a_newer_version_is_rejected(tmp_path):
    run = a_stored_run(tmp_path / "runs")
    head = run / "head.json"
    head.write_text(head.read_text().replace('"schema_version": 2', '"schema_version": 999'))
    for verb in ("report", "show"):
        answer = here(verb, str(run), cwd=tmp_path)
        assert answer.returncode == 2
        assert answer.stderr.count("\n") == 1
        assert "newer Rigdyno" in answer.stderr
    resumed = rigdyno("run", "--resume", str(run), cwd=tmp_path)
    assert resumed.returncode == 2
    assert "newer Rigdyno" in resumed.stderr


@pytest.mark.parametrize("name", ["record.json", "rank0/steps.rows"])
def test_a_truncated_run_is_named_and_the_others_are_shown(name, tmp_path):
    damaged = a_stored_run(tmp_path / "runs", label="damaged")
    whole = a_stored_run(tmp_path / "runs", label="whole")
    path = damaged / "cells" / "01-test" / name
    path.write_bytes(path.read_bytes()[:20])
    board = here("leaderboard", "device", cwd=tmp_path)
    assert board.returncode == 0, board.stderr
    assert "whole" in board.stdout
    assert damaged.name in "".join(board.stdout.split()) + board.stderr
    both = here("report", damaged.name, whole.name, cwd=tmp_path)
    assert both.returncode == 0, both.stderr
    assert "whole" in both.stdout
    assert "skipped: " in both.stdout + both.stderr


def test_a_folder_without_a_valid_head_is_rejected(tmp_path):
    run = a_stored_run(tmp_path / "runs")
    (run / "head.json").write_text("{")
    answer = here("report", str(run), cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    shutil.rmtree(run)
    assert here("report", str(run), cwd=tmp_path).returncode == 2


def test_a_user_without_a_home_has_no_configuration(tmp_path, monkeypatch, capsys):
    def raise_no_home() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", raise_no_home)
    assert cli.main(["report"]) == 2
    assert "there is no run in runs yet" in capsys.readouterr().err


def test_a_configuration_with_an_unknown_home_is_rejected(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "rigdyno").mkdir()
    (tmp_path / "rigdyno" / "config.toml").write_text('runs = "~no-such-user/runs"\n')
    assert cli.main(["report"]) == 2
    assert "config.toml:1: no home folder found for '~no-such-user/runs'" in capsys.readouterr().err
