"""A real Slurm of two virtual nodes: runs from the login node and in an allocation, and jobs that are taken away."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_changes import HeldRanks, trusting_horovod
from slurm_cluster import Cluster, slurm_cluster

from driving import COMMAND, environment, records, until
from rigdyno import api
from rigdyno.launchers import slurm
from rigdyno.schema.record import Completed, Failed
from rigdyno.store.folder import RunFolder

PATIENCE_SECONDS = 600.0
SMALL = ["--set", "batch_size=2", "--set", "image_size=32", "--set", "classes=10", "--set", "learning_rate=0.001"]
ASKED = ["--launcher", "slurm", "--ranks", "1", "--threads", "1"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_stays(cluster):
    yield
    until(lambda: not cluster.ask("squeue", "--noheader").strip(), "Slurm's queue was empty")


def variables(cluster: Cluster) -> dict[str, str]:
    kept = {name: value for name, value in environment().items() if not name.startswith("SLURM")}
    return {**kept, **cluster.environment}


@contextmanager
def started(
    cluster: Cluster, folder: Path, *arguments: str, before: tuple[str, ...] = (), **changes: str
) -> Iterator[subprocess.Popen[str]]:
    """Start `rigdyno run`, and kill it at the end unless it is over."""
    with subprocess.Popen(
        [*before, *COMMAND, "run", *arguments], cwd=folder, text=True,
        env=variables(cluster) | {"TMPDIR": str(folder)} | changes, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def run(
    cluster: Cluster, folder: Path, *arguments: str, before: tuple[str, ...] = (), **changes: str
) -> tuple[int, str, str]:
    with started(cluster, folder, *arguments, before=before, **changes) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


def only_path(folder: Path) -> Path:
    (path,) = (folder / "runs").iterdir()
    return path


def jobs(cluster: Cluster) -> list[str]:
    return cluster.ask("squeue", "--noheader", "--format=%A").split()


def is_running(cluster: Cluster) -> bool:
    return "RUNNING" in cluster.ask("squeue", "--noheader", "--format=%T")


@pytest.fixture(scope="module")
def suite_run(cluster, tmp_path_factory):
    """Run the scaling suite from the login node; return the stored run and all that was printed to stderr."""
    folder = tmp_path_factory.mktemp("suite")
    arguments = ("scaling", *SMALL, *ASKED, "--nodes", "2", "--repeat", "1", "--steps", "3")
    code, _, err = run(cluster, folder, *arguments)
    assert code == 0, err
    return api.load(only_path(folder)), err


def test_the_participants_of_both_nodes_are_recorded(suite_run):
    finished, _ = suite_run
    [measurement] = [each for each in finished.measurements if (each.spec.workload, each.spec.nodes) == ("resnet50", 2)]
    [record] = measurement.records
    assert isinstance(record.outcome, Completed)
    assert [each.id for each in record.participants] == ["rank0", "rank1", "node0", "node1"]
    assert len(record.nodes) == 2
    assert {pair.clock for pair in record.clocks} == {"node0", "node1"}
    for name in ("rank0", "rank1"):
        assert {f"{name}/steps.rows", f"{name}/log.txt", f"{name}/report.json"} <= set(record.files)
    for name in ("node0", "node1"):
        assert {f"{name}/telemetry.rows", f"{name}/launcher.log"} <= set(record.files)
    assert list(measurement.phases.by_rank) == [0, 1]


def test_a_suite_of_several_sizes_runs_in_one_job(suite_run):
    finished, err = suite_run
    assert len(set(re.findall(r"Slurm job (\d+): starting", err))) == 1
    sizes = sorted((record.spec.workload, record.spec.nodes) for record in finished.records)
    assert sizes == [("allreduce", 2), ("resnet50", 1), ("resnet50", 2)]
    assert all(isinstance(record.outcome, Completed) for record in finished.records)
    assert {record.spec.launcher for record in finished.records} == {"slurm"}


def test_an_existing_allocation_is_used(cluster, tmp_path):
    salloc = ("salloc", "--nodes=2", "--ntasks-per-node=1")
    arguments = ("resnet50", *SMALL, *ASKED, "--nodes", "2", "--steps", "3")
    code, _, err = run(cluster, tmp_path, *arguments, before=salloc)
    assert code == 0, err
    [record] = records(RunFolder(only_path(tmp_path)))
    assert isinstance(record.outcome, Completed)
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    too_many = ("resnet50", *SMALL, *ASKED, "--nodes", "3", "--steps", "3")
    code, _, err = run(cluster, elsewhere, *too_many, before=salloc)
    assert code == 2
    assert "has 2 nodes, not 3" in err
    assert not (elsewhere / "runs").exists()


def test_the_cluster_suite_trains_in_both_frameworks(cluster, tmp_path):
    job = ("--set", "devices=2", "--nodes", "2", "--steps", "40", "--repeat", "1", "--idle", "1s")
    code, _, err = run(cluster, tmp_path, "cluster", *ASKED, *job, PYTHONPATH=trusting_horovod(tmp_path))
    assert code in (0, 1), err
    finished = api.load(only_path(tmp_path))
    failed = [record for record in finished.records if not isinstance(record.outcome, Completed)]
    # Both nodes of this cluster are one machine, with one address.
    assert {record.spec.arrangement for record in failed} <= {"horovod_mpi"}
    assert all("MPI can't tell them apart" in record.outcome.message for record in failed)
    trained = [each for each in finished.measurements if each.job is not None]
    assert {each.spec.arrangement for each in trained} >= {"ddp", "multiworker"}
    assert all((each.spec.nodes, each.job.steps) == (2, 20) for each in trained)


def ranks_began(folder: Path) -> bool:
    """Return whether both ranks have opened their files, which are in the nodes' temporary folders during a cell."""
    return len(list(folder.glob("rigdyno*/1/rank*/steps.rows"))) == 2


