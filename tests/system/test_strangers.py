"""Strangers in the same network: without the secret of the run, they can't make a node run anything and can't add a
figure to a record."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hosts import two_hosts
from process_changes import HeldRanks
from test_nodes import PATIENCE_SECONDS, PORT, SMALL, Node, only_record, secret_file

from driving import COMMAND, environment, steps_began, until
from rigdyno.schema.record import Completed

TAKEN_OVER = "taken_over"
# A PyTorch store at the rendezvous, where an earlier version met: it asks for os.system as a 'workload'.
STORE = f"""
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), None, True, timedelta(seconds=60), wait_for_workers=False)
spec = '{{"workload": "os.py:system", "options": {{"command": "touch {TAKEN_OVER}"}}, "world_size": 2, "nodes": 2}}'
for number in range(3):
    store.set(f"welcome/{{number}}", "")
    store.set(f"cell/{{number}}", '{{"number": %d, "name": "x", "spec": %s, "port": 1}}' % (number, spec))
while True:
    time.sleep(60)
"""
# A leader that speaks our protocol but guesses the secret.
GUESSING_LEADER = f"""
import sys
from rigdyno.launchers.by_hand import _listen, make_stream
from rigdyno.launchers.nodes.messages import Begin, Welcome
from rigdyno.launchers.nodes.streams import authenticate_node
from rigdyno.schema.spec import Cell, RunSpec, assign_participants
import msgspec
listener = _listen(sys.argv[1], int(sys.argv[2]), "here")
while True:
    frames = make_stream(listener.accept()[0])
    try:
        _, stream = authenticate_node(frames, b"guessed: 0123456789")
    except Exception as error:
        print("turned down:", error, flush=True)
        continue
    spec = RunSpec(workload="os.py:system", options={{"command": "touch {TAKEN_OVER}"}}, world_size=2, nodes=2)
    cell = Cell(name="x", spec=spec, participants=assign_participants(2, 2, "cpu"))
    stream.send(msgspec.msgpack.encode(Welcome(node=1, working_folder="/")))
    stream.send(msgspec.msgpack.encode(Begin(number=1, cell=cell, address="127.0.0.1", port=1)))
"""
# A third client that claims to be node 1 and brings its own figures, again and again.
FORGER = """
import os, sys, time
import msgspec
from rigdyno.launchers.by_hand import make_stream
from rigdyno.launchers.nodes.messages import Piece, RunDone
from rigdyno.launchers.nodes.streams import authenticate_leader
import socket
forged = Piece(number=1, participant="rank1", file="report.json", content=b'{"outcome":{"type":"completed"}}')
while True:
    for secret in (b"guessed: 0123456789", b"nobody else is on this machine"):
        try:
            frames = make_stream(socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5))
            stream = authenticate_leader(frames, secret, 1)
            for message in (forged, RunDone(number=1)):
                stream.send(msgspec.msgpack.encode(message))
            print("let in", flush=True)
        except Exception as error:
            print("kept out:", error, flush=True)
    time.sleep(0.2)
