"""Several nodes on which somebody starts the same command: this is the first, and the others find it by its address.

`--rendezvous HOST:PORT` is the one address that is listened on. Nobody is let in who doesn't know the run's secret.
"""

from __future__ import annotations

import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.contracts import Opening, Requirement, Scope
from rigdyno.errors import RigdynoError
from rigdyno.launchers._address import address_of, split_endpoint
from rigdyno.launchers._nodes.messages import Hello, hello
from rigdyno.launchers._nodes.remote import NodeLost, Remote
from rigdyno.launchers._nodes.secret import Sealed, sealed_by_leader, secret_for
from rigdyno.launchers._nodes.session import NodesSession
from rigdyno.launchers._nodes.streams import Disconnected, Frames
from rigdyno.launchers.torchrun import listening_at

JOIN_SECONDS = 120.0  # somebody walks from one node to the next and types
POLL_SECONDS = 0.2
MOST_AT_THE_DOOR = 32  # connections that haven't shown yet who they are
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # a machine that lost its power says nothing

Known = tuple[int, Sealed]  # a node that has proved to know the secret


class NoMeeting(RigdynoError):
    """The nodes didn't find each other, or can't work together."""


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """Several nodes, the same command started on each by hand"""

    requires: ClassVar[tuple[Requirement, ...]] = ()
    scope: ClassVar[Scope] = "nodes"

    def open(self, opening: Opening) -> NodesSession:
        endpoint = opening.reach.rendezvous
        host, port = split_endpoint(endpoint)
        address = address_of(host)
        secret = secret_for(address, opening.secret)
        with _listening(address, port, endpoint) as listener:
            meeting = Meeting(endpoint, opening.nodes, hello(opening.system), opening.say)
            remotes = meeting.gathered(Door(listener, secret))
        return NodesSession(remotes, address, opening.system)


def _listening(address: str, port: int, endpoint: str) -> socket.socket:
    try:
        return listening_at(address, port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise NoMeeting(f"can't open {endpoint}: {reason}; is the address this node's, and free?") from error


def stream_over(connection: socket.socket) -> Frames:
    """At once, however short; and a peer that is gone is found out."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    descriptor = connection.detach()
    return Frames(descriptor, descriptor)


class Door:
    """Whoever knocks proves itself in a thread of its own: one that says nothing keeps nobody else waiting."""

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self._listener, self._secret = listener, secret
        self._known: queue.SimpleQueue[Known] = queue.SimpleQueue()
        self._places = threading.Semaphore(MOST_AT_THE_DOOR)

    def next(self, seconds: float) -> Known | None:
        """Who was let in meanwhile; None if nobody was."""
        if select.select([self._listener], [], [], seconds)[0]:
            with suppress(OSError):
                self._look_at(self._listener.accept()[0])
        with suppress(queue.Empty):
            return self._known.get_nowait()
        return None

    def _look_at(self, connection: socket.socket) -> None:
        if not self._places.acquire(blocking=False):
            connection.close()
            return
        threading.Thread(target=self._ask, args=(stream_over(connection),), daemon=True).start()

    def _ask(self, frames: Frames) -> None:
        try:
            self._known.put(sealed_by_leader(frames, self._secret))
        except Disconnected:
            frames.close()
        finally:
            self._places.release()


class Meeting:
    def __init__(self, endpoint: str, nodes: int, own: Hello, say: Callable[[str], None]) -> None:
        self._endpoint, self._own, self._say = endpoint, own, say
        self._missing = list(range(1, nodes))
        self._nodes, self._joined = nodes, dict[int, Remote]()

    def gathered(self, door: Door) -> list[Remote]:
        """Raises who is missing, or what differs."""
        self._say(f"waiting for {named(self._missing)} at {self._endpoint}")
        deadline = time.monotonic() + JOIN_SECONDS
        try:
            while self._missing:
                if time.monotonic() > deadline:
                    raise NoMeeting(
                        f"{named(self._missing)} did not join at {self._endpoint} within {JOIN_SECONDS:g} s"
                    )
                if (known := door.next(POLL_SECONDS)) is not None:
                    self._let_in(*known)
        except BaseException:
            for remote in self._joined.values():
                remote.refuse("the run did not begin: not all nodes could take part")
            raise
        return [self._joined[node] for node in sorted(self._joined)]

    def _let_in(self, node: int, stream: Sealed) -> None:
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
        left = f", waiting for {named(self._missing)}" if self._missing else ""
        return self._say(f"{remote.with_host()} joined{left}")


def named(nodes: Sequence[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
