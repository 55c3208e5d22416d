"""Starts the ranks of one node once all nodes have exchanged their ports, and stops them all if one fails.

`python -m rigdyno.launchers.nodes.tf_config_agent <cell folder> <process id of the parent> <node>
<address and port where nodes meet> <descriptor of the socket that is bound there, or -> <address of this node>`
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from rigdyno.base.addresses import address_family
from rigdyno.base.clock import Deadline
from rigdyno.launchers.nodes.local import NodeShare
from rigdyno.launchers.nodes.ranks import MEET_SECONDS, listen_at, parse_share, run_ranks, write_exits
from rigdyno.launchers.tf_config import format_tf_config

MOST_BYTES = 1_000_000  # longest message of a node

Endpoints = dict[int, str]  # HOST:PORT by rank


def main(arguments: Sequence[str]) -> int:
    part = parse_share(arguments)
    endpoints = exchange_ports(part, _own_endpoints(part))
    addresses = [endpoints[rank] for rank in sorted(endpoints)]
    return write_exits(part, run_ranks(part, lambda rank: {"TF_CONFIG": format_tf_config(addresses, rank)}))


def _own_endpoints(part: NodeShare) -> Endpoints:
    """Find ports that are free now; the framework binds them a moment later."""
    with ExitStack() as bound:
        sockets = {rank.rank: bound.enter_context(listen_at(part.own_address)) for rank in part.ranks}
        return {
            rank: _endpoint(part.own_address, each.getsockname()[1])
            for rank, each in sockets.items()
            if rank is not None
        }


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def exchange_ports(part: NodeShare, own: Endpoints) -> Endpoints:
    """Return the endpoints of all nodes. Node 0 receives those of the others, and answers with all of them."""
    assert part.meeting is not None
    if part.cell.spec.nodes == 1:
        return own
    deadline = Deadline(MEET_SECONDS)
    is_leader = part.meeting.listening is not None
    return _collect_endpoints(part, own, deadline) if is_leader else _submit_endpoints(part, own, deadline)


def _collect_endpoints(part: NodeShare, own: Endpoints, deadline: Deadline) -> Endpoints:
    assert part.meeting is not None
    endpoints = dict(own)
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket(fileno=part.meeting.listening))
        callers = []
        while len(endpoints) < part.cell.spec.world_size:
            listener.settimeout(max(0.01, deadline.left))
            caller, _ = listener.accept()
            callers.append(opened.enter_context(caller))
            caller.settimeout(max(0.01, deadline.left))
            endpoints |= _receive(caller)
        for caller in callers:
            _send(caller, endpoints)
    return endpoints


def _submit_endpoints(part: NodeShare, own: Endpoints, deadline: Deadline) -> Endpoints:
    assert part.meeting is not None
    with socket.socket(address_family(part.meeting.address)) as caller:
        caller.settimeout(max(0.01, deadline.left))
        caller.connect((part.meeting.address, part.meeting.port))  # node 0 listened before it told this node
        _send(caller, own)
        return _receive(caller)


def _send(stream: socket.socket, endpoints: Endpoints) -> None:
    stream.sendall(json.dumps(sorted(endpoints.items())).encode() + b"\n")


def _receive(stream: socket.socket) -> Endpoints:
    with stream.makefile("rb") as lines:
        return {int(rank): str(endpoint) for rank, endpoint in json.loads(lines.readline(MOST_BYTES))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
