"""Run folders of version 0.1.0 (schema 1) through every command that takes one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from driving import here, rigdyno
from rigdyno import api
from rigdyno.schema.record import Completed

OLD = Path(__file__).parents[1] / "schema_1"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A folder whose runs/ is the old one's copy."""
    place = tmp_path_factory.mktemp("old")
    shutil.copytree(OLD, place / "runs")
    return place


def only(store, stem, cells):
    """The one run of that name with so many planned cells."""
    found = [path for path in (store / "runs").glob(f"{stem}.*") if len(api.load(path).head.plan.cells) == cells]
    (path,) = found
    return str(path)


COMMANDS = (
    ("report",),
    ("report", "--format", "csv"),
    ("report", "--format", "markdown"),
    ("report", "--format", "json"),
    ("show",),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_all_of_them_are_reported_and_shown(store, command):
    verb, *options = command
    for path in sorted((store / "runs").glob("[a-z]*.*")):
        answer = here(verb, str(path), *options, cwd=store)
        assert answer.returncode == 0, (path.name, answer.stderr)
        assert answer.stdout
        assert "Traceback" not in answer.stderr


def test_they_are_compared_ranked_and_forecast(store):
    new = ("run", "tensor_add", "--set", "size=3072", "--set", "variant=corrected", "--budget", "5s", "--out", "new")
    assert rigdyno(*new, cwd=store).returncode == 0
    (fresh,) = (store / "new").glob("[a-z]*")
    compared = here("compare", only(store, "tensor_add", 2), str(fresh), "--format", "json", cwd=store)
    assert compared.returncode in (0, 3), compared.stderr  # 3: the machine is too busy for a figure
    [comparison] = json.loads(compared.stdout)["comparisons"]
    assert {reason["code"] for reason in comparison["reasons"]}.isdisjoint({"other_configuration", "only_in_one"})
    board = here("leaderboard", "device", cwd=store)
    assert board.returncode == 0, board.stderr
    scaling = only(store, "scaling", 3)
    forecast = here("forecast", scaling, "--devices", "4", cwd=store)
    assert forecast.returncode == 2  # two sizes are too few, and it says so
    assert "a forecast needs at least" in forecast.stderr or "has no workload at" in forecast.stderr


def test_one_that_was_interrupted_is_resumed(store):
    run = only(store, "tensor_add", 3)
    before = (Path(run) / "cells/01-tensor_add-2048/record.json").read_bytes()
    answer = rigdyno("run", "--resume", run, cwd=store)
    assert answer.returncode == 0, answer.stderr
    assert "[2/3]" in answer.stderr
    assert "[1/3]" not in answer.stderr
    assert (Path(run) / "cells/01-tensor_add-2048/record.json").read_bytes() == before
    finished = api.load(run)
    assert [type(record.outcome) for record in finished.records] == [Completed] * 3
    assert len(finished.measurements) == 3
    assert [measurement.spec.resolved["size"] for measurement in finished.measurements] == [2048, 2560, 3072]


def test_clean_takes_only_what_it_is_asked_for(store):
    answer = here("clean", "--yes", cwd=store)
    assert answer.returncode == 0, answer.stderr
    gone = {path.name for path in OLD.iterdir()} - {path.name for path in (store / "runs").iterdir()}
    assert {name.partition(".")[0] for name in gone} == {"broken_step"}  # nothing was measured there
