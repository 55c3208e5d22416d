"""The cluster suite over two nodes and a real network stack: both frameworks, with and without Horovod."""

from __future__ import annotations

import os
import signal

import pytest
from hosts import two_hosts
from process_changes import trusting_horovod
from test_nodes import Node, on_both, only_record

from driving import cell_folders, none_left, steps_began, until
from rigdyno.schema.record import Completed, Failed

SHORT = ["--set", "devices=2", "--ranks", "1", "--steps", "40", "--repeat", "1", "--idle", "1s"]


def test_both_frameworks_run_on_two_nodes_with_telemetry_of_each(tmp_path):
    with two_hosts(named=True) as hosts:
        run, _ = on_both(hosts, tmp_path, "cluster", *SHORT, PYTHONPATH=trusting_horovod(tmp_path))
    assert all(isinstance(record.outcome, Completed) for record in run.records)
    assert [(each.spec.workload, each.spec.arrangement) for each in run.measurements] == [
        ("mnist_cnn", "ddp"), ("mnist_cnn", "horovod"), ("mnist_cnn", "horovod_mpi"),
        ("mnist_cnn_tensorflow", "multiworker"), ("mnist_cnn_tensorflow", "horovod"),
        ("mnist_cnn_tensorflow", "horovod_mpi"),
    ]  # fmt: skip
    for each in run.measurements:
        assert (each.spec.nodes, each.job.steps, each.job.items) == (2, 20, 2 * 20 * 64)
        assert each.job.communication > 0
        assert [node.node for node in each.usage.nodes] == [0, 1]
        assert all(any(value is not None for value in node.cpu) for node in each.usage.nodes)
    drawn = [figure for figure in run.view().figures if figure.kind == "timeline"]
    names = [[series.name for series in figure.series] for figure in drawn]
    assert names.count(["node 0", "node 1"]) == 7  # including that of the idle machine
    assert sum(each.job.seconds.value for each in run.measurements) == pytest.approx(
        sum(record.seconds for record in run.records if record.spec.workload != "idle")
    )


@pytest.mark.parametrize(
    ("workload", "arrangement"),
    [("mnist_cnn_tensorflow", "multiworker"), ("mnist_cnn", "horovod"), ("mnist_cnn", "horovod_mpi")],
)
def test_a_rank_that_is_lost_on_another_node_is_named(tmp_path, workload, arrangement):
    target = [workload, "--arrangement", arrangement, "--ranks", "1", "--budget", "20m"]
    with (
        two_hosts(named=True) as (first, second),
        Node(first, 0, tmp_path, first, *target, PYTHONPATH=trusting_horovod(tmp_path)) as ours,
        Node(second, 1, tmp_path, first, workload) as theirs,
    ):
        until(lambda: steps_began(ours.store, rows=20), "the ranks were stepping")
        os.kill(theirs.pid_of("rank1"), signal.SIGKILL)
        code, log = ours.ended()
        assert code == 1, log
        (cell,) = cell_folders(ours.store)
        none_left(cell)
    lost = "rank 1 was lost: SIGKILL: killed from outside"
    assert only_record(ours).outcome == Failed(kind="signal", phase="measure", message=lost)
