"""Horovod as `make horovod` builds it: both frameworks and both transports, compared with the native arrangements."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from process_changes import trusting_horovod

from driving import ended, only_run, started, steps_began, until, with_a_killed_rank
from rigdyno import api
from rigdyno.schema.record import Completed, Failed
from rigdyno.schema.spec import IDLE

WAYS = {
    "mnist_cnn": ("ddp", "horovod", "horovod_mpi"),
    "mnist_cnn_tensorflow": ("multiworker", "horovod", "horovod_mpi"),
}
# Saves the weights before and after training. Without dropout, which differs from rank to rank.
KEEPING = """\
import os, sys
from pathlib import Path

if "rigdyno.runner.worker" in sys.orig_argv:
    from rigdyno.arrangements.common import loops

    whole = loops.train

    def weights(model):
        if hasattr(model, "parameters") and callable(model.parameters):
            return [each.detach().numpy().copy() for each in model.parameters()]
        return [each.numpy() for each in model.trainable_variables]

    def train(training, train_step, meter):
        import numpy

        if training.framework == "torch":
            training.model.eval()
        else:
            import tensorflow

            tensorflow.nn.dropout = lambda given, *rest, **named: given
        before = weights(training.model)
        quality = whole(training, train_step, meter)
        folder = Path(sys.argv[1]) / f"rank{os.environ['RANK']}"
        named = {"before": before, "after": weights(training.model)}
        arrays = {f"{name}{number}": each for name, list_ in named.items() for number, each in enumerate(list_)}
        numpy.savez(folder / "weights.npz", loss=quality.last_loss, **arrays)
        return quality

    loops.train = train
"""


@pytest.fixture(scope="module")
def suite_run(tmp_path_factory):
    """Run the cluster suite. Planning first checks that Horovod works, for each framework and transport."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "sitecustomize.py").write_text(KEEPING)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    process = started(
        "run",
        "cluster",
        "--set",
        "devices=2",
        "--steps",
        "40",
        "--repeat",
        "1",
        "--idle",
        "1s",
        cwd=folder,
        PYTHONPATH=path,
    )
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    return api.load(only_run(folder).path)


def jobs(run):
    return {
        (each.spec.workload, each.spec.arrangement): each for each in run.measurements if each.spec.workload != IDLE
    }


@pytest.fixture(scope="module")
def python_path(tmp_path_factory):
    return trusting_horovod(tmp_path_factory.mktemp("horovod"))


def test_the_tables_show_all_arrangements_with_the_split_of_the_time(suite_run):
    found = jobs(suite_run)
    assert list(found) == [(workload, way) for workload, ways in WAYS.items() for way in ways]
    assert all(isinstance(record.outcome, Completed) for record in suite_run.records)
    for each in found.values():
        parts = (each.job.start, each.job.data, each.job.training, each.job.communication, each.job.evaluation)
        assert (each.job.steps, each.job.items) == (20, 2 * 20 * 64)
        assert all(part > 0 for part in parts)
        assert sum(parts) == pytest.approx(each.job.seconds.value)
    view = suite_run.view()
    for title in ("Run time of the job", "Where the time of the job goes"):
        [table] = [table for table in view.tables if table.title.startswith(title)]
        assert [row.entries["library"].text for row in table.rows] == [
            "PyTorch", "PyTorch, Horovod (Gloo)", "PyTorch, Horovod (MPI)",
            "TensorFlow", "TensorFlow, Horovod (Gloo)", "TensorFlow, Horovod (MPI)",
        ]  # fmt: skip
    assert sum("rigdyno duel" in words and "Horovod (MPI) takes" in words for words in view.closing) == 2


def trained(run, workload, way, rank, name="after"):
    record = next(each for each in run.records if (each.spec.workload, each.spec.arrangement) == (workload, way))
    with np.load(run.path / "cells" / record.cell / f"rank{rank}" / "weights.npz") as file:
        count = sum(key.startswith(name) for key in file.files)
        return [file[f"{name}{number}"] for number in range(count)], float(file["loss"])


@pytest.mark.parametrize("way", ["horovod", "horovod_mpi"])
@pytest.mark.parametrize("workload", WAYS)
def test_ranks_are_in_sync_and_match_the_native_arrangement(suite_run, workload, way):
    (one, loss), (other, other_loss) = (trained(suite_run, workload, way, rank) for rank in (0, 1))
    before, _ = trained(suite_run, workload, way, 0, "before")
    native, _ = trained(suite_run, workload, WAYS[workload][0], 0)
    assert len(one) == len(native) == 8
    for ours, theirs, own, first in zip(one, other, native, before, strict=True):
        assert np.array_equal(ours, theirs)
        assert np.allclose(ours, own, atol=1e-5)
        assert not np.allclose(ours, first, atol=1e-4)
    assert loss != other_loss  # each rank has its own batches: without averaging they would have drifted apart


def of_this_test(folder: Path) -> list[str]:
    """Return the processes that know of the folder: ranks, agents, mpirun and its daemons."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join([*process.cmdline(), process.environ().get("RIGDYNO_CELL", "")])
            if str(folder) in words and process.status() != psutil.STATUS_ZOMBIE:
                found.append(words)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("way", ["horovod", "horovod_mpi"])
@pytest.mark.parametrize("workload", WAYS)
def test_a_killed_rank_is_recorded_and_leaves_nothing_running(tmp_path, python_path, workload, way):
    arguments = (workload, "--ranks", "2", "--arrangement", way, "--budget", "20m")
    record = with_a_killed_rank(*arguments, cwd=tmp_path, PYTHONPATH=python_path)
    lost = "rank 1 was lost: SIGKILL: killed from outside"
    assert record.outcome == Failed(kind="signal", phase="measure", message=lost)
    until(lambda: not of_this_test(tmp_path), "all that was started was gone")


@pytest.mark.parametrize("way", ["horovod", "horovod_mpi"])
def test_an_interrupted_run_leaves_nothing_running(tmp_path, python_path, way):
    arguments = ("mnist_cnn", "--ranks", "2", "--arrangement", way, "--budget", "20m")
    process = started("run", *arguments, cwd=tmp_path, PYTHONPATH=python_path)
    until(lambda: steps_began(tmp_path / "runs", rows=20), "the ranks were stepping")
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130, err
    until(lambda: not of_this_test(tmp_path), "all that was started was gone")


def test_a_duel_compares_two_arrangements(tmp_path, python_path):
    """A busy machine leaves time for fewer pairs, but two are always measured, and have an interval."""
    arms = ("--a", "arrangement=ddp", "--b", "arrangement=horovod_mpi")
    arguments = ("mnist_cnn", "--ranks", "2", *arms, "--budget", "55s")
    process = started("duel", *arguments, cwd=tmp_path, PYTHONPATH=python_path)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    run = api.load(only_run(tmp_path).path)
    assert {(each.spec.arrangement, each.spec.world_size) for each in run.records} == {("ddp", 2), ("horovod_mpi", 2)}
    assert all(isinstance(record.outcome, Completed) for record in run.records)
    comparison = run.duel.comparison
    assert (comparison.baseline, comparison.candidate) == ("arrangement=ddp", "arrangement=horovod_mpi")
    assert comparison.answer in ("faster", "slower", "same", "undecided")
    assert comparison.ratio.low < comparison.ratio.value < comparison.ratio.high
    until(lambda: not of_this_test(tmp_path), "all that was started was gone")
