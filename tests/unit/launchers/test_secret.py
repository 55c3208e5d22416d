"""Nobody in without the run's secret, and nothing of an old conversation counts in a new one."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from rigdyno.errors import BadValue, UsageError
from rigdyno.launchers._children import SECRET_VARIABLE, worker_environment
from rigdyno.launchers._nodes.secret import Sealed, read_secret, sealed_by_leader, sealed_by_node, secret_for
from rigdyno.launchers._nodes.streams import Disconnected, Frames
from rigdyno.schema.spec import RunSpec

SECRET = b"a secret of at least sixteen characters"


def ends():
    ours, theirs = (end.detach() for end in socket.socketpair())
    return Frames(ours, ours), Frames(theirs, theirs)


def shaken(leader_secret=SECRET, node_secret=SECRET, node=1):
    """Both ends; an exception of either is raised."""
    ours, theirs = ends()

    def lead():
        try:
            return sealed_by_leader(ours, leader_secret)
        except Disconnected:
            ours.close()  # as whoever turns somebody away does
            raise

    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lead)
        try:
            following = sealed_by_node(theirs, node_secret, node)
        except Disconnected as error:
            return leading.exception(), error
        return leading.result(), following


def test_who_knows_it_is_told_apart_and_heard():
    (node, leader), follower = shaken(node=7)
    assert node == 7
    for number in range(3):
        leader.send(b"do %d" % number)
        assert follower.receive(1.0) == b"do %d" % number
        follower.send(b"done")
        assert leader.receive(1.0) == b"done"


def test_another_secret_is_turned_away_on_both_ends():
    at_leader, at_node = shaken(node_secret=b"something else altogether")
    assert "has another secret" in str(at_leader)
    assert "is the secret the same on both?" in str(at_node)


def test_a_leader_that_only_repeats_what_the_node_said_is_found_out():
    """It doesn't know the secret: it sends the node's own proof back."""
    ours, theirs = ends()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(sealed_by_node, theirs, SECRET, 1)
        ours.send(b"rigdyno nodes 1\n" + os.urandom(32))
        answer = ours.receive(60.0)
        assert answer is not None
        ours.send(answer[-32:])
        with pytest.raises(Disconnected, match="doesn't know the run's secret"):
            following.result()


def test_a_recorded_hand_shake_is_worth_nothing():
    """What a node once said doesn't answer the new random number."""
    ours, theirs = ends()
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(sealed_by_leader, ours, SECRET)
        greeting = theirs.receive(60.0)
        assert greeting is not None
        recorded = (1).to_bytes(4, "big") + os.urandom(64)
        theirs.send(recorded)
        with pytest.raises(Disconnected, match="has another secret"):
            leading.result()


@pytest.fixture
def tapped():
    """A sealed leader, and the bare frames of the other end, with the node's own seal beside them."""
    ours, theirs = ends()
    key = os.urandom(32)
    return Sealed(ours, key, "leader"), theirs, Sealed(theirs, key, "node")


def spied(sealed: Sealed, content: bytes) -> bytes:
    """The message as it goes over the wire."""
    return sealed._tag(sealed._own, sealed._sent, content) + content


def test_a_message_that_is_played_back_is_refused(tapped):
    leader, wire, node = tapped
    message = spied(node, b"4,000,000,000 image/s")
    node.send(b"4,000,000,000 image/s")
    assert leader.receive(1.0) == b"4,000,000,000 image/s"
    wire.send(message)
    with pytest.raises(Disconnected, match="isn't sealed"):
        leader.receive(1.0)


@pytest.mark.parametrize("message", [b"", b"short", bytes(32), bytes(32) + b"forged"])
def test_a_message_without_a_seal_is_refused(tapped, message):
    leader, wire, _ = tapped
    wire.send(message)
    with pytest.raises(Disconnected, match="isn't sealed"):
        leader.receive(1.0)


def test_a_changed_bit_or_a_message_left_out_is_refused(tapped):
    leader, wire, node = tapped
    changed = bytearray(spied(node, b"done"))
    changed[-1] ^= 1
    wire.send(bytes(changed))
    with pytest.raises(Disconnected, match="isn't sealed"):
        leader.receive(1.0)
    node._sent += 1  # the first one was held back
    node.send(b"second")
    with pytest.raises(Disconnected, match="isn't sealed"):
        leader.receive(1.0)


def test_the_leader_s_own_words_are_no_answer_of_the_node(tapped):
    leader, wire, _ = tapped
    wire.send(spied(leader, b"hello"))
    with pytest.raises(Disconnected, match="isn't sealed"):
        leader.receive(1.0)


def test_somebody_unknown_may_send_only_a_few_bytes():
    ours, theirs = ends()
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(sealed_by_leader, ours, SECRET)
        theirs.send(bytes(100_000))
        with pytest.raises(Disconnected, match="longer than any of ours"):
            leading.result()


class TestWhereItComesFrom:
    def test_a_file_before_the_environment(self, tmp_path):
        path = tmp_path / "run.secret"
        path.write_text("from the file, long enough\n")
        path.chmod(0o600)
        variables = {SECRET_VARIABLE: "from the environment"}
        assert read_secret(str(path), variables) == b"from the file, long enough"
        assert read_secret(None, variables) == b"from the environment"
        assert read_secret(None, {}) is None

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
    def test_a_file_that_others_may_read_is_refused_with_the_fix(self, tmp_path, mode):
        path = tmp_path / "run.secret"
        path.write_text("from the file, long enough\n")
        path.chmod(mode)
        with pytest.raises(BadValue, match="chmod 600"):
            read_secret(str(path))

    @pytest.mark.parametrize("text", ["short", "x" * 5000])
    def test_one_that_is_too_short_or_too_long(self, text):
        with pytest.raises(BadValue, match="16 to 4096 characters"):
            read_secret(None, {SECRET_VARIABLE: text})

    def test_a_file_that_is_not_there_or_no_text(self, tmp_path):
        with pytest.raises(BadValue, match="no such file or directory; make one with"):
            read_secret(str(tmp_path / "none"))
        (tmp_path / "binary").touch(0o600)
        (tmp_path / "binary").write_bytes(b"\xff" * 40)
        with pytest.raises(BadValue, match="must be text"):
            read_secret(str(tmp_path / "binary"))

    @pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "::1"])
    def test_without_one_only_this_machine_is_met(self, address):
        assert secret_for(address, None) != SECRET
        assert secret_for(address, SECRET) == SECRET

    @pytest.mark.parametrize("address", ["10.0.0.1", "0.0.0.0", "::", "192.168.1.7", "2001:db8::1"])
    def test_elsewhere_it_is_asked_for(self, address):
        with pytest.raises(UsageError, match="--secret-file"):
            secret_for(address, None)
        assert secret_for(address, SECRET) == SECRET

    def test_no_worker_is_told(self, monkeypatch):
        monkeypatch.setenv(SECRET_VARIABLE, "from the environment")
        assert SECRET_VARIABLE not in worker_environment(RunSpec(workload="w"))
