"""Nodes that meet at a real TCP store on the loopback interface, each in a thread."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rigdyno.contracts import Exit
from rigdyno.launchers import _party
from rigdyno.launchers._address import split_endpoint
from rigdyno.launchers._party import Hello, Leader, Member, NoMeeting, files_to_send, own_address
from rigdyno.schema.spec import RunSpec

LOOPBACK = "127.0.0.1"


@pytest.fixture
def endpoint():
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{probe.getsockname()[1]}"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(_party, "JOIN_SECONDS", 1.0)
    monkeypatch.setattr(_party, "ANSWER_SECONDS", 1.0)


def spec(nodes):
    return RunSpec(workload="resnet50", arrangement="ddp", launcher="torchrun", world_size=nodes, nodes=nodes)


def test_cells_go_out_and_files_come_back(endpoint, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    (theirs / "worker.1.json").write_bytes(b"{}")
    (theirs / "steps.1.rows").write_bytes(bytes(range(256)))
    (theirs / "worker.1.pid").write_text("1")  # means nothing on another node
    (theirs / "spec.json").write_text("{}")

    def member():
        party = Member(endpoint, 1)
        names = []
        for announced in party.cells():
            names.append((announced.name, announced.spec.world_size))
            party.send(announced, files_to_send(theirs), [Exit(-9, 1)])
        return names

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(member)
        leader = Leader(endpoint, 2)
        announced = leader.announce("02-resnet50-x2", spec(2))
        exits = leader.collect(announced, ours)
        leader.close()
        assert told.result(20) == [("02-resnet50-x2", 2)]
    assert exits == [Exit(-9, 1)]
    assert sorted(path.name for path in ours.iterdir()) == ["steps.1.rows", "worker.1.json"]
    assert (ours / "steps.1.rows").read_bytes() == bytes(range(256))


def test_a_cell_for_fewer_nodes_is_left_to_those(endpoint):
    def member(node):
        return [announced.name for announced in Member(endpoint, node).cells()]

    with ThreadPoolExecutor(2) as pool:
        told = [pool.submit(member, node) for node in (1, 2)]
        leader = Leader(endpoint, 3)
        leader.announce("two", spec(2))
        leader.announce("three", spec(3))
        leader.close()
        assert [each.result(20) for each in told] == [["two", "three"], ["three"]]


def test_names_that_lead_elsewhere_are_not_written(endpoint, tmp_path):
    folder = tmp_path / "cells" / "one"
    folder.mkdir(parents=True)
    (folder / "worker.0.json").write_bytes(b"ours")
    hostile = {"../../evil": b"x", "worker.0.json": b"theirs", "record.json": b"x", "steps.1.rows/../../a": b"x"}

    def member():
        party = Member(endpoint, 1)
        for announced in party.cells():
            party.send(announced, hostile, [])

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(member)
        leader = Leader(endpoint, 2)
        leader.collect(leader.announce("one", spec(2)), folder)
        leader.close()
        done.result(20)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["worker.0.json"]
    assert (folder / "worker.0.json").read_bytes() == b"ours"


@pytest.mark.parametrize("name", ["../evil", "/evil", "", "..", "a/b"])
def test_a_cell_whose_name_is_no_folder_is_refused(endpoint, name):
    def member():
        list(Member(endpoint, 1).cells())

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(member)
        leader = Leader(endpoint, 2)  # kept: the store is closed with it
        leader.announce(name, spec(2))
        with pytest.raises(NoMeeting, match="can't be a folder"):
            done.result(20)


def test_nodes_that_do_not_come_are_named(endpoint, impatient):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(Member, endpoint, 2)
        with pytest.raises(NoMeeting, match=r"nodes 1, 3 didn't come to .* within 1 s"):
            Leader(endpoint, 4)


def test_a_first_node_that_does_not_answer(endpoint, impatient):
    with pytest.raises(NoMeeting, match="nobody answers at"):
        Member(endpoint, 1)


def test_a_port_in_use(endpoint, impatient):
    with socket.socket() as taken:
        taken.bind(split_endpoint(endpoint))
        taken.listen()
        with pytest.raises(NoMeeting, match=r"can't open .* is the address this node's, and free\?"):
            Leader(endpoint, 2)


@pytest.mark.parametrize("name", ["rigdyno", "torch", "python"])
def test_other_versions_are_refused_on_both_sides(endpoint, monkeypatch, name):
    versions = {"rigdyno": "1", "torch": "2.13.0", "python": "3.11"}
    answers = {"MainThread": Hello(**versions), "other": Hello(**{**versions, name: "0.9"}, host="beta")}
    monkeypatch.setattr(_party, "hello", lambda: answers[threading.current_thread().name])
    refused = []

    def member():
        try:
            Member(endpoint, 1)
        except NoMeeting as error:
            refused.append(str(error))

    other = threading.Thread(target=member, name="other")
    other.start()
    with pytest.raises(NoMeeting) as refusal:
        Leader(endpoint, 2)
    other.join(20)
    words = f"node 1 (beta) has {name} 0.9 there, {versions[name]} here: nodes must run the same"
    assert str(refusal.value) == words
    assert refused == [words]


def test_a_cell_that_is_given_up_is_given_up_everywhere(endpoint):
    seen = []

    def member():
        party = Member(endpoint, 1)
        for announced in party.cells():
            while not party.is_cancelled(announced):
                time.sleep(0.01)
            seen.append(announced.name)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(member)
        leader = Leader(endpoint, 2)
        leader.cancel(leader.announce("one", spec(2)))
        leader.close()
        done.result(20)
    assert seen == ["one"]


def test_a_node_that_sends_nothing_is_not_waited_for(endpoint, impatient, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(Member, endpoint, 1)
        leader = Leader(endpoint, 2)
        assert leader.collect(leader.announce("one", spec(2)), tmp_path) == []


@pytest.mark.parametrize(
    ("text", "expected"), [("a.example:29500", ("a.example", 29500)), ("[fe80::1]:80", ("fe80::1", 80))]
)
def test_addresses(text, expected):
    assert split_endpoint(text) == expected


def test_the_address_towards_the_first_node():
    assert own_address(f"{LOOPBACK}:9") == LOOPBACK
