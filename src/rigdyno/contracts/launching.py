"""How worker processes are started: a launcher opens a session with the nodes of a run, and a session starts cells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from rigdyno.contracts.training import Requirement
from rigdyno.schema.record import FailureKind
from rigdyno.schema.spec import Cell, ClockPair, Reach, RunSpec
from rigdyno.schema.system import System


@dataclass(frozen=True)
class Exit:
    code: int  # negative: the signal
    participant: str | None = None  # None: the command that started all of them


@dataclass(frozen=True)
class Left:
    """What is known about a finished cell, apart from its files."""

    exits: Sequence[Exit] = ()  # exits of ranks and samplers
    clocks: Sequence[ClockPair] = ()  # clocks of other nodes
    nodes: Sequence[System] = ()  # hardware of other nodes
    out_of_memory: Sequence[int] = ()  # nodes on which the kernel killed a process for lack of memory
    overrun: str | None = None  # why a cell that exceeded its memory limit was ended
    peak_bytes: int | None = None  # peak of all processes of this node, seen from outside; None: not observed
    lost: str | None = None  # why the session can't continue: a node is gone, a job was cancelled
    lost_kind: FailureKind = "node_lost"


class Launch(Protocol):
    """A running cell, on all of its nodes."""

    def wait(self, seconds: float) -> bool:
        """Wait until the ranks have ended, at most this long; return whether they have."""
        ...

    def stop(self) -> None: ...

    def collect(self) -> Left:
        """End the samplers after the ranks have ended, and copy files from other nodes into the cell's folder."""
        ...


class Session(Protocol):
    """The nodes of a run, connected once for all of its cells."""

    def start(self, cell: Cell, folder: Path) -> Launch:
        """Start a cell. `folder` holds its specification, and a folder for each participant."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Opening:
    """What a launcher needs to know to connect the nodes."""

    cells: Sequence[Cell]  # the cells that this launcher will start
    system: System  # this machine
    reach: Reach = field(default_factory=Reach)
    secret: bytes | None = field(default=None, repr=False)  # shared secret, if nodes are started by hand
    say: Callable[[str], None] = lambda words: None  # tells the user what it waits for

    @property
    def nodes(self) -> int:
        return max((cell.spec.nodes for cell in self.cells), default=1)


# What a launcher can start: one process here; several ranks here; ranks on this machine as node 0 and on others; or
# ranks on other machines only, of which nothing is known while planning.
Scope = Literal["process", "machine", "nodes", "elsewhere"]

# How a launcher finds other nodes: by host names, by the address of node 0, or by an allocation of a batch system.
Finds = Literal["hosts", "rendezvous", "allocation"]


class Launcher(ABC):
    requires: ClassVar[tuple[Requirement, ...]] = ()
    scope: ClassVar[Scope]
    finds_nodes_by: ClassVar[Finds | None] = None  # None: it starts processes on this machine only
    starts_processes: ClassVar[bool] = True  # False: the worker runs in this process, and can't be ended alone

    @abstractmethod
    def open(self, opening: Opening) -> Session:
        """Raise a RigdynoError that names the missing nodes, after a bounded time."""

    def refuses(self, spec: RunSpec, framework: str) -> str | None:
        """Return what only a trial can tell: why it can't start this cell. Called last, since it may take seconds."""
        return None
