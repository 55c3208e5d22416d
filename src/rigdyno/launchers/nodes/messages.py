"""The messages between the leader of a run and its nodes. Files are sent in pieces, each with its participant."""

from __future__ import annotations

import platform
import socket

import msgspec

from rigdyno import __version__
from rigdyno.schema.spec import Cell, FolderName
from rigdyno.schema.system import System


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Describes a node, with the versions that must be the same on all nodes."""

    rigdyno: str
    torch: str
    python: str
    host: str = ""  # for messages; never stored
    system: System

    def differs_from(self, other: Hello) -> str | None:
        for name in ("rigdyno", "torch", "python"):
            if getattr(self, name) != getattr(other, name):
                return f"{name} {getattr(self, name)} there, {getattr(other, name)} here"
        return None


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    node: int
    working_folder: str  # the leader's working folder, in which a user's own step is looked for


class JoinRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    reason: str


class AskClock(msgspec.Struct, frozen=True, kw_only=True, tag="ask_clock"):
    pass


class ClockIs(msgspec.Struct, frozen=True, kw_only=True, tag="clock"):
    now_ns: int


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """Starts a cell on the node."""

    number: int
    cell: Cell
    address: str = ""  # where the ranks meet; empty: the node chooses it, and answers with it
    port: int = 0


class RendezvousInfo(msgspec.Struct, frozen=True, kw_only=True, tag="meeting"):
    number: int
    address: str
    port: int


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    number: int


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """A piece of a file of one of the node's participants."""

    number: int
    participant: FolderName
    file: str
    content: bytes


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    participant: FolderName | None = None


class RunDone(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    number: int
    exits: tuple[Ended, ...] = ()
    out_of_memory: bool = False  # the kernel killed a process because memory ran out
    trouble: str = ""  # why the node couldn't start its share, or leaves the run


class Over(msgspec.Struct, frozen=True, kw_only=True, tag="over"):
    pass


ToNode = Welcome | JoinRefused | AskClock | Begin | Stop | Over

ToLeader = Hello | ClockIs | RendezvousInfo | Piece | RunDone


def make_hello(system: System) -> Hello:
    major_minor = ".".join(platform.python_version_tuple()[:2])
    return Hello(
        rigdyno=__version__,
        torch=_version("torch"),
        python=major_minor,
        host=socket.gethostname(),
        system=system,
    )


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
