"""The participants of one cell on one node: its sampler, and its ranks, however they are started."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from rigdyno.contracts import Exit, Left
from rigdyno.launchers._children import Child, worker_environment
from rigdyno.launchers._fence import Fence
from rigdyno.processes import child_command, oom_kills
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.participant import Participant, on_node, sampler_among
from rigdyno.schema.spec import Cell

# The modules that participants are, by role.
WORKER, SAMPLER = "rigdyno.runner.worker", "rigdyno.runner.sampler"


class MeetingPoint(NamedTuple):
    """Where the ranks of a cell find each other."""

    address: str  # of the first node
    port: int
    listening: int | None = None  # on the first node: the descriptor of a socket that is bound there already


class Part(NamedTuple):
    """What one node has to do of a cell."""

    cell: Cell
    folder: Path  # of the cell, on this node
    node: int = 0
    meeting: MeetingPoint | None = None  # None: nobody to meet
    own_address: str = "127.0.0.1"  # by which other nodes reach this one
    beside: tuple[Path, ...] = ()  # folders of cells that are under way at the same time, watched by this one's sampler

    @property
    def participants(self) -> list[Participant]:
        return on_node(self.cell.participants, self.node)

    @property
    def ranks(self) -> list[Participant]:
        return [each for each in self.participants if each.rank is not None]

    @property
    def sampler(self) -> Participant | None:
        return sampler_among(self.participants)


class Starter(Protocol):
    """A launcher that can start one node's ranks; launchers for several nodes use it on each of them."""

    def start_part(self, part: Part) -> NodeLaunch: ...


class NodeSampler:
    """Reads this node's meters until it is stopped; workers of the cells beside it count too."""

    def __init__(self, part: Part) -> None:
        self._whose, self._ended = part.sampler, list[Exit]()
        if self._whose is not None:
            self._child = Child(
                child_command(SAMPLER, part.folder, self._whose.id, *(str(folder.resolve()) for folder in part.beside)),
                CellFolder(part.folder).participant(self._whose.id).log,
                worker_environment(part.cell.spec),
            )

    def stop(self) -> list[Exit]:
        if self._whose is not None and not self._ended:
            early = self._child.code
            code = self._child.stop(for_good=False)  # a read of a sensor that hangs in the kernel can't be ended
            # If it was still starting, nothing of it died but by us.
            self._ended = [Exit(0 if early is None and code == -signal.SIGTERM else code, self._whose.id)]
        return self._ended


class NodeLaunch:
    """Under way on this node."""

    def __init__(
        self, part: Part, start: Callable[[Part], Child], exits: Callable[[Part, int], Sequence[Exit]]
    ) -> None:
        """`start` gives the one process that the ranks are, or that starts them; `exits` tells from its exit code how
        they ended. The sampler begins first, so that it sees all of the steps."""
        self._part, self._exits, self._oom_kills = part, exits, oom_kills()
        make_folders(part)
        self._sampler = NodeSampler(part)
        try:
            self.ranks = start(part)
        except BaseException:
            self._sampler.stop()
            raise
        self._fence = _fence_of(part.cell, self.ranks)

    def wait(self, seconds: float) -> bool:
        over = self.ranks.wait(seconds)
        if self._fence is not None and not over:
            self._fence.look()
        return over

    def stop(self) -> None:
        self.ranks.stop()
        self._sampler.stop()
        if self._fence is not None:
            self._fence.close()

    def collect(self) -> Left:
        exits = [*self._exits(self._part, self.ranks.code or 0), *self._sampler.stop()]
        fence = self._fence
        at_fence = fence is not None and fence.close()
        ran_out = at_fence or oom_kills() > self._oom_kills
        return Left(
            exits=exits,
            out_of_memory=(self._part.node,) if ran_out else (),
            overrun=None if fence is None else fence.overrun,
            peak_bytes=None if fence is None else fence.peak_bytes,
        )


def _fence_of(cell: Cell, ranks: Child) -> Fence | None:
    if cell.allowed_bytes is None:
        return None
    return Fence(ranks.pid, cell.allowed_bytes if cell.spec.device == "cpu" else None)


def make_folders(part: Part) -> None:
    """One for each participant of this node."""
    for each in part.participants:
        CellFolder(part.folder).participant(each.id).path.mkdir(exist_ok=True)
