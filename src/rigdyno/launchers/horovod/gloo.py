"""Lets ranks of Horovod find each other over Gloo: a store on node 0, and environment variables for each rank."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rigdyno.base.addresses import is_loopback
from rigdyno.launchers.nodes.local import MeetingPoint, NodeShare
from rigdyno.launchers.nodes.ranks import find_interface

PATIENCE_SECONDS = 120  # timeout of one exchange, as in the arrangement `ddp`


@contextmanager
def serve_rendezvous(listening: int | None) -> Iterator[None]:
    """Serve Horovod's store on a socket that is bound already: by itself it would listen on every interface. None means
    that the store is on another node."""
    if listening is None:
        yield
        return
    server = _make_server(socket.socket(fileno=listening))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _make_server(listener: socket.socket) -> Any:
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class OnSocket(RendezvousHTTPServer):  # type: ignore[misc]
        def server_bind(self) -> None:
            self.socket.close()
            self.socket: socket.socket = listener
            self.server_name, self.server_port = listener.getsockname()[:2]

        def server_activate(self) -> None:
            """Do nothing: the socket listens already."""

    server = OnSocket(listener.getsockname(), RendezvousHandler, False)
    server.init([])
    return server


def check_host_name(own_address: str) -> str | None:
    """Return what is wrong with this host's name, or None. Gloo listens at a given interface, but Horovod's groups of
    ranks listen at the address of the host's name; a name that can't be resolved crashes it."""
    try:
        resolved = socket.gethostbyname(socket.gethostname())
    except OSError:
        return "this host's own name can't be resolved, and Gloo looks it up; add it to /etc/hosts"
    if is_loopback(own_address) or resolved == own_address:
        return None
    return (
        f"this host's own name resolves to {resolved}, where Gloo would listen, and other nodes reach it at "
        f"{own_address}; change it in /etc/hosts"
    )


def make_rank_variables(part: NodeShare) -> Callable[[int], Mapping[str, str]]:
    """Return a function that gives the environment variables of a rank of this node."""
    assert part.meeting is not None
    meeting, own, nodes = part.meeting, [each.rank for each in part.ranks], part.cell.spec.nodes

    def variables(rank: int) -> Mapping[str, str]:
        slot = RankSlot(rank, part.cell.spec.world_size, own.index(rank), len(own), part.node, nodes)
        return {**slot.variables(), **common_variables(meeting, part.own_address)}

    return variables


class RankSlot:
    """A rank's number among all ranks, among those of its node, and among those of the same number on other nodes."""

    def __init__(self, rank: int, size: int, local: int, locals_: int, node: int, nodes: int) -> None:
        self._numbers = {
            "RANK": rank,
            "SIZE": size,
            "LOCAL_RANK": local,
            "LOCAL_SIZE": locals_,
            "CROSS_RANK": node,
            "CROSS_SIZE": nodes,
        }
        self._node = node

    def variables(self) -> dict[str, str]:
        numbers = {f"HOROVOD_{name}": str(number) for name, number in self._numbers.items()}
        return {**numbers, "HOROVOD_HOSTNAME": f"node{self._node}"}


def common_variables(meeting: MeetingPoint, own_address: str) -> dict[str, str]:
    interface = find_interface(own_address)
    known = {} if interface is None else {"HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": interface}
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": meeting.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(meeting.port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(PATIENCE_SECONDS),
        # A user's choice of an interface, such as the faster of two networks, is kept.
        **{name: os.environ.get(name, value) for name, value in known.items()},
    }
