"""How ranks of Horovod find each other over Gloo: a store on the first node, and what each is told of its place."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rigdyno.launchers._address import is_loopback
from rigdyno.launchers._node import MeetingPoint, Part
from rigdyno.launchers.torchrun import interface_at

PATIENCE_SECONDS = 120  # for the others, in any one exchange, as in the arrangement `ddp`


@contextmanager
def rendezvous(listening: int | None) -> Iterator[None]:
    """Horovod's own store, on the socket that was bound for it: by itself it listens on every interface. None: it is
    on another node."""
    if listening is None:
        yield
        return
    server = _server(socket.socket(fileno=listening))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _server(listener: socket.socket) -> Any:
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class OnSocket(RendezvousHTTPServer):  # type: ignore[misc]
        def server_bind(self) -> None:
            self.socket.close()
            self.socket: socket.socket = listener
            self.server_name, self.server_port = listener.getsockname()[:2]

        def server_activate(self) -> None:
            """It listens already."""

    server = OnSocket(listener.getsockname(), RendezvousHandler, False)
    server.init([])
    return server


def trouble_with_name(own_address: str) -> str | None:
    """Gloo listens at the interface that it is told, but Horovod's groups of ranks at the address that this host's own
    name stands for; a name that stands for nothing crashes it."""
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return "this host's own name can't be resolved, and Gloo looks it up; add it to /etc/hosts"
    if is_loopback(own_address) or found == own_address:
        return None
    return (
        f"this host's own name stands for {found}, where Gloo would listen, and other nodes reach it at {own_address}; "
        "change it in /etc/hosts"
    )


def slots_of(part: Part) -> Callable[[int], Mapping[str, str]]:
    """What a rank of this node is told, by its number."""
    assert part.meeting is not None
    meeting, own, nodes = part.meeting, [each.rank for each in part.ranks], part.cell.spec.nodes

    def told(rank: int) -> Mapping[str, str]:
        place = Slot(rank, part.cell.spec.world_size, own.index(rank), len(own), part.node, nodes)
        return {**place.variables(), **common(meeting, part.own_address)}

    return told


class Slot:
    """A rank's place among all, among those of its node, and among those of the same number on other nodes."""

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


def common(meeting: MeetingPoint, own_address: str) -> dict[str, str]:
    interface = interface_at(own_address)
    known = {} if interface is None else {"HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": interface}
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": meeting.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(meeting.port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(PATIENCE_SECONDS),
        # A user who has chosen an interface, such as the quicker of two networks, is not overruled.
        **{name: os.environ.get(name, value) for name, value in known.items()},
    }
