"""Two nodes over a real network stack: what the scaling suite says of the link and of a slow host."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from hosts import two_hosts

from driving import COMMAND, cell_folders, environment, none_left, records, steps_began, until
from rigdyno import api
from rigdyno.schema.record import Completed, Failed
from rigdyno.store.folder import RunFolder

PATIENCE_SECONDS = 600.0
PORT = 29517
SMALL = ["--set", "batch_size=2", "--set", "image_size=64", "--set", "classes=10"]


class Node:
    """`rigdyno run` on one host, with its own folder."""

    def __init__(self, host, number, folder: Path, first, *arguments: str):
        self.store = folder / f"runs{number}"
        where = ["--nodes", "2", "--node-rank", str(number), "--rendezvous", f"{first.address}:{PORT}"]
        self.log = folder / f"node{number}.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                host.command(*COMMAND, "run", *arguments, *where, "--out", str(self.store)),
                cwd=folder, env=environment(), stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def ended(self) -> tuple[int, str]:
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        finally:
            self.process.kill()
        return code, self.log.read_text()

    def run(self) -> api.Run:
        (path,) = self.store.iterdir()
        return api.load(path)


def on_both(hosts, folder, *arguments):
    nodes = [Node(host, number, folder, hosts[0], *arguments) for number, host in enumerate(hosts)]
    endings = [node.ended() for node in nodes]
    assert [code for code, _ in endings] == [0, 0], endings
    return nodes[0].run(), endings


def both_stepping(hosts, folder):
    first, second = hosts
    ours = Node(first, 0, folder, first, "resnet50", *SMALL, "--ranks", "1", "--budget", "5m")
    theirs = Node(second, 1, folder, first, "resnet50")
    until(lambda: steps_began(ours.store, rows=3), "the ranks were stepping")
    return ours, theirs


def sentence_of(run):
    [sentence] = run.view().closing
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


def test_a_quick_link_is_not_blamed_and_every_rank_is_there(tmp_path):
    with two_hosts() as hosts:
        run, endings = on_both(hosts, tmp_path, "scaling", *SMALL, "--ranks", "1", "--repeat", "1", "--budget", "80s")
    assert all(isinstance(record.outcome, Completed) for record in run.records)
    assert "over a link" not in sentence_of(run)
    two = next(each for each in run.measurements if each.spec.workload == "resnet50" and each.spec.nodes == 2)
    assert two.phases is not None
    assert len(two.phases.by_rank) == 2
    assert "over after 2 cells; the tables are on the first node" in endings[1][1]


def test_a_link_of_100_mbit_is_named_with_what_it_carries(tmp_path):
    with two_hosts("100mbit") as hosts:
        run, _ = on_both(hosts, tmp_path, "scaling", *SMALL, "--ranks", "1", "--repeat", "1", "--budget", "150s")
    sentence = sentence_of(run)
    assert "gradients 94.1 MB a step over a link that carries 9" in sentence
    assert "Mbit/s" in sentence
    assert "of the loss is exposed communication" in sentence


def test_a_host_that_is_busy_with_something_else_is_named(tmp_path):
    with two_hosts() as hosts:
        first, second = hosts
        alone = Node(first, 0, tmp_path, first, "scaling", *SMALL, "--ranks", "1", "--repeat", "1", "--budget", "90s")
        other = Node(second, 1, tmp_path, first, "scaling")
        with busy(second, 2):
            assert (alone.ended()[0], other.ended()[0]) == (0, 0)
    assert "rank 1 computes" in sentence_of(alone.run())
    assert "waiting for it" in sentence_of(alone.run())


def test_a_rank_that_is_lost_on_another_host_is_named(tmp_path):
    with two_hosts() as hosts:
        ours, theirs = both_stepping(hosts, tmp_path)
        (worker,) = theirs.store.glob("*/*/worker.1.pid")
        subprocess.run(["kill", "-9", worker.read_text()], check=True)
        code, _ = ours.ended()
        assert code == 1
        assert theirs.ended()[0] == 0
        (cell,) = cell_folders(ours.store)
        none_left(cell)
    (path,) = ours.store.iterdir()
    [record] = records(RunFolder(path))
    lost = "rank 1 was lost: SIGKILL: killed from outside"
    assert record.outcome == Failed(kind="signal", phase="measure", message=lost)


def test_a_first_node_that_is_killed_leaves_no_rank_on_the_other(tmp_path):
    with two_hosts() as hosts:
        ours, theirs = both_stepping(hosts, tmp_path)
        ours.process.send_signal(signal.SIGKILL)
        code, log = theirs.ended()
        assert code == 2
        assert "rigdyno: the first node at" in log
        assert "Traceback" not in log
        (folder,) = theirs.store.glob("*/*/")
        none_left(folder)


def test_an_address_that_is_another_s_is_one_line_at_once(tmp_path):
    with two_hosts() as (host, other):
        place = ["--nodes", "2", "--node-rank", "0", "--rendezvous", f"{other.address}:{PORT}"]
        answer = subprocess.run(
            host.command(*COMMAND, "run", "allreduce", *place, "--out", str(tmp_path / "runs")),
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    assert answer.returncode == 2
    [said] = [line for line in answer.stderr.splitlines() if line.startswith("rigdyno: ")]
    assert f"can't open {other.address}:{PORT}" in said
    assert "Traceback" not in answer.stderr
