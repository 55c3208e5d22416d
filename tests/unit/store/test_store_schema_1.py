"""Run folders that version 0.1.0 wrote (schema 1), as they came off the disk: read, reported, compared.

tests/integration/test_schema_1.py takes them through the commands.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rigdyno import api, catalogue
from rigdyno.analyse.compare import Sides, compare
from rigdyno.errors import DamagedRun
from rigdyno.report.page import Page
from rigdyno.report.show import run_text
from rigdyno.schema.participant import ranks_among
from rigdyno.schema.record import SCHEMA_VERSION, Completed, Failed
from rigdyno.schema.samples import STEP_FIELDS
from rigdyno.store.upgrade import DEFAULTS_OF_SCHEMA_1, upgraded

OLD = Path(__file__).parents[2] / "schema_1"
RUNS = sorted(path.name for path in OLD.iterdir())
FORMATS = catalogue.names("format")


def named(stem):
    (found,) = [name for name in RUNS if name.startswith(stem)]
    return api.load(OLD / found)


@pytest.mark.parametrize("name", RUNS)
def test_everything_that_reads_a_run_reads_an_old_one(name):
    run = api.load(OLD / name)
    assert run.head.schema_version == SCHEMA_VERSION
    assert run.records
    view = run.view()
    assert run.warnings == []
    for form in FORMATS:
        assert catalogue.load("format", form)(view, Page(width=80))
    assert run_text(run.head, run.cells, view, Page(width=80))
    for cell in run.cells:
        assert len(cell.steps()) == cell.record.spec.world_size
        assert {each.rank for each in ranks_among(cell.record.participants)} == set(range(cell.record.spec.world_size))


def test_ranks_are_in_their_order_and_not_in_that_of_their_files():
    """Twelve of them: as text, 10 and 11 come before 2."""
    [cell] = named("mnist_cnn").cells
    assert [header.participant.rank for header, _ in cell.steps()] == list(range(12))
    for header, rows in cell.steps():
        path = cell.folder / f"steps.{header.participant.rank}.rows"
        body = path.read_bytes().partition(b"\n")[2]
        dtype = np.dtype(list(STEP_FIELDS))
        assert np.array_equal(rows, np.frombuffer(body[: len(body) // dtype.itemsize * dtype.itemsize], dtype))


def test_options_are_those_of_the_day_it_ran_not_of_today(monkeypatch):
    monkeypatch.setattr(catalogue, "defaults", lambda kind, name: {"batch_size": 4711, "image_size": 4711})
    resnet = [each for each in named("scaling").measurements if each.spec.workload == "resnet50"]
    assert resnet
    for each in resnet:
        assert each.spec.options == {"batch_size": 2, "image_size": 32, "learning_rate": 0.01}
        assert each.spec.resolved == {**DEFAULTS_OF_SCHEMA_1["resnet50"], **each.spec.options}
    assert "4711" not in str(named("scaling").view())


def test_the_old_defaults_are_those_that_the_workloads_still_have():
    """They were taken from version 0.1.0. A workload whose default changes keeps its old one there, and leaves here."""
    for name, old in DEFAULTS_OF_SCHEMA_1.items():
        assert catalogue.defaults("workload", name) == old, name


def test_an_old_run_is_compared_with_a_new_one_of_the_same_configuration(tmp_path):
    old = next(run for run in map(api.load, (OLD / name for name in RUNS)) if len(run.records) == 2)
    new = msgspec.json.decode(msgspec.json.encode(old.measurements[0].spec), type=type(old.measurements[0].spec))
    assert new.key() == old.records[0].spec.key()
    [comparison] = compare(old.measurements, old.measurements, Sides("old", "new"))
    assert comparison.answer != "NOT_COMPARABLE"
    assert comparison.differences == ()


def test_ends_of_processes_are_told_by_who_they_were():
    [record] = named("broken_step").records
    assert record.exit_codes == {"rank0": 1, "node0": 0}
    assert isinstance(record.outcome, Failed)
    assert [record.exit_codes for record in named("my_training").records] == [{"node0": 0}]


def test_what_is_finished_stays_finished_and_the_rest_is_left_to_run():
    run = next(each for each in map(api.load, (OLD / name for name in RUNS)) if len(each.head.plan.cells) == 3
               and each.head.plan.name == "tensor_add")  # fmt: skip
    assert [run.folder.is_finished(cell) for cell in run.head.plan.cells] == [True, False, False]
    assert "2 of 3 cells are not finished" in run.view().warnings[0]


def test_a_duel_is_decided_as_before():
    duel = named("duel").duel
    assert duel is not None
    assert len(duel.pairs) == 6
    assert all(isinstance(record.outcome, Completed) for record in named("duel").records)


NODES = {
    "workload": "resnet50", "world_size": 4, "nodes": 2, "launcher": "torchrun", "arrangement": "ddp",
    "rendezvous": "10.0.0.1:29500", "hosts": [],
}  # fmt: skip


def test_a_record_of_several_nodes_has_telemetry_of_the_first_alone():
    record = msgspec.json.decode((OLD / named("mnist").path.name / "cells/01-mnist_cnn-x12-8/record.json").read_bytes())
    new = upgraded({**record, "spec": {**record["spec"], **NODES}, "exit_codes": [1, -9]}, "somewhere")
    assert [each["id"] for each in new["participants"]] == ["rank0", "rank1", "rank2", "rank3", "node0"]
    assert [each["node"] for each in new["participants"]] == [0, 0, 1, 1, 0]
    assert "rendezvous" not in new["spec"]
    assert new["spec"]["launcher"] == "by_hand"
    assert new["exit_codes"] == {"exit0": 1, "exit1": -9, "node0": 0}


def test_a_plan_keeps_where_its_nodes_met():
    head = msgspec.json.decode((OLD / named("mnist").path.name / "head.json").read_bytes())
    [cell] = head["plan"]["cells"]
    plan = {**head["plan"], "cells": [{**cell, "spec": {**cell["spec"], **NODES}}]}
    new = upgraded({**head, "plan": plan}, "somewhere")
    assert new["plan"]["reach"] == {"rendezvous": "10.0.0.1:29500", "hosts": []}
    assert [each["id"] for each in new["plan"]["cells"][0]["participants"]][-2:] == ["node0", "node1"]


@pytest.mark.parametrize("spec", [None, [], {}, {"workload": "x", "world_size": 10**9}, {"workload": "x", "nodes": 0}])
def test_a_damaged_old_record_is_one_line(spec):
    with pytest.raises(DamagedRun, match="somewhere doesn't hold what schema 1 should"):
        upgraded({"schema_version": 1, "spec": spec}, "somewhere")


def test_two_files_of_the_same_rank_are_refused(tmp_path):
    shutil.copytree(named("my_training").path, tmp_path / "run")
    (cell,) = (tmp_path / "run" / "cells").iterdir()
    shutil.copy(cell / "steps.0.rows", cell / "steps.1.rows")
    run = api.load(tmp_path / "run")
    assert run.measurements == []
    assert "and so does another file of this cell" in run.warnings[0]
