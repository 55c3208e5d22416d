"""Tests of nodes that join at a real socket on the loopback interface: which are admitted and which refused."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import msgspec
import pytest
from scripted_nodes import HELLO, a_cell, in_thread

from driving import until
from rigdyno.base.errors import UsageError
from rigdyno.contracts import Opening
from rigdyno.launchers import by_hand
from rigdyno.launchers.by_hand import ByHand, NoMeeting
from rigdyno.runner import node as nodes_of_ours
from rigdyno.runner.node import LeaderLost
from rigdyno.schema.spec import Reach
from support import a_system

SECRET = b"known to all nodes of this run"


@pytest.fixture
def endpoint(monkeypatch):
    """Return an endpoint that is free now, and skip the description of the machine."""
    monkeypatch.setattr(nodes_of_ours, "_system", a_system)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Leading:
    def __init__(self, endpoint, nodes=2, secret=SECRET, said=None):
        self.said = [] if said is None else said
        cell = a_cell(nodes=nodes, ranks=nodes)
        opening = Opening([cell], a_system(), Reach(rendezvous=endpoint), secret, self.said.append)
        self.opened = in_thread(ByHand().open, opening)

    def session(self):
        return self.opened.result(60.0)


def following(endpoint, number, secret=SECRET):
    return in_thread(nodes_of_ours.by_hand, endpoint, number, secret, lambda words: None)


def address(endpoint):
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def test_nodes_join_in_any_order_and_end_with_the_session(endpoint):
    nodes = [following(endpoint, number) for number in (2, 1)]  # before there is anybody to meet
    leading = Leading(endpoint, nodes=3)
    leading.session().close()
    assert [node.result(60.0) for node in nodes] == [0, 0]
    assert leading.said[0] == f"waiting for nodes 1, 2 at {endpoint}"


def test_missing_nodes_are_named_and_the_others_are_refused(endpoint, monkeypatch):
    """The time limit passes once node 2 has joined."""
    said = []
    clock = SimpleNamespace(monotonic=lambda: 1000.0 if any("joined" in words for words in said) else 0.0)
    monkeypatch.setattr("rigdyno.base.clock.time", clock)
    leading = Leading(endpoint, nodes=4, said=said)
    node = following(endpoint, 2)
    with pytest.raises(NoMeeting, match=rf"nodes 1, 3 did not join at {endpoint} within 120 s"):
        leading.session()
    with pytest.raises(LeaderLost, match="the run did not begin"):
        node.result(60.0)


def test_a_wrong_secret_is_refused_and_the_right_node_still_joins(endpoint):
    leading = Leading(endpoint)
    stranger = following(endpoint, 1, b"some other run's secret")
    with pytest.raises(LeaderLost, match="is the secret the same on both"):
        stranger.result(60.0)
    node = following(endpoint, 1)
    leading.session().close()
    assert node.result(60.0) == 0


def test_a_second_node_of_the_same_number_is_refused(endpoint):
    leading = Leading(endpoint, nodes=3)
    first = following(endpoint, 1)
    until(lambda: any("joined" in words for words in leading.said), "the first one joined")
    with pytest.raises(LeaderLost, match="node 1 is here already; is --node-rank right"):
        following(endpoint, 1).result(60.0)
    with pytest.raises(LeaderLost, match="there are 3 nodes"):
        following(endpoint, 7).result(60.0)
    second = following(endpoint, 2)
    leading.session().close()
    assert (first.result(60.0), second.result(60.0)) == (0, 0)


def test_another_version_ends_the_rendezvous_on_both_sides(endpoint, monkeypatch):
    old = msgspec.structs.replace(HELLO, rigdyno="0.0.1")
    monkeypatch.setattr(nodes_of_ours, "make_hello", lambda system: old)
    leading, node = Leading(endpoint), following(endpoint, 1)
    with pytest.raises(NoMeeting, match=r"has rigdyno 0\.0\.1 there"):
        leading.session()
    with pytest.raises(LeaderLost, match=r"turned this node away: .*rigdyno 0\.0\.1 there"):
        node.result(60.0)


def test_silent_connections_do_not_block_a_node(endpoint):
    leading = Leading(endpoint)
    until(lambda: leading.said, "it listened")
    silent = [socket.create_connection(address(endpoint)) for _ in range(by_hand.MOST_PENDING // 2)]
    silent[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    node = following(endpoint, 1)
    leading.session().close()
    assert node.result(60.0) == 0
    for each in silent:
        each.close()


def test_a_leader_without_the_secret_is_not_obeyed(endpoint):
    """It doesn't know the secret, so nothing that it sends is run."""
    with socket.create_server(address(endpoint)) as server:
        node = following(endpoint, 1)
        connection, _ = server.accept()
        with connection:
            greeting = b"rigdyno nodes 1\n" + bytes(32)
            connection.sendall(len(greeting).to_bytes(4, "big") + greeting + b"\n")
            connection.recv(200)
            connection.sendall((32).to_bytes(4, "big") + bytes(32) + b"\n")
            with pytest.raises(LeaderLost, match="doesn't know the run's secret"):
                node.result(60.0)


def test_the_leader_listens_only_at_the_given_address(endpoint):
    leading = Leading(endpoint)
    until(lambda: leading.said, "it listened")
    _, port = address(endpoint)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=60.0)
    node = following(endpoint, 1)
    leading.session().close()
    node.result(60.0)


def test_an_address_beyond_loopback_needs_a_secret():
    with pytest.raises(UsageError, match="must share a secret"):
        nodes_of_ours.by_hand("192.0.2.1:29500", 1, None, print)
    opening = Opening([a_cell()], a_system(), Reach(rendezvous="192.0.2.1:29500"))
    with pytest.raises(UsageError, match="must share a secret"):
        ByHand().open(opening)


def test_an_address_of_another_machine_is_refused_in_one_line():
    opening = Opening([a_cell()], a_system(), Reach(rendezvous="192.0.2.1:29500"), SECRET)
    with pytest.raises(NoMeeting, match=r"can't open 192.0.2.1:29500: .*; is the address this node's, and free"):
        ByHand().open(opening)


def test_a_missing_first_node_is_named(endpoint, monkeypatch):
    monkeypatch.setattr(nodes_of_ours, "JOIN_SECONDS", 0.5)
    with pytest.raises(LeaderLost, match=rf"can't reach the first node at {endpoint} within 0.5 s: connection refused"):
        following(endpoint, 1).result(60.0)
