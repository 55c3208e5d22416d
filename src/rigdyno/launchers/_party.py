"""How the nodes of one run meet: the first one leads, the others are told cell by cell what to run.

They meet at a TCP store of PyTorch's, which the first node opens at the address that all were given. Specifications go
out over it, and the few files that a node's ranks leave behind come back: nodes need no disk in common.
"""

from __future__ import annotations

import platform
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rigdyno import __version__
from rigdyno.contracts import Exit
from rigdyno.errors import RigdynoError
from rigdyno.launchers._address import split_endpoint
from rigdyno.schema.spec import RunSpec

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

JOIN_SECONDS = 120.0  # somebody walks from one node to the next and types
ANSWER_SECONDS = 60.0  # for a node to send what its ranks left behind, once our own are done
POLL_SECONDS = 1.0
_FILES = re.compile(r"(worker\.\d+\.(json|log)|(steps|phases)\.\d+\.rows|torchrun\.(json|log))")


class NoMeeting(RigdynoError):
    """The nodes didn't find each other, or can't work together."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What must be the same on all nodes, and who it is."""

    rigdyno: str
    torch: str
    python: str
    host: str = ""

    def differs_from(self, other: Hello) -> str | None:
        for name in ("rigdyno", "torch", "python"):
            if getattr(self, name) != getattr(other, name):
                return f"{name} {getattr(self, name)} there, {getattr(other, name)} here"
        return None


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """One cell that all nodes take part in."""

    number: int
    name: str
    spec: RunSpec
    port: int  # where the ranks of this cell meet, on the first node


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[str, ...]
    exits: tuple[tuple[int, int], ...]  # rank and code of those that ended badly


def hello() -> Hello:
    import torch

    major_minor = ".".join(platform.python_version_tuple()[:2])
    return Hello(rigdyno=__version__, torch=str(torch.__version__), python=major_minor, host=socket.gethostname())


