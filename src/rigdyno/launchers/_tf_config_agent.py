"""Starts the ranks of one node once all nodes have told their ports, and ends them all when one of them fails.

`python -m rigdyno.launchers._tf_config_agent <cell folder> <process id of the parent> <node> <address and port where
nodes meet> <descriptor of the socket that is bound there, or -> <address of this node>`
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from rigdyno.launchers._address import family_of
from rigdyno.launchers._node import Part
from rigdyno.launchers._ranks import part_of, ranks_of, told_of
from rigdyno.launchers.tf_config import tf_config
from rigdyno.launchers.torchrun import MEET_SECONDS, listening_at

MOST_BYTES = 1_000_000  # of what a node tells of its ranks

Endpoints = dict[int, str]  # by rank: HOST:PORT


def main(arguments: Sequence[str]) -> int:
    part = part_of(arguments)
    endpoints = met(part, _own_endpoints(part))
    addresses = [endpoints[rank] for rank in sorted(endpoints)]
    return told_of(part, ranks_of(part, lambda rank: {"TF_CONFIG": tf_config(addresses, rank)}))


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