@pytest.mark.parametrize("by", ["scancel", "preemption"])
def test_a_job_that_is_taken_away_is_recorded_and_resumed(cluster, tmp_path, by):
    partition = ["--slurm", "partition=low"] if by == "preemption" else []
    sweep = ["--sweep", "batch_size=2,3"]
    options = ["--set", "image_size=32", "--set", "classes=10", "--set", "learning_rate=0.001", "--steps", "3"]
    arguments = ("resnet50", *sweep, *options, *ASKED, "--nodes", "2", *partition)
    held = HeldRanks(tmp_path)
    with started(cluster, tmp_path, *arguments, PYTHONPATH=held.python_path) as process:
        until(lambda: is_running(cluster) and ranks_began(tmp_path), "the first cell was under way")
        if by == "scancel":
            cluster.ask("scancel", *jobs(cluster))
        else:
            cluster.ask("srun", "--partition=main", "--nodes=2", "true")
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    path = only_path(tmp_path)
    [record] = records(RunFolder(path))
    assert isinstance(record.outcome, Failed)
    assert record.outcome.kind == "job_ended"
    expected = "was cancelled" if by == "scancel" else "was preempted"
    assert expected in record.outcome.message
    if by == "scancel":  # Slurm gives the processes time to end
        assert {"rank0/log.txt", "rank1/log.txt", "rank0/steps.rows", "rank1/steps.rows"} <= set(record.files)
    assert "2 of 2 cells are not finished; go on with: rigdyno run --resume" in " ".join(out.split())
    code, _, err = run(cluster, tmp_path, "--resume", str(path))
    assert code == 0, err
    assert [type(record.outcome) for record in records(RunFolder(path))] == [Completed, Completed]


def test_a_job_that_runs_out_of_its_time_is_recorded(cluster, tmp_path):
    """The time ends during the cell, however long that took to start."""
    arguments = ("resnet50", *SMALL, *ASKED, "--nodes", "2", "--budget", "20m", "--slurm", "time=60")
    with started(cluster, tmp_path, *arguments) as process:
        until(lambda: is_running(cluster) and ranks_began(tmp_path), "the cell was under way")
        [job] = jobs(cluster)
        cluster.ask("scontrol", "update", f"JobId={job}", "EndTime=now")
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1, err
    [record] = records(RunFolder(only_path(tmp_path)))
    assert isinstance(record.outcome, Failed)
    assert record.outcome.kind == "job_ended"
    assert "ran out of its time" in record.outcome.message


def test_the_final_state_of_a_job_is_waited_for(monkeypatch):
    """A controller that is too busy to answer has not forgotten the job."""
    answers = iter([None, "JobState=COMPLETING Reason=None", None, "JobState=TIMEOUT Reason=TimeLimit"])
    monkeypatch.setattr(slurm, "run_slurm_command", lambda *_: next(answers))
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)
    assert slurm.explain_end("7") == ("job_ended", "Slurm job 7 ran out of its time (TimeLimit)")


def test_a_controller_that_never_answers_leaves_the_reason_to_the_node(monkeypatch):
    monkeypatch.setattr(slurm, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(slurm, "STATE_SECONDS", 0.1)
    assert slurm.run_slurm_command("sleep", "3600") is None
    monkeypatch.setattr(slurm, "run_slurm_command", lambda *_: None)
    assert slurm.explain_end("7") is None


def test_a_pending_job_says_why_and_is_cancelled_by_ctrl_c(cluster, tmp_path):
    holding = subprocess.Popen(
        ["srun", "--nodes=2", "sleep", "3600"], env=variables(cluster), stderr=subprocess.DEVNULL
    )
    log = tmp_path / "err.txt"
    try:
        until(lambda: is_running(cluster), "the nodes were taken")
        with log.open("w") as err, subprocess.Popen(
            [*COMMAND, "run", "resnet50", *SMALL, *ASKED, "--nodes", "2"], cwd=tmp_path, env=variables(cluster),
            stdout=subprocess.DEVNULL, stderr=err, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                until(lambda: "is pending: Resources" in log.read_text(), "the reason was printed")
                os.killpg(process.pid, signal.SIGINT)
                assert process.wait(PATIENCE_SECONDS) == 130
            finally:
                process.kill()
        until(lambda: len(jobs(cluster)) == 1, "the job was cancelled")
    finally:
        holding.terminate()
        holding.wait()
    assert "Traceback" not in log.read_text()
    assert not (tmp_path / "runs").exists()


def test_a_killed_rigdyno_leaves_no_job(cluster, tmp_path):
    with started(cluster, tmp_path, "resnet50", *SMALL, *ASKED, "--nodes", "2", "--budget", "20m") as process:
        until(lambda: is_running(cluster) and ranks_began(tmp_path), "the cell was under way")
        process.kill()
    until(lambda: not jobs(cluster), "the job was gone")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slurm", "partition=nowhere"], "Slurm gives no nodes: "),
        (["--nodes", "9"], "Slurm gives no nodes: "),
        (["--slurm", "no-such-option=1"], "Slurm gives no nodes: "),
        (["--remote-python", "/nowhere/python"], "node 0 is gone"),
    ],
)
def test_a_refusal_of_slurm_or_of_a_node_is_one_line(cluster, tmp_path, options, words):
    code, _, err = run(cluster, tmp_path, "resnet50", *SMALL, *ASKED, *options)
    assert code == 2
    last = err.splitlines()[-1]
    assert last.startswith("rigdyno: ")
    assert words in last
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