def own_address(endpoint: str) -> str:
    """The address of this node by which it talks to the first one; nothing is sent."""
    host, port = split_endpoint(endpoint)
    with socket.socket(_family(host), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise NoMeeting(f"there is no way from here to {host}: {error.strerror or error}") from error
        return str(probe.getsockname()[0])


class Leader:
    """The first node's end."""

    def __init__(
        self,
        endpoint: str,
        nodes: int,
        waiting: Callable[[str], None] = lambda words: None,
        why_not_coming: Callable[[int], str | None] = lambda node: None,
    ) -> None:
        """`why_not_coming`: asked for a node that hasn't come, where somebody may know."""
        self.endpoint, self.nodes = endpoint, nodes
        self._cells = 0
        self._store = _opened(endpoint)
        self._gather(waiting, why_not_coming)

    def _gather(self, waiting: Callable[[str], None], why_not_coming: Callable[[int], str | None]) -> None:
        missing, own = list(range(1, self.nodes)), hello()
        waiting(f"waiting for {_nodes(missing)} at {self.endpoint}")
        deadline = time.monotonic() + JOIN_SECONDS
        while missing:
            came = [node for node in missing if self._store.check([f"hello/{node}"])]
            for node in came:
                self._require_alike(node, own)
                missing.remove(node)
            for node in missing:
                reason = why_not_coming(node)
                if reason is not None and not self._store.check([f"hello/{node}"]):
                    raise NoMeeting(f"node {node} doesn't come: {reason}")
            if time.monotonic() > deadline:
                raise NoMeeting(f"{_nodes(missing)} didn't come to {self.endpoint} within {JOIN_SECONDS:g} s")
            if missing and not came:
                time.sleep(POLL_SECONDS / 4)

    def _require_alike(self, node: int, own: Hello) -> None:
        other = msgspec.json.decode(self._store.get(f"hello/{node}"), type=Hello)
        difference = other.differs_from(own)
        if difference is None:
            self._store.set(f"welcome/{node}", "")
            return
        words = f"node {node} ({other.host}) has {difference}: nodes must run the same"
        self._store.set(f"welcome/{node}", words)
        raise NoMeeting(words)

    def announce(self, name: str, spec: RunSpec) -> Announcement:
        self._cells += 1
        host, _ = split_endpoint(self.endpoint)
        announced = Announcement(number=self._cells, name=name, spec=spec, port=_bound(host, 0))
        _put(self._store, f"cell/{announced.number}", msgspec.json.encode(announced))
        return announced

    def cancel(self, announced: Announcement) -> None:
        self._store.set(f"cancel/{announced.number}", "")

    def collect(self, announced: Announcement, folder: Path) -> list[Exit]:
        """Files of the other nodes' ranks, into our own folder; how those ranks ended."""
        exits: list[Exit] = []
        for node in range(1, announced.spec.nodes):
            key = f"sent/{announced.number}/{node}"
            if not _came(self._store, key, ANSWER_SECONDS):
                continue  # its ranks then have no report, and are named for it
            sent = msgspec.json.decode(self._store.get(key), type=Sent)
            exits += [Exit(code, rank) for rank, code in sent.exits]
            for name in sent.files:
                if _FILES.fullmatch(name) and not (folder / name).exists():
                    (folder / name).write_bytes(self._store.get(f"file/{announced.number}/{node}/{name}"))
        return exits

    def close(self) -> None:
        """Stays until all have heard that it is over: the store ends with this process."""
        self._store.set("over", "")
        for node in range(1, self.nodes):
            _came(self._store, f"bye/{node}", 3 * POLL_SECONDS)


class Member:
    """The end of every other node."""

    def __init__(self, endpoint: str, node: int) -> None:
        self.node = node
        self._store = _connected(endpoint)
        _put(self._store, f"hello/{node}", msgspec.json.encode(hello()))
        if not _came(self._store, f"welcome/{node}", JOIN_SECONDS):
            raise NoMeeting(f"the first node at {endpoint} doesn't answer")
        refusal = self._store.get(f"welcome/{node}").decode()
        if refusal:
            raise NoMeeting(refusal)

    def cells(self) -> Iterator[Announcement]:
        """Until the first node says that it is over, or is gone."""
        number = 1
        while True:
            over = self._store.check(["over"])  # asked first: a last cell may come before the answer
            if self._store.check([f"cell/{number}"]):
                announced = msgspec.json.decode(self._store.get(f"cell/{number}"), type=Announcement)
                _require_plain_name(announced.name)
                number += 1
                if self.node < announced.spec.nodes:
                    yield announced
            elif over:
                self._store.set(f"bye/{self.node}", "")
                return
            else:
                time.sleep(POLL_SECONDS / 2)

    def is_cancelled(self, announced: Announcement) -> bool:
        return self._store.check([f"cancel/{announced.number}"])

    def send(self, announced: Announcement, files: Mapping[str, bytes], exits: Sequence[Exit]) -> None:
        for name, content in files.items():
            _put(self._store, f"file/{announced.number}/{self.node}/{name}", content)
        ended = tuple((ended.rank, ended.code) for ended in exits if ended.rank is not None)
        sent = Sent(files=tuple(files), exits=ended)
        _put(self._store, f"sent/{announced.number}/{self.node}", msgspec.json.encode(sent))


def _require_plain_name(name: str) -> None:
    """It becomes a folder here, and comes from another machine."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise NoMeeting(f"the first node names a cell {name!r}, which can't be a folder of its own")


def files_to_send(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if _FILES.fullmatch(path.name)}


def _put(store: TCPStore, key: str, content: bytes) -> None:
    store.set(key, content)  # type: ignore[arg-type]  # bytes are taken as well


def _opened(endpoint: str) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = split_endpoint(endpoint)
    try:
        _bound(host, port)  # the store itself would take two minutes to find out that the address is another node's
        return TCPStore(host, port, None, True, timedelta(seconds=JOIN_SECONDS), wait_for_workers=False)
    except (RuntimeError, ValueError, OSError) as error:
        raise NoMeeting(
            f"can't open {endpoint}: {_first_line(error)}; is the address this node's, and free?"
        ) from error


def _connected(endpoint: str) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = split_endpoint(endpoint)
    try:
        return TCPStore(host, port, None, False, timedelta(seconds=JOIN_SECONDS), wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        raise NoMeeting(f"nobody answers at {endpoint} within {JOIN_SECONDS:g} s: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _came(store: TCPStore, key: str, seconds: float) -> bool:
    with suppress(RuntimeError):  # of a time-out
        store.wait([key], timedelta(seconds=seconds))
        return True
    return False


def _bound(host: str, port: int) -> int:
    """Whether it could be listened at; 0 gives a free port."""
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _nodes(nodes: Sequence[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
