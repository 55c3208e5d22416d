"""Two nodes over a real network stack: what the scaling suite says of the link and of a slow host, what becomes of a
node that dies or hangs, and clocks that don't agree."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hosts import two_hosts

from driving import COMMAND, cell_folders, environment, none_left, records, steps_began, until
from rigdyno import api
from rigdyno.schema.record import Completed, Failed
from rigdyno.store.folder import RunFolder

PATIENCE_SECONDS = 600.0
PORT = 29517
QUIET = 0.02  # of the time in the run queue: less is nobody's fault
SMALL = ["--set", "batch_size=2", "--set", "image_size=64", "--set", "classes=10"]


def secret_file(folder: Path) -> Path:
    path = folder / "run.secret"
    if not path.exists():
        path.touch(0o600)
        path.write_text(secrets.token_hex(32))
    return path


class Node:
    """`rigdyno run` on one host, with its own folders."""

    def __init__(self, host, number, folder: Path, first, *arguments: str, ahead_seconds: int = 0):
        self.store, self.temporary = folder / f"runs{number}", folder / f"tmp{number}"
        self.temporary.mkdir()
        where = ["--nodes", "2", "--node-rank", str(number), "--rendezvous", f"{first.address}:{PORT}"]
        known = ["--secret-file", str(secret_file(folder)), "--out", str(self.store)]
        self.log = folder / f"node{number}.txt"
        command = host.command(*COMMAND, "run", *arguments, *where, *known, ahead_seconds=ahead_seconds)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment(TMPDIR=str(self.temporary)), stdout=log, stderr=subprocess.STDOUT
            )

    def ended(self) -> tuple[int, str]:
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        finally:
            self.process.kill()
        return code, self.log.read_text()

    def run(self) -> api.Run:
        (path,) = self.store.iterdir()
        return api.load(path)

    def pid_of(self, name: str) -> int:
        """Of a participant on a node that isn't the first."""
        (path,) = self.temporary.glob(f"rigdyno*/*/{name}/pid")
        return int(path.read_text())


def on_both(hosts, folder, *arguments):
    nodes = [Node(host, number, folder, hosts[0], *arguments) for number, host in enumerate(hosts)]
    endings = [node.ended() for node in nodes]
    assert [code for code, _ in endings] == [0, 0], endings
    return nodes[0].run(), endings


@contextmanager
def both_stepping(folder):
    with two_hosts() as (first, second):
        ours = Node(first, 0, folder, first, "resnet50", *SMALL, "--ranks", "1", "--budget", "5m")
        theirs = Node(second, 1, folder, first, "resnet50")
        try:
            until(lambda: steps_began(ours.store, rows=3), "the ranks were stepping")
            yield ours, theirs
        finally:
            for node in (ours, theirs):
                node.process.kill()


def only_record(node: Node):
    (path,) = node.store.iterdir()
    [record] = records(RunFolder(path))
    return record


def sentence_of(run):
    """The suite's own; without a meter another one says so."""
    [sentence] = [each for each in run.view().closing if not each.startswith("No joules")]
    return sentence


@contextmanager
def busy(host, count):
    """So many processes that never sleep, on this host's core."""
    hogs = [subprocess.Popen(host.command(sys.executable, "-c", "while True: pass")) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def test_a_quick_link_is_not_blamed_and_every_participant_is_there(tmp_path):
    with two_hosts() as hosts:
        run, endings = on_both(hosts, tmp_path, "scaling", *SMALL, "--ranks", "1", "--repeat", "1", "--steps", "20")
    assert all(isinstance(record.outcome, Completed) for record in run.records)
    assert "over a link" not in sentence_of(run)
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


def test_a_link_of_100_mbit_is_named_with_what_it_carries(tmp_path):
    with two_hosts("100mbit") as hosts:
        run, _ = on_both(hosts, tmp_path, "scaling", *SMALL, "--ranks", "1", "--repeat", "1", "--steps", "6")
    sentence = sentence_of(run)
    assert "gradients 94.1 MB a step over a link that carries 9" in sentence
    assert "Mbit/s" in sentence
    assert "of the loss is exposed communication" in sentence


@pytest.fixture(scope="module")
def with_a_busy_host(tmp_path_factory):
    """The second host is busy with something else, and its clock is an hour ahead."""
    folder = tmp_path_factory.mktemp("busy")
    with two_hosts() as (first, second):
        alone = Node(first, 0, folder, first, "scaling", *SMALL, "--ranks", "1", "--repeat", "1", "--steps", "12")
        other = Node(second, 1, folder, first, "scaling", ahead_seconds=3600)
        with busy(second, 3):
            endings = alone.ended(), other.ended()
    assert [code for code, _ in endings] == [0, 0], endings
    return alone.run()


def test_a_host_that_is_busy_with_something_else_is_named(with_a_busy_host):
    sentence = sentence_of(with_a_busy_host)
    assert "rank 1 computes" in sentence
    assert "waiting for it" in sentence


def waiting(run, nodes):
    """The share of the time that each node's rank stood in the run queue, as its own sampler saw it."""
    cell = next(
        each for each in run.cells if each.record.spec.nodes == nodes and each.record.spec.workload == "resnet50"
    )
    return [float(np.nanmean(rows["run_queue_wait_share"])) for _, rows in cell.telemetry()]


def blamed(run, nodes):
    found = next(each for each in run.measurements if each.spec.nodes == nodes and each.spec.workload == "resnet50")
    return [reason.sentence for reason in found.validity.reasons if reason.code == "other_tenants"]


def test_only_the_busy_host_is_blamed_though_its_clock_is_another(with_a_busy_host):
    """Unless the whole machine is so busy that the other one had to wait, too."""
    [first, second] = waiting(with_a_busy_host, 2)
    assert second > 0.2
    assert second > 3 * first
    [said] = blamed(with_a_busy_host, 2)
    assert said.startswith("node 1: other tenants kept ") or first > QUIET
    [alone] = waiting(with_a_busy_host, 1)
    assert not blamed(with_a_busy_host, 1) or alone > QUIET


def test_the_clocks_were_compared_before_and_after(with_a_busy_host):
    record = next(record for record in with_a_busy_host.records if record.spec.nodes == 2)
    assert [(pair.clock, pair.when) for pair in record.clocks] == [("node1", "start"), ("node1", "end")]
    for pair in record.clocks:
        assert abs(pair.offset_ns / 1e9 - 3600) < 5
        assert 0 < pair.uncertainty_ns < 10**9


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


def test_a_node_that_hangs_is_named_after_a_bounded_time(tmp_path):
    """All of its processes stand still, as those of a machine that swaps or lost its link."""
    with two_hosts() as (first, second):
        ours = Node(first, 0, tmp_path, first, "resnet50", *SMALL, "--ranks", "1", "--budget", "6s")
        theirs = Node(second, 1, tmp_path, first, "resnet50")
        try:
            until(lambda: steps_began(ours.store, rows=1), "the ranks were stepping")
            stopped = [theirs.process.pid, theirs.pid_of("rank1")]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            code, log = ours.ended()
            assert code == 1, log
            assert "Traceback" not in log
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):  # a rank goes with its parent
                    os.kill(pid, signal.SIGKILL)
            theirs.process.kill()
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


def test_an_address_that_is_another_s_is_one_line_at_once(tmp_path):
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