"""


def stranger(host, folder: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    with (folder / "stranger.txt").open("w") as log:
        return subprocess.Popen(
            host.command(sys.executable, "-c", program, *arguments), cwd=folder, env=environment(), stdout=log,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


@pytest.mark.parametrize("program", [STORE, GUESSING_LEADER], ids=["a store", "a leader that guesses"])
def test_a_stranger_at_the_rendezvous_cannot_make_a_node_run_anything(tmp_path, program):
    with two_hosts() as (first, second):
        pretending = stranger(first, tmp_path, program, first.address, str(PORT))
        try:
            with Node(second, 1, tmp_path, first, "resnet50") as node:
                code, log = node.ended()
        finally:
            pretending.kill()
            pretending.wait()
    assert code == 2
    assert f"rigdyno: the first node at {first.address}:{PORT} " in log.splitlines()[-1]
    assert "Traceback" not in log
    assert not list(tmp_path.rglob(TAKEN_OVER))


def test_forged_files_are_ignored(tmp_path):
    """The stranger tries from before the nodes meet until the end, on the host of the real node."""
    with (
        two_hosts() as (first, second),
        Node(first, 0, tmp_path, first, "resnet50", *SMALL, "--ranks", "1", "--steps", "3") as ours,
    ):
        trying = stranger(second, tmp_path, FORGER, first.address, str(PORT))
        try:
            until(lambda: "kept out" in (tmp_path / "stranger.txt").read_text(), "the stranger had tried")
            with Node(second, 1, tmp_path, first, "resnet50") as theirs:
                endings = ours.ended(), theirs.ended()
        finally:
            trying.kill()
            trying.wait()
    assert [code for code, _ in endings] == [0, 0], endings
    assert "let in" not in (tmp_path / "stranger.txt").read_text()
    record = only_record(ours)
    assert isinstance(record.outcome, Completed)
    assert record.facts.unit == "image"
    [measurement] = ours.run().measurements
    assert measurement.throughput().value < 10_000


LISTENING = r"""
import re
from pathlib import Path
for name in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if state == "0A":
            address, _, port = local.partition(":")
            print(address, int(port, 16))
"""


def listening(host) -> set[str]:
    """Return the addresses on which any process of this host listens, as the kernel writes them."""
    said = subprocess.run(host.command(sys.executable, "-c", LISTENING), capture_output=True, text=True, check=True)
    return {line.split()[0] for line in said.stdout.splitlines()}


def as_the_kernel_writes(address: str) -> str:
    return socket.inet_aton(address)[::-1].hex().upper()


class Observed(NamedTuple):
    """Observations of a run on two hosts, from its start to its end."""

    addresses: dict[str, set[str]]  # where each host should listen, and where it does
    has_secret: list[str]  # command lines that contain the secret


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """Look at a run while its nodes meet, at least once while its ranks are connected, and until it is over."""
    folder = tmp_path_factory.mktemp("observed")
    secret, held = secret_file(folder).read_text(), HeldRanks(folder)
    with two_hosts() as hosts:
        first, second = hosts
        seen = Observed({as_the_kernel_writes(host.address): set() for host in hosts}, [])

        def look() -> None:
            for host in hosts:
                seen.addresses[as_the_kernel_writes(host.address)].update(listening(host))
            seen.has_secret.extend(line for line in command_lines() if secret in line)

        arguments = ("resnet50", *SMALL, "--ranks", "1", "--steps", "3")
        with Node(first, 0, folder, first, *arguments, PYTHONPATH=held.python_path) as ours:
            until(lambda: listening(first), "the first node listened")
            with Node(second, 1, folder, first, "resnet50", PYTHONPATH=held.python_path) as theirs:
                until(lambda: look() or steps_began(ours.store, rows=1), "the ranks had met")
                look()
                held.release()
                while ours.process.poll() is None:
                    look()
                assert (ours.ended()[0], theirs.ended()[0]) == (0, 0)
    return seen


def command_lines() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield process.read_bytes().decode(errors="replace")


def test_each_host_listens_only_at_its_given_address(observed):
    """This holds for the meeting of the nodes, the store at which the ranks meet, and Gloo."""
    assert all(found == {expected} for expected, found in observed.addresses.items()), observed.addresses


def test_the_secret_is_on_no_command_line(observed):
    assert observed.has_secret == []


def test_without_a_secret_only_the_loopback_interface_is_used(tmp_path):
    with two_hosts() as (first, _):
        place = ["--nodes", "2", "--node-rank", "0", "--rendezvous", f"{first.address}:{PORT}"]
        answer = subprocess.run(
            first.command(*COMMAND, "run", "allreduce", *place, "--out", str(tmp_path / "runs")),
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    assert answer.returncode == 2
    assert "must share a secret" in answer.stderr
    assert "chmod 600 run.secret" in answer.stderr
    assert not (tmp_path / "runs").exists()
