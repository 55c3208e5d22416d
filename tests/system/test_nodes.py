"""Two nodes over a real network stack: the scaling suite on a slow link and on a busy host, nodes that die or hang, and
clocks that disagree."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hosts import two_hosts
from process_changes import TimeLimit

from driving import COMMAND, cell_folders, environment, none_left, records, steps_began, until
from rigdyno import api
from rigdyno.schema.record import Completed, Failed
from rigdyno.store.folder import RunFolder

PATIENCE_SECONDS = 600.0
PORT = 29517
QUIET = 0.02  # share of the time in the run queue; with less, a host isn't blamed
LINK_MBIT = 200
AHEAD_SECONDS = 3600
SMALL = ["--set", "batch_size=2", "--set", "image_size=64", "--set", "classes=10"]


def secret_file(folder: Path) -> Path:
    path = folder / "run.secret"
    if not path.exists():
        path.touch(0o600)
        path.write_text(secrets.token_hex(32))
    return path


class Node:
    """`rigdyno run` on one host, with its own folders. Leaving its context kills it."""

    def __init__(self, host, number, folder: Path, first, *arguments: str, ahead_seconds: int = 0, **variables: str):
        self.store, self.temporary = folder / f"runs{number}", folder / f"tmp{number}"
        self.temporary.mkdir()
        where = ["--nodes", "2", "--node-rank", str(number), "--rendezvous", f"{first.address}:{PORT}"]
        known = ["--secret-file", str(secret_file(folder)), "--out", str(self.store)]
        self.log = folder / f"node{number}.txt"
        command = host.command(*COMMAND, "run", *arguments, *where, *known, ahead_seconds=ahead_seconds)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment(TMPDIR=str(self.temporary), **variables), stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and all that it printed."""
        return self.process.wait(PATIENCE_SECONDS), self.log.read_text()

    def run(self) -> api.Run:
        (path,) = self.store.iterdir()
        return api.load(path)

    def pid_of(self, name: str) -> int:
        """Return the process id of a participant, on a node that isn't the first."""
        (path,) = self.temporary.glob(f"rigdyno*/*/{name}/pid")
        return int(path.read_text())


def on_both(hosts, folder, *arguments, **variables: str):
    first, second = hosts
    with (
        Node(first, 0, folder, first, *arguments, **variables) as ours,
        Node(second, 1, folder, first, *arguments, **variables) as theirs,
    ):
        endings = [ours.ended(), theirs.ended()]
    assert [code for code, _ in endings] == [0, 0], endings
    return ours.run(), endings


@contextmanager
def both_stepping(folder, **variables: str):
    """Yield both nodes once their ranks are stepping; they would go on for longer than any test waits."""
    arguments = ("resnet50", *SMALL, "--ranks", "1", "--budget", "20m")
    with (
        two_hosts() as (first, second),
        Node(first, 0, folder, first, *arguments, **variables) as ours,
        Node(second, 1, folder, first, "resnet50") as theirs,
    ):
        until(lambda: steps_began(ours.store, rows=3), "the ranks were stepping")
        yield ours, theirs


def only_record(node: Node):
    (path,) = node.store.iterdir()
    [record] = records(RunFolder(path))
    return record


def sentence_of(run):
    """Return the closing sentence of the suite; without a power meter there is another one."""
    [sentence] = [each for each in run.view().closing if not each.startswith("No joules")]
    return sentence


