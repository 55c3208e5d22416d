"""What is said between whoever leads a run and a node of it. A file comes in pieces, each named by whose it is."""

from __future__ import annotations

import platform
import socket

import msgspec

from rigdyno import __version__
from rigdyno.schema.participant import FolderName
from rigdyno.schema.spec import Cell
from rigdyno.schema.system import System


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """What must be the same on all nodes, and who it is."""

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
    working_folder: str  # of the leader: a user's own step is looked for in the same place


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    reason: str


class AskClock(msgspec.Struct, frozen=True, kw_only=True, tag="ask_clock"):
    pass


class ClockIs(msgspec.Struct, frozen=True, kw_only=True, tag="clock"):
    now_ns: int


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """One cell that the node takes part in."""

    number: int
    cell: Cell
    address: str = ""  # where the ranks meet; empty: the node itself chooses, and says so
    port: int = 0


class Meeting(msgspec.Struct, frozen=True, kw_only=True, tag="meeting"):
    number: int
    address: str
    port: int


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    number: int


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """Of a file that one of the node's participants left."""

    number: int
    participant: FolderName
    file: str
    content: bytes


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    participant: FolderName | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    number: int
    exits: tuple[Ended, ...] = ()
    out_of_memory: bool = False  # the kernel ended a process for want of memory
    trouble: str = ""  # why the node could not start its part, or won't take part any more


class Over(msgspec.Struct, frozen=True, kw_only=True, tag="over"):
    pass


ToNode = Welcome | Refused | AskClock | Begin | Stop | Over
ToLeader = Hello | ClockIs | Meeting | Piece | Done


def hello(system: System) -> Hello:
    major_minor = ".".join(platform.python_version_tuple()[:2])
    return Hello(
        rigdyno=__version__,
        torch=_version("torch"),
        python=major_minor,
        host=socket.gethostname(),
        system=system,
    )


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # takes as long to load as all else in here

    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
