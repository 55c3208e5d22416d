"""Tests of a leader and its nodes: what is sent, what comes back, and which messages are refused."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from scripted_nodes import HELLO, ScriptedStarter, a_cell, cell_folder, in_thread, stream_pair

from driving import until
from rigdyno.base.errors import StoreError
from rigdyno.contracts import Exit
from rigdyno.launchers.nodes import remote as remotes_of_ours
from rigdyno.launchers.nodes import session as sessions_of_ours
from rigdyno.launchers.nodes.messages import (
    AskClock,
    Begin,
    ClockIs,
    Ended,
    Hello,
    JoinRefused,
    Piece,
    RunDone,
    ToNode,
    Welcome,
)
from rigdyno.launchers.nodes.remote import NodeLost, Remote
from rigdyno.launchers.nodes.session import NodesSession
from rigdyno.runner import node as nodes_of_ours
from rigdyno.runner.node import LeaderLost, NodeProgram
from support import ManualClock

DECODER = msgspec.msgpack.Decoder(ToNode)


class ScriptedPeer:
    """The other end of a stream, with the scripted messages of a node."""

    def __init__(self, stream):
        self.stream = stream

    def say(self, message):
        self.stream.send(msgspec.msgpack.encode(message))

    def hear(self):
        content = self.stream.receive(60.0)
        assert content is not None
        return DECODER.decode(content)


@pytest.fixture
def scripted(tmp_path):
    """Return a remote node that has joined, and its scripted end."""
    ours, theirs = stream_pair()
    other = ScriptedPeer(theirs)
    other.say(HELLO)
    remote = Remote(1, ours, "beta")
    remote.meet(HELLO)
    assert other.hear() == Welcome(node=1, working_folder=str(Path.cwd()))
    return remote, other


def begun(scripted, tmp_path, cell=None):
    remote, other = scripted
    remote.begin(1, cell or a_cell(), cell_folder(tmp_path / "cell", a_cell()), "10.0.0.1", 99)
    assert isinstance(other.hear(), Begin)
    return remote, other


def test_a_first_node_that_cannot_begin_reports_why(scripted, tmp_path):
    remote, other = begun(scripted, tmp_path)
    other.say(RunDone(number=1, trouble="could not begin: the disk is full"))
    with pytest.raises(NodeLost, match=r"node 1 \(beta\) could not begin: the disk is full"):
        remote.wait_for_meeting()


def test_a_host_name_is_not_stored(scripted, tmp_path):
    remote, other = begun(scripted, tmp_path)
    remote.hello = msgspec.structs.replace(remote.hello, host="cn042.cluster")
    other.say(RunDone(number=1, trouble="srun: error: cn042: task 0:\x1b[1m Killed\n" + "x" * 1000))
    with pytest.raises(NodeLost) as lost:
        remote.wait_for_meeting()
    assert "its host: task 0: [1m Killed" in str(lost.value)
    assert "cn042" not in str(lost.value)
    assert len(str(lost.value)) < 350


def test_a_failed_launcher_is_attributed_to_the_first_rank(scripted, tmp_path):
    remote, other = begun(scripted, tmp_path)
    other.say(RunDone(number=1, exits=(Ended(code=1), Ended(code=0, participant="node1"))))
    remote.listen_for(60.0)
    assert remote.exits() == [Exit(0, "node1"), Exit(1, "rank1")]
    remote.forget()
    assert remote.exits() == []


def test_files_are_joined_from_pieces_and_foreign_exits_are_ignored(scripted, tmp_path):
    remote, other = begun(scripted, tmp_path)
    for content in (b"one ", b"two"):
        other.say(Piece(number=1, participant="rank1", file="steps.rows", content=content))
    other.say(Piece(number=1, participant="node1", file="launcher.log", content=b""))
    other.say(RunDone(number=1, exits=(Ended(code=-9, participant="rank1"), Ended(code=0, participant="rank0"))))
    while remote.done is None:
        remote.listen_for(60.0)
    assert (tmp_path / "cell" / "rank1" / "steps.rows").read_bytes() == b"one two"
    assert (tmp_path / "cell" / "node1" / "launcher.log").read_bytes() == b""
    assert remote.exits() == [Exit(-9, "rank1")]  # rank0 isn't on this node


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Piece(number=1, participant="rank0", file="steps.rows", content=b"x"), "isn't one of its own participants"),
        (Piece(number=1, participant="node0", file="telemetry.rows", content=b"x"), "isn't one of its own"),
        (Piece(number=1, participant="rank1", file="../../head.json", content=b"x"), "which no participant leaves"),
        (Piece(number=1, participant="rank1", file="record.json", content=b"x"), "which no participant leaves"),
        (Piece(number=1, participant="rank1", file="launcher.json", content=b"x"), "which no participant leaves"),
        (Piece(number=2, participant="rank1", file="steps.rows", content=b"x"), "isn't under way"),
        (RunDone(number=0), "isn't under way"),
        (HELLO, "out of turn"),
        (ClockIs(now_ns=5), "out of turn"),
    ],
)
def test_a_message_that_a_node_may_not_send_ends_the_cell_and_writes_nothing(scripted, tmp_path, message, words):
    remote, other = begun(scripted, tmp_path)
    other.say(message)
    with pytest.raises(NodeLost, match=words) as lost:
        remote.listen_for(60.0)
    assert str(lost.value).startswith("node 1 (beta) ")
    assert "\n" not in str(lost.value)
    assert {path.name for path in (tmp_path / "cell").rglob("*")} == {"spec.json"}


@pytest.mark.parametrize(
    "content",
    [b"", b"\xc1", b"\x80", b"\x81\xa4type\xa3xxx", b"[" * 5000, msgspec.msgpack.encode({"type": "piece", "number": 1}),
     msgspec.msgpack.encode({"type": "piece", "number": 1, "participant": "../x", "file": "a", "content": b""})],
)  # fmt: skip
def test_an_unreadable_message_is_one_line(scripted, tmp_path, content):
    remote, other = begun(scripted, tmp_path)
    other.stream.send(content)
    with pytest.raises(NodeLost, match="sends a message that can't be read"):
        remote.listen_for(60.0)


def test_too_many_bytes_are_refused(scripted, tmp_path, monkeypatch):
    monkeypatch.setattr(remotes_of_ours, "MOST_RETURNED_BYTES", 100)
    remote, other = begun(scripted, tmp_path)
    for _ in range(2):
        other.say(Piece(number=1, participant="rank1", file="steps.rows", content=b"123456"))
    remote.listen_for(60.0)
    with pytest.raises(NodeLost, match="more than 100 bytes"):
        remote.listen_for(60.0)


def test_a_version_difference_is_named_on_both_ends(tmp_path):
    ours, theirs = stream_pair()
    other = ScriptedPeer(theirs)
    other.say(msgspec.structs.replace(HELLO, torch="1.0", host="old"))
    with pytest.raises(NodeLost, match=r"node 2 \(old\) has torch 1.0 there, .* here: nodes must run the same"):
        Remote(2, ours, "").meet(HELLO)
    refused = other.hear()
    assert isinstance(refused, JoinRefused)
    assert "torch 1.0 there" in refused.reason


@pytest.mark.parametrize("ahead_ns", [0, 3_600 * 10**9, -(10**15)])
def test_clocks_are_compared_by_the_fastest_round_trip(scripted, ahead_ns):
    """Each answer takes longer than its question, so only the fastest round trip has a small uncertainty."""
    remote, other = scripted
    clock = remote._clock = ManualClock()
    delays = [0.05, 0.04, 0.02, 0.03, 0.01, 0.06, 0.03, 0.07]

    def answer():
        for delay in delays:
            assert isinstance(other.hear(), AskClock)
            theirs_ns = clock.now_ns() + ahead_ns
            clock.advance(delay)
            other.say(ClockIs(now_ns=theirs_ns))

    thread = threading.Thread(target=answer)
    thread.start()
    pair = remote.compare_clock("start")
    thread.join(60)
    assert (pair.clock, pair.when) == ("node1", "start")
    assert pair.uncertainty_ns == 5_000_000
    assert abs(pair.offset_ns - ahead_ns) <= pair.uncertainty_ns


def test_a_silent_node_is_named_after_a_time_limit(scripted, monkeypatch):
    monkeypatch.setattr(remotes_of_ours, "ANSWER_SECONDS", 0.1)
    remote, _ = scripted
    with pytest.raises(NodeLost, match=r"node 1 \(beta\) gives no answer for 0.1 s"):
        remote.compare_clock("start")


class RealNodes:
    """A leader with two real nodes, each in a thread, and scripted ranks."""

    def __init__(self, folder, monkeypatch, **scripts):
        self.starters = [ScriptedStarter(**scripts.get(name, {})) for name in ("node1", "node2")]
        monkeypatch.setattr(nodes_of_ours, "find_starter", self._of_this_thread)
        self.remotes, self.served = [], []
        for number, starter in enumerate(self.starters, start=1):
            ours, theirs = stream_pair()
            home = folder / f"home{number}"
            home.mkdir()
            self.served.append(in_thread(self._serve, NodeProgram(theirs, home, "the leader", print), starter))
            self.remotes.append(Remote(number, ours, f"host{number}"))
        for remote in self.remotes:
            remote.meet(HELLO)
        self.local = ScriptedStarter(**scripts.get("node0", {}))
        monkeypatch.setattr(sessions_of_ours, "find_starter", self.local.for_cell)
        self.session = NodesSession(self.remotes, "127.0.0.1", HELLO.system)

    _own = threading.local()

    def _serve(self, node, starter):
        self._own.starter = starter
        node.join(HELLO)
        return node.serve()

    def _of_this_thread(self, _cell):
        return self._own.starter


CELL = a_cell(nodes=3, ranks=3)
FILES = {"steps.rows": b"rows", "report.json": b"{}", "pid": b"1"}


def test_a_cell_runs_on_all_nodes_and_all_files_come_back(tmp_path, monkeypatch):
    files = {"files": FILES}
    nodes = RealNodes(tmp_path, monkeypatch, node0=files, node1=files, node2=files)
    for number in (1, 2):
        folder = cell_folder(tmp_path / f"cell{number}", CELL)
        launch = nodes.session.start(CELL, folder)
        assert launch.wait(60.0)
        left = launch.collect()
        assert left.lost is None
        assert {(ended.participant, ended.code) for ended in left.exits} == {(each.id, 0) for each in CELL.participants}
        assert [(pair.clock, pair.when) for pair in left.clocks] == [
            ("node1", "start"), ("node2", "start"), ("node1", "end"), ("node2", "end"),
        ]  # fmt: skip
        assert len(left.nodes) == 3
        for name in ("rank1", "rank2", "node1", "node2"):
            assert {path.name for path in (folder / name).iterdir()} == {"steps.rows", "report.json"}
    nodes.session.close()
    assert [served.result(60.0) for served in nodes.served] == [2, 2]


def test_a_cell_of_fewer_nodes_does_not_involve_the_others(tmp_path, monkeypatch):
    nodes = RealNodes(tmp_path, monkeypatch)
    cell = a_cell(nodes=2, ranks=2)
    launch = nodes.session.start(cell, cell_folder(tmp_path / "cell", cell))
    assert launch.wait(60.0)
    assert {ended.participant for ended in launch.collect().exits} == {"rank0", "rank1", "node0", "node1"}
    nodes.session.close()
    assert [served.result(60.0) for served in nodes.served] == [1, 0]


def test_a_disconnected_node_is_lost_and_the_others_are_stopped(tmp_path, monkeypatch):
    still = {"ends": False}
    nodes = RealNodes(tmp_path, monkeypatch, node0=still, node1=still)
    ours, theirs = stream_pair()
    nodes.remotes[1]._stream = ours
    scripted = ScriptedPeer(theirs)

    def answer():
        for _ in range(8):
            scripted.hear()
            scripted.say(ClockIs(now_ns=1))
        scripted.hear()
        theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    launch = nodes.session.start(CELL, cell_folder(tmp_path / "cell", CELL))
    assert launch.wait(60.0)
    thread.join()
    left = launch.collect()
    assert left.lost == "node 2 (host2) is gone"
    assert left.lost_kind == "node_lost"
    assert nodes.local.launches[0].stopped
    assert nodes.starters[0].launches[0].stopped
    again = nodes.session.start(CELL, cell_folder(tmp_path / "next", CELL))
    assert again.wait(0.0)
    assert again.collect().lost is not None


def time_passes_once(condition, monkeypatch):
    """Give the leader a clock that jumps ahead once the condition holds: every limit has passed then."""
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (1000.0 if condition() else 0.0))
    monkeypatch.setattr(sessions_of_ours, "time", clock)
    monkeypatch.setattr(remotes_of_ours, "time", clock)


def test_ranks_that_do_not_end_are_named_after_a_time_limit(tmp_path, monkeypatch):
    nodes = RealNodes(tmp_path, monkeypatch, node2={"ends": False})
    launch = nodes.session.start(CELL, cell_folder(tmp_path / "cell", CELL))
    time_passes_once(lambda: launch._first_over is not None and launch.remotes[0].done is not None, monkeypatch)
    until(lambda: launch.wait(0.01), "the last node was given up")
    left = launch.collect()
    assert left.lost == "node 2 (host2) didn't end within 60 s after the ranks of another node had"
    assert nodes.starters[1].launches[0].stopped


def test_a_failed_rank_is_the_outcome_while_others_wait_for_it(tmp_path, monkeypatch):
    """This happens if a package is missing on one node: the others wait for its rank, and are then stopped."""
    monkeypatch.setattr(sessions_of_ours, "LAST_SECONDS", 0.05)
    failed = {"exits": [Exit(1, "rank2"), Exit(0, "node2")], "files": FILES}
    nodes = RealNodes(tmp_path, monkeypatch, node0={"ends": False}, node1={"ends": False}, node2=failed)
    launch = nodes.session.start(CELL, cell_folder(tmp_path / "cell", CELL))
    until(lambda: launch.wait(0.01), "the others were stopped")
    left = launch.collect()
    assert left.lost is None
    assert Exit(1, "rank2") in left.exits
    assert nodes.local.launches[0].stopped
    assert nodes.starters[0].launches[0].stopped


def test_stopping_a_cell_stops_all_nodes_and_brings_its_files(tmp_path, monkeypatch):
    still = {"ends": False, "files": FILES}
    nodes = RealNodes(tmp_path, monkeypatch, node0=still, node1=still, node2=still)
    folder = cell_folder(tmp_path / "cell", CELL)
    launch = nodes.session.start(CELL, folder)
    launch.stop()
    left = launch.collect()
    assert left.lost is None
    assert all(starter.launches[0].stopped for starter in (nodes.local, *nodes.starters))
    assert (folder / "rank2" / "steps.rows").read_bytes() == b"rows"


def test_a_node_that_cannot_begin_ends_the_session_with_its_reason(tmp_path, monkeypatch):
    full = StoreError("can't write /tmp: the disk is full")
    nodes = RealNodes(tmp_path, monkeypatch, node0={"ends": False}, node1={"ends": False}, node2={"error": full})
    launch = nodes.session.start(CELL, cell_folder(tmp_path / "cell", CELL))
    assert launch.wait(60.0)
    assert "node 2 (host2) could not begin: can't write /tmp: the disk is full" in str(launch.collect().lost)


def test_an_interrupted_node_sends_its_files_and_reports_it(tmp_path, monkeypatch):
    """A batch system interrupts a node like this when it ends the job."""
    still = {"ends": False, "files": FILES}
    nodes = RealNodes(tmp_path, monkeypatch, node0=still, node1=still, node2=still)

    def interrupted(node):
        if node._number == 2 and node._launch is not None:
            raise KeyboardInterrupt
        return sleep(node)

    sleep = NodeProgram._sleep
    monkeypatch.setattr(NodeProgram, "_sleep", interrupted)
    folder = cell_folder(tmp_path / "cell", CELL)
    launch = nodes.session.start(CELL, folder)
    assert launch.wait(60.0)
    assert launch.collect().lost == "node 2 (host2) was told to stop"
    assert (folder / "rank2" / "steps.rows").read_bytes() == b"rows"


def test_ranks_are_stopped_when_the_leader_is_gone(tmp_path, monkeypatch):
    still = {"ends": False}
    nodes = RealNodes(tmp_path, monkeypatch, node0=still, node1=still, node2=still)
    launch = nodes.session.start(CELL, cell_folder(tmp_path / "cell", CELL))
    assert not launch.wait(0.0)
    for remote in nodes.remotes:
        remote.close()
    for served in nodes.served:
        with pytest.raises(LeaderLost, match="the leader is gone"):
            served.result(60.0)
    assert all(starter.launches[0].stopped for starter in nodes.starters)
    launch.local.stop()


@pytest.mark.parametrize("message", [Welcome(node=1, working_folder="/"), Hello])
def test_a_leader_that_breaks_the_protocol_is_left(tmp_path, message):
    ours, theirs = stream_pair()
    node = NodeProgram(theirs, tmp_path, "the leader", print)
    ours.send(msgspec.msgpack.encode(Welcome(node=1, working_folder="/")))
    node.join(HELLO)
    ours.send(msgspec.msgpack.encode(message if message is not Hello else HELLO))
    with pytest.raises(LeaderLost, match=r"out of turn|can't be read"):
        node.serve()