@contextmanager
def busy(host, count):
    """Run this many processes that never sleep, on this host's core."""
    hogs = [subprocess.Popen(host.command(sys.executable, "-c", "while True: pass")) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def link_mbit(run):
    """Return the bus bandwidth that the suite measured, in Mbit/s."""
    [sweep] = [each for each in run.measurements if each.spec.workload == "allreduce"]
    *_, largest = sweep.kinds.values()
    return 8 * largest.throughput.value / 1e6


def test_every_participant_of_both_nodes_is_recorded(tmp_path):
    with two_hosts() as hosts:
        run, endings = on_both(hosts, tmp_path, "scaling", *SMALL, "--ranks", "1", "--repeat", "1", "--steps", "3")
    assert all(isinstance(record.outcome, Completed) for record in run.records)
    assert link_mbit(run) > 0
    two = next(each for each in run.measurements if each.spec.workload == "resnet50" and each.spec.nodes == 2)
    assert two.phases is not None
    assert list(two.phases.by_rank) == [0, 1]
    assert "over after 2 cells; the tables are on the first node" in endings[1][1]
    [record] = two.records
    assert [each.id for each in record.participants] == ["rank0", "rank1", "node0", "node1"]
    assert record.exit_codes["node1"] == 0
    assert len(record.nodes) == 2
    assert [path.name for path in (tmp_path / "tmp1").iterdir() if path.name.startswith("rigdyno")] == []
    secret = secret_file(tmp_path).read_text()
    stored = [path for path in (*run.path.rglob("*"), tmp_path / "node0.txt", tmp_path / "node1.txt") if path.is_file()]
    assert not any(secret.encode() in path.read_bytes() for path in stored)


def test_a_slow_link_is_named_with_the_rate_that_it_carries(tmp_path):
    """The kernel limits the link, so a busy machine can only lower its rate.

    94 MB take four seconds on it and computing takes a few tenths: communication stays the largest loss under any load.
    """
    with two_hosts(f"{LINK_MBIT}mbit") as hosts:
        run, _ = on_both(hosts, tmp_path, "scaling", *SMALL, "--ranks", "1", "--repeat", "1", "--steps", "3")
    sentence = sentence_of(run)
    assert re.search(r"gradients 94\.1 MB a step over a link that carries [\d.]+ [kM]bit/s", sentence), sentence
    assert "of the loss is exposed communication" in sentence
    assert 0 < link_mbit(run) < 1.1 * LINK_MBIT  # a burst of 256 kB comes on top of the limit


@pytest.fixture(scope="module")
def with_a_busy_host(tmp_path_factory):
    """Run the scaling suite while three processes keep the second host busy, whose clock is an hour ahead."""
    folder = tmp_path_factory.mktemp("busy")
    arguments = ("scaling", *SMALL, "--ranks", "1", "--repeat", "1", "--steps", "12")
    with (
        two_hosts() as (first, second),
        Node(first, 0, folder, first, *arguments) as alone,
        Node(second, 1, folder, first, "scaling", ahead_seconds=AHEAD_SECONDS) as other,
    ):
        with busy(second, 3):
            until(lambda: len(cell_folders(alone.store)) == 3, "all cells but that of the link were over")
        endings = alone.ended(), other.ended()
    assert [code for code, _ in endings] == [0, 0], endings
    return alone.run()


def test_a_busy_host_is_named(with_a_busy_host):
    sentence = sentence_of(with_a_busy_host)
    assert "rank 1 computes" in sentence
    assert "waiting for it" in sentence


def waiting(run, nodes):
    """Return the share of the time that each node's rank stood in the run queue, by its own sampler."""
    cell = next(
        each for each in run.cells if each.record.spec.nodes == nodes and each.record.spec.workload == "resnet50"
    )
    return [float(np.nanmean(rows["run_queue_wait_share"])) for _, rows in cell.telemetry()]


def blamed(run, nodes):
    found = next(each for each in run.measurements if each.spec.nodes == nodes and each.spec.workload == "resnet50")
    return [reason.sentence for reason in found.validity.reasons if reason.code == "other_tenants"]


def test_only_the_busy_host_is_blamed_although_its_clock_differs(with_a_busy_host):
    """The three processes share the core of the second host, so its rank waits whatever else the machine does.

    Where the whole machine is so busy that the first host's rank had to wait too, that one may be blamed as well.
    """
    [first, second] = waiting(with_a_busy_host, 2)
    assert second > 0.2
    [said] = blamed(with_a_busy_host, 2)
    assert said.startswith("node 1: other tenants kept ") or first > QUIET
    [alone] = waiting(with_a_busy_host, 1)
    assert not blamed(with_a_busy_host, 1) or alone > QUIET


def test_the_clocks_were_compared_before_and_after(with_a_busy_host):
    record = next(record for record in with_a_busy_host.records if record.spec.nodes == 2)
    assert [(pair.clock, pair.when) for pair in record.clocks] == [("node1", "start"), ("node1", "end")]
    for pair in record.clocks:
        assert pair.uncertainty_ns > 0
        assert abs(pair.offset_ns - AHEAD_SECONDS * 10**9) <= pair.uncertainty_ns


def test_a_rank_that_is_lost_on_another_host_is_named(tmp_path):
    with both_stepping(tmp_path) as (ours, theirs):
        os.kill(theirs.pid_of("rank1"), signal.SIGKILL)
        code, _ = ours.ended()
        assert code == 1
        assert theirs.ended()[0] == 0
        (cell,) = cell_folders(ours.store)
        none_left(cell)
    lost = "rank 1 was lost: SIGKILL: killed from outside"
    assert only_record(ours).outcome == Failed(kind="signal", phase="measure", message=lost)


def test_a_node_that_dies_is_a_recorded_outcome_and_can_be_resumed(tmp_path):
    with both_stepping(tmp_path) as (ours, theirs):
        ranks = [theirs.pid_of("rank1"), theirs.pid_of("node1")]
        theirs.process.send_signal(signal.SIGKILL)
        code, log = ours.ended()
        assert code == 1, log
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), "its ranks were gone")
        (cell,) = cell_folders(ours.store)
        none_left(cell)
    outcome = only_record(ours).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind == "node_lost"
    assert outcome.message.startswith("node 1 is gone")  # and not by the name of the machine
    assert "1 of 1 cells are not finished; go on with: rigdyno run --resume" in " ".join(log.split())


