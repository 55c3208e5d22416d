"""Several nodes on which the user starts the same command: this is node 0, and the others connect to its address.

It listens only at `--rendezvous HOST:PORT`. Only nodes that know the run's secret are admitted.
"""

from __future__ import annotations

import queue
import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.base.addresses import resolve_host, split_endpoint
from rigdyno.base.clock import Deadline
from rigdyno.base.errors import RigdynoError
from rigdyno.contracts import Finds, Launcher, Opening, Scope
from rigdyno.launchers.nodes.messages import Hello, make_hello
from rigdyno.launchers.nodes.ranks import listen_at
from rigdyno.launchers.nodes.remote import NodeLost, Remote
from rigdyno.launchers.nodes.session import NodesSession
from rigdyno.launchers.nodes.streams import Disconnected, Frames, SealedStream, authenticate_node, require_secret

JOIN_SECONDS = 120.0  # time for a person to start the command on each node

POLL_SECONDS = 0.2

MOST_PENDING = 32  # connections that aren't authenticated yet

_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # to notice a machine that lost its power

KnownNode = tuple[int, SealedStream]  # number of an authenticated node, and the stream to it


class NoMeeting(RigdynoError):
    """The nodes didn't connect, or can't work together."""


@dataclass(frozen=True, kw_only=True)
class ByHand(Launcher):
    """Several nodes, the same command started on each by hand"""

    scope: ClassVar[Scope] = "nodes"
    finds_nodes_by: ClassVar[Finds | None] = "rendezvous"

    def open(self, opening: Opening) -> NodesSession:
        endpoint = opening.reach.rendezvous
        host, port = split_endpoint(endpoint)
        address = resolve_host(host)
        secret = require_secret(address, opening.secret)
        with _listen(address, port, endpoint) as listener:
            rendezvous = NodeRendezvous(endpoint, opening.nodes, make_hello(opening.system), opening.say)
            remotes = rendezvous.gather(NodeListener(listener, secret))
        return NodesSession(remotes, address, opening.system)


def _listen(address: str, port: int, endpoint: str) -> socket.socket:
    try:
        return listen_at(address, port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise NoMeeting(f"can't open {endpoint}: {reason}; is the address this node's, and free?") from error


def make_stream(connection: socket.socket) -> Frames:
    """Make a stream that sends short messages at once, and notices a peer that is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    descriptor = connection.detach()
    return Frames(descriptor, descriptor)


class NodeListener:
    """Authenticates each connection in its own thread, so that a silent one doesn't block the others."""

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self._listener, self._secret = listener, secret
        self._known: queue.SimpleQueue[KnownNode] = queue.SimpleQueue()
        self._slots = threading.Semaphore(MOST_PENDING)

    def next(self, seconds: float) -> KnownNode | None:
        """Return the next authenticated node, or None if there is none within the time."""
        if select.select([self._listener], [], [], seconds)[0]:
            with suppress(OSError):
                self._start_authentication(self._listener.accept()[0])
        with suppress(queue.Empty):
            return self._known.get_nowait()
        return None

    def _start_authentication(self, connection: socket.socket) -> None:
        if not self._slots.acquire(blocking=False):
            connection.close()
            return
        threading.Thread(target=self._authenticate, args=(make_stream(connection),), daemon=True).start()

    def _authenticate(self, frames: Frames) -> None:
        try:
            self._known.put(authenticate_node(frames, self._secret))
        except Disconnected:
            frames.close()
        finally:
            self._slots.release()


class NodeRendezvous:
    """Waits until all other nodes have joined."""

    def __init__(self, endpoint: str, nodes: int, own: Hello, say: Callable[[str], None]) -> None:
        self._endpoint, self._own, self._say = endpoint, own, say
        self._missing = list(range(1, nodes))
        self._nodes, self._joined = nodes, dict[int, Remote]()

    def gather(self, listener: NodeListener) -> list[Remote]:
        """Return all other nodes. Raises NoMeeting with the missing nodes, or with what differs."""
        self._say(f"waiting for {format_nodes(self._missing)} at {self._endpoint}")
        deadline = Deadline(JOIN_SECONDS)
        try:
            while self._missing:
                if deadline.passed:
                    raise NoMeeting(
                        f"{format_nodes(self._missing)} did not join at {self._endpoint} within {JOIN_SECONDS:g} s"
                    )
                if (known := listener.next(POLL_SECONDS)) is not None:
                    self._admit(*known)
        except BaseException:
            for remote in self._joined.values():
                remote.refuse("the run did not begin: not all nodes could take part")
            raise
        return [self._joined[node] for node in sorted(self._joined)]

    def _admit(self, node: int, stream: SealedStream) -> None:
        remote = Remote(node, stream, "")
        if node not in self._missing:
            reason = f"node {node} is here already" if node in self._joined else f"there are {self._nodes} nodes"
            self._say(f"turned away a node {node}: {reason}")
            return remote.refuse(f"{reason}; is --node-rank right?")
        try:
            remote.meet(self._own)
        except NodeLost as error:
            remote.close()
            raise NoMeeting(str(error)) from error
        self._missing.remove(node)
        self._joined[node] = remote
        left = f", waiting for {format_nodes(self._missing)}" if self._missing else ""
        return self._say(f"{remote.describe_with_host()} joined{left}")


def format_nodes(nodes: Sequence[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
