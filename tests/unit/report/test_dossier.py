"""Test the dossier of a run against counts made by hand from the stored rows."""

import numpy as np
import pytest

from rigdyno import api
from rigdyno.analyse.streams import STEAL
from rigdyno.report import dossier as dossier_module
from rigdyno.schema.channel import Channel
from rigdyno.schema.record import Failed
from rigdyno.schema.samples import RowFile, telemetry_header
from rigdyno.schema.spec import Cell, RunPlan, RunSpec, assign_participants, sampler_of
from rigdyno.store.folder import RunFolder
from stored_runs import ADDING, stored_run
from support import NOW, a_head, a_record, rows_path, write_steps

STEP_NS = 20_000_000


def disturbed_run(root, steal):
    """Store a hundred steps of 20 ms from 1 s on, and a reading every 100 ms about the time since the one before."""
    cell = Cell(name="01-cell", spec=ADDING, participants=assign_participants(1, 1, "cpu"))
    folder = RunFolder.create(root, "disturbed", NOW)
    folder.write_head(a_head([cell], plan=RunPlan(name="disturbed", cells=(cell,), label="mine", budget_seconds=60.0)))
    inside = folder.fresh_cell_folder(cell)
    write_steps(rows_path(inside), [STEP_NS + i % 7 for i in range(100)])
    header = telemetry_header([Channel(STEAL, "1", sensor="host")], sampler_of(0))
    rows = np.zeros(len(steal), dtype=np.dtype(list(header.fields)))
    rows["at_ns"], rows[STEAL] = 1_000_000_000 + np.arange(len(steal)) * 100_000_000, steal
    file = RowFile(rows_path(inside, "telemetry", "node0"), header)
    file.append(rows.tobytes())
    file.close()
    folder.write_record(a_record(ADDING, run=folder.name, cell=cell.name, seconds=12.0), cell)
    return api.load(folder.path)


def test_a_reason_counts_the_affected_steps(tmp_path):
    """Ten of twenty readings are above the limit. Each covers the five steps before it.

    Steps are a few nanoseconds longer than 20 ms: by the end, one more step on either side is covered.
    """
    run = disturbed_run(tmp_path, [0.0] * 6 + [0.5] * 10 + [0.0] * 6)
    (ground,) = [each for each in run.dossier().grounds if each.code == "other_tenants"]
    assert ground.what == "tensor_add variant=as_published"
    assert ground.verdict == "INVALID"
    assert ground.steps == 100
    assert 50 <= ground.hit <= 52


def test_a_reason_about_the_whole_stream_counts_no_steps(tmp_path):
    dossier = api.load(stored_run(tmp_path, "tiny", [0.001])).dossier()
    (ground,) = dossier.grounds
    assert (ground.code, ground.hit, ground.steps) == ("too_short", None, 100)


def test_an_undisturbed_run_has_no_reasons(tmp_path):
    assert disturbed_run(tmp_path, [0.0] * 22).dossier().grounds == ()


def test_a_process_counts_its_steps_and_disturbances(tmp_path):
    (process,) = disturbed_run(tmp_path, [0.0] * 6 + [0.5] * 10 + [0.0] * 6).dossier().processes
    assert (process.cell, process.what, process.ended) == ("01-cell", "tensor_add variant=as_published", "done in 12 s")
    assert (process.steps, process.cut, process.seconds) == (100, 0, 12.0)
    assert process.tagged.endswith("stolen, of 100 steps")


def test_a_process_that_failed_before_its_first_step_has_no_counts(tmp_path):
    path = stored_run(
        tmp_path, "failed", [20.0], outcome=Failed(kind="signal", phase="build", message="SIGILL: no such instruction")
    )
    (path / "cells/01-cell/rank0/steps.rows").unlink()
    (process,) = api.load(path).dossier().processes
    assert process.ended == "FAILED (signal, build): SIGILL: no such instruction"
    assert (process.steps, process.cut, process.tagged) == (None, None, "")


def test_damaged_rows_have_no_count(tmp_path):
    path = stored_run(tmp_path, "damaged", [20.0])
    steps = path / "cells/01-cell/rank0/steps.rows"
    steps.write_bytes(steps.read_bytes()[:30])
    (process,) = api.load(path).dossier().processes
    assert process.steps is None


def test_the_dossier_states_request_and_machine(tmp_path):
    dossier = disturbed_run(tmp_path, [0.0] * 22).dossier()
    measured = {fact.name: fact.value for fact in dossier.measured}
    assert measured["asked for"] == "disturbed"
    assert measured["label"] == "mine"
    assert measured["budget"] == "1 min"
    assert measured["process groups"] == "1 of 1 completed"
    assert {fact.name: fact.value for fact in dossier.rig}["processor"] == "Test CPU, 2 cores, 2 threads"


@pytest.mark.parametrize("name", ["MOST_PROCESSES", "MOST_FILES", "MOST_GROUNDS"])
def test_long_lists_are_cut_and_count_the_rest(tmp_path, monkeypatch, name):
    monkeypatch.setattr(dossier_module, name, 2)
    specs = [RunSpec(workload="tensor_add", options={"size": size}) for size in range(5)]
    cells = [Cell(name=f"{number:02d}-cell", spec=spec) for number, spec in enumerate(specs)]
    folder = RunFolder.create(tmp_path, "many", NOW)
    folder.write_head(a_head(cells))
    for cell in cells:
        write_steps(rows_path(folder.fresh_cell_folder(cell)), [1_000] * 100)
        folder.write_record(a_record(cell.spec, run=folder.name, cell=cell.name), cell)
    dossier = api.load(folder.path).dossier()
    if name == "MOST_PROCESSES":
        assert (len(dossier.processes), dossier.more_processes) == (2, 3)
    elif name == "MOST_GROUNDS":
        assert (len(dossier.grounds), dossier.more_grounds) == (2, 3)
    else:
        assert (len(dossier.files.listed), dossier.files.count) == (2, 11)