def test_a_node_that_hangs_is_named_when_the_time_limit_is_over(tmp_path):
    """All of its processes are stopped, as on a machine that swaps or has lost its link."""
    limit = TimeLimit(tmp_path)
    with both_stepping(tmp_path, PYTHONPATH=limit.python_path) as (ours, theirs):
        stopped = [theirs.process.pid, theirs.pid_of("rank1")]
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            limit.expire()
            code, log = ours.ended()
            assert code == 1, log
            assert "Traceback" not in log
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):  # a rank ends with its parent
                    os.kill(pid, signal.SIGKILL)
    outcome = only_record(ours).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind == "node_lost"
    assert "node 1 " in outcome.message


def test_a_first_node_that_is_killed_leaves_no_rank_on_the_other(tmp_path):
    with both_stepping(tmp_path) as (ours, theirs):
        ranks = [theirs.pid_of("rank1"), theirs.pid_of("node1")]
        ours.process.send_signal(signal.SIGKILL)
        code, log = theirs.ended()
        assert code == 2
        assert "rigdyno: the first node at" in log
        assert "Traceback" not in log
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), "its ranks were gone")


def test_an_address_of_another_host_is_one_line(tmp_path):
    with two_hosts() as (host, other):
        place = ["--nodes", "2", "--node-rank", "0", "--rendezvous", f"{other.address}:{PORT}"]
        known = ["--secret-file", str(secret_file(tmp_path)), "--out", str(tmp_path / "runs")]
        answer = subprocess.run(
            host.command(*COMMAND, "run", "allreduce", *place, *known),
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    assert answer.returncode == 2
    [said] = [line for line in answer.stderr.splitlines() if line.startswith("rigdyno: ")]
    assert f"can't open {other.address}:{PORT}" in said
    assert "Traceback" not in answer.stderr
    assert not (tmp_path / "runs").exists()
