"""Starts the ranks of one node once all nodes have told their ports, and ends them all when one of them fails.

`python -m rigdyno.launchers._tf_config_agent <cell folder> <process id of the parent> <node> <address and port where
nodes meet> <descriptor of the socket that is bound there, or -> <address of this node>`
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from rigdyno.launchers._address import family_of
from rigdyno.launchers._node import WORKER, MeetingPoint, Part
from rigdyno.launchers.tf_config import tf_config
from rigdyno.launchers.torchrun import MEET_SECONDS, listening_at, node_folder
from rigdyno.processes import child_command, die_with_parent
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.spec import Cell

MOST_BYTES = 1_000_000  # of what a node tells of its ranks
POLL_SECONDS, GRACE_SECONDS = 0.05, 2.0

Endpoints = dict[int, str]  # by rank: HOST:PORT


def main(arguments: Sequence[str]) -> int:
    folder, parent_pid, node, address, port, listening, own_address = arguments
    die_with_parent(int(parent_pid))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cell = msgspec.json.decode(CellFolder(Path(folder)).spec.read_bytes(), type=Cell)
    meeting = MeetingPoint(address, int(port), None if listening == "-" else int(listening))
    part = Part(cell, Path(folder), int(node), meeting, own_address)
    endpoints = met(part, _own_endpoints(part))
    ended = _ranks_of(part, [endpoints[rank] for rank in sorted(endpoints)])
    bad = [(rank, code) for rank, code in ended if code != 0]
    if bad:
        node_folder(part).launcher_exits.write_text(json.dumps(bad))
    return 1 if bad else 0


def _own_endpoints(part: Part) -> Endpoints:
    """Ports that are free now; the framework binds them itself, a moment later."""
    with ExitStack() as bound:
        sockets = {rank.rank: bound.enter_context(listening_at(part.own_address)) for rank in part.ranks}
        return {
            rank: _endpoint(part.own_address, each.getsockname()[1])
            for rank, each in sockets.items()
            if rank is not None
        }


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def met(part: Part, own: Endpoints) -> Endpoints:
    """Those of all nodes. The first node hears all others, and answers with the whole."""
    assert part.meeting is not None
    if part.cell.spec.nodes == 1:
        return own
    deadline = time.monotonic() + MEET_SECONDS
    return _heard(part, own, deadline) if part.meeting.listening is not None else _told(part, own, deadline)


def _heard(part: Part, own: Endpoints, deadline: float) -> Endpoints:
    assert part.meeting is not None
    everybody = dict(own)
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket(fileno=part.meeting.listening))
        callers = []
        while len(everybody) < part.cell.spec.world_size:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            caller, _ = listener.accept()
            callers.append(opened.enter_context(caller))
            caller.settimeout(max(0.01, deadline - time.monotonic()))
            everybody |= _received(caller)
        for caller in callers:
            _send(caller, everybody)
    return everybody


def _told(part: Part, own: Endpoints, deadline: float) -> Endpoints:
    assert part.meeting is not None
    with socket.socket(family_of(part.meeting.address)) as caller:
        caller.settimeout(max(0.01, deadline - time.monotonic()))
        caller.connect((part.meeting.address, part.meeting.port))  # it listens since before this node was told of it
        _send(caller, own)
        return _received(caller)


def _send(stream: socket.socket, endpoints: Endpoints) -> None:
    stream.sendall(json.dumps(sorted(endpoints.items())).encode() + b"\n")


def _received(stream: socket.socket) -> Endpoints:
    with stream.makefile("rb") as lines:
        return {int(rank): str(endpoint) for rank, endpoint in json.loads(lines.readline(MOST_BYTES))}


def _ranks_of(part: Part, endpoints: Sequence[str]) -> list[tuple[int, int]]:
    """Each rank with its exit code, in the order that they ended in; once one has failed, the others are stopped."""
    running: dict[int, subprocess.Popen[bytes]] = {}
    ended: list[tuple[int, int]] = []
    try:
        for each in part.ranks:
            assert each.rank is not None
            running[each.rank] = _rank(part, each.rank, each.id, tf_config(endpoints, each.rank))
        while running and not any(code for _, code in ended):
            _wait_for_any()
            ended += _over(running)
    finally:
        ended += stop(running)
    return ended


def _rank(part: Part, rank: int, name: str, config: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "RANK": str(rank), "TF_CONFIG": config}
    with CellFolder(part.folder).participant(name).log.open("ab") as log:
        return subprocess.Popen(
            child_command(WORKER, part.folder, name, python=part.cell.spec.python),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _wait_for_any() -> None:
    """In the kernel where it can: who polls disturbs what is measured."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    else:
        time.sleep(POLL_SECONDS)


def _over(running: dict[int, subprocess.Popen[bytes]]) -> list[tuple[int, int]]:
    """Those that are, taken out."""
    done = [(rank, code) for rank, process in running.items() if (code := process.poll()) is not None]
    for rank, _ in done:
        del running[rank]
    return done


def stop(running: Mapping[int, subprocess.Popen[bytes]]) -> list[tuple[int, int]]:
    """Asks them, then makes them: a rank that waits for a lost one inside the framework doesn't hear."""
    for process in running.values():
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in running.values():
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
    return [(rank, process.wait()) for rank, process in running.items()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
