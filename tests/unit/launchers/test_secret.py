"""Tests of authentication: no node joins without the run's secret, and no recorded message is accepted."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from rigdyno.base.errors import BadValue, UsageError
from rigdyno.launchers.nodes.children import SECRET_VARIABLE, worker_environment
from rigdyno.launchers.nodes.streams import (
    Disconnected,
    Frames,
    SealedStream,
    authenticate_leader,
    authenticate_node,
    read_secret,
    require_secret,
)
from rigdyno.schema.spec import RunSpec

SECRET = b"a secret of at least sixteen characters"


def ends():
    ours, theirs = (end.detach() for end in socket.socketpair())
    return Frames(ours, ours), Frames(theirs, theirs)


def shake_hands(leader_secret=SECRET, node_secret=SECRET, node=1):
    """Do the handshake, and return the results or the errors of both ends."""
    ours, theirs = ends()

    def lead():
        try:
            return authenticate_node(ours, leader_secret)
        except Disconnected:
            ours.close()  # as a leader does when it refuses a node
            raise

    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lead)
        try:
            following = authenticate_leader(theirs, node_secret, node)
        except Disconnected as error:
            return leading.exception(), error
        return leading.result(), following


def test_a_node_with_the_secret_is_authenticated():
    (node, leader), follower = shake_hands(node=7)
    assert node == 7
    for number in range(3):
        leader.send(b"do %d" % number)
        assert follower.receive(1.0) == b"do %d" % number
        follower.send(b"done")
        assert leader.receive(1.0) == b"done"


def test_another_secret_is_refused_on_both_ends():
    at_leader, at_node = shake_hands(node_secret=b"something else altogether")
    assert "has another secret" in str(at_leader)
    assert "is the secret the same on both?" in str(at_node)


def test_a_leader_that_replays_the_nodes_proof_is_refused():
    """It doesn't know the secret, and sends the node's own proof back."""
    ours, theirs = ends()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(authenticate_leader, theirs, SECRET, 1)
        ours.send(b"rigdyno nodes 1\n" + os.urandom(32))
        answer = ours.receive(60.0)
        assert answer is not None
        ours.send(answer[-32:])
        with pytest.raises(Disconnected, match="doesn't know the run's secret"):
            following.result()


def test_a_recorded_handshake_is_refused():
    """An old answer of a node doesn't match the new random number."""
    ours, theirs = ends()
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(authenticate_node, ours, SECRET)
        greeting = theirs.receive(60.0)
        assert greeting is not None
        recorded = (1).to_bytes(4, "big") + os.urandom(64)
        theirs.send(recorded)
        with pytest.raises(Disconnected, match="has another secret"):
            leading.result()


@pytest.fixture
def tapped():
    """Return the leader's sealed stream, the bare frames of the other end, and the node's sealed stream over them."""
    ours, theirs = ends()
    key = os.urandom(32)
    return SealedStream(ours, key, "leader"), theirs, SealedStream(theirs, key, "node")


def spied(sealed: SealedStream, content: bytes) -> bytes:
    """Return the message as it is sent."""
    return sealed._tag(sealed._own, sealed._sent, content) + content


def test_a_replayed_message_is_refused(tapped):
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


def test_a_changed_or_missing_message_is_refused(tapped):
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


def test_the_leaders_own_message_is_refused_as_an_answer(tapped):
    leader, wire, _ = tapped
    wire.send(spied(leader, b"hello"))
    with pytest.raises(Disconnected, match="isn't sealed"):
        leader.receive(1.0)


def test_an_unauthenticated_peer_may_send_only_a_few_bytes():
    ours, theirs = ends()
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(authenticate_node, ours, SECRET)
        theirs.send(bytes(100_000))
        with pytest.raises(Disconnected, match="longer than any of ours"):
            leading.result()


class TestReadingTheSecret:
    def test_the_file_takes_precedence_over_the_environment(self, tmp_path):
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
    def test_a_secret_that_is_too_short_or_too_long_is_refused(self, text):
        with pytest.raises(BadValue, match="16 to 4096 characters"):
            read_secret(None, {SECRET_VARIABLE: text})

    def test_a_missing_or_binary_file_is_refused(self, tmp_path):
        with pytest.raises(BadValue, match="no such file or directory; make one with"):
            read_secret(str(tmp_path / "none"))
        (tmp_path / "binary").touch(0o600)
        (tmp_path / "binary").write_bytes(b"\xff" * 40)
        with pytest.raises(BadValue, match="must be text"):
            read_secret(str(tmp_path / "binary"))

    @pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "::1"])
    def test_loopback_needs_no_secret(self, address):
        assert require_secret(address, None) != SECRET
        assert require_secret(address, SECRET) == SECRET

    @pytest.mark.parametrize("address", ["10.0.0.1", "0.0.0.0", "::", "192.168.1.7", "2001:db8::1"])
    def test_other_addresses_need_a_secret(self, address):
        with pytest.raises(UsageError, match="--secret-file"):
            require_secret(address, None)
        assert require_secret(address, SECRET) == SECRET

    def test_workers_do_not_get_the_secret(self, monkeypatch):
        monkeypatch.setenv(SECRET_VARIABLE, "from the environment")
        assert SECRET_VARIABLE not in worker_environment(RunSpec(workload="w"))
