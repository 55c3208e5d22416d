"""Several nodes, met once: cells go out to them, and what their participants leave comes back."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from rigdyno import catalogue
from rigdyno.contracts import Exit, Left
from rigdyno.launchers._node import NodeLaunch, Part, Starter
from rigdyno.launchers._nodes.remote import NodeLost, Remote
from rigdyno.launchers.torchrun import listening_at, meeting_at
from rigdyno.schema.participant import ClockPair
from rigdyno.schema.record import FailureKind
from rigdyno.schema.spec import Cell
from rigdyno.schema.system import System

LAST_SECONDS = 60.0  # for the others, once the ranks of one node are gone
STOP_SECONDS = 15.0  # to stop a node's ranks and hear of it


def starter_for(cell: Cell) -> Starter:
    """What starts the ranks of this cell on any one node."""
    name = catalogue.load("arrangement", cell.spec.arrangement).launcher
    starter: Starter = catalogue.load("launcher", name)()
    return starter


class NodesSession:
    """`own_address`: of this machine, where it is itself the first node; None: all nodes are elsewhere."""

    def __init__(
        self,
        remotes: Sequence[Remote],
        own_address: str | None,
        own_system: System | None = None,
        why_lost: Callable[[], tuple[FailureKind, str] | None] = lambda: None,
        at_last: Callable[[], None] = lambda: None,
    ) -> None:
        """`why_lost`: asked when a node is gone, where something larger may be the reason; `at_last`: called when all
        have been told that it is over."""
        self._remotes, self._own_address, self._own_system = list(remotes), own_address, own_system
        self._why_lost, self._at_last, self._cells = why_lost, at_last, 0

    def start(self, cell: Cell, folder: Path) -> NodesLaunch:
        self._cells += 1
        for remote in self._remotes:
            remote.forget()
        taking_part = [remote for remote in self._remotes if remote.node < cell.spec.nodes]
        launch = NodesLaunch(taking_part, self._systems(cell), self._why_lost)
        with launch.stopped_if_it_fails():
            launch.compare_clocks("start")
            if self._own_address is None:
                self._begin_elsewhere(launch, cell, folder)
            else:
                self._begin_here(launch, cell, folder, self._own_address)
        return launch

    def _systems(self, cell: Cell) -> list[System]:
        here = [] if self._own_address is None or self._own_system is None else [self._own_system]
        there = [remote.hello.system for remote in self._remotes if remote.hello is not None]
        return [*here, *there][: cell.spec.nodes]

    def _begin_here(self, launch: NodesLaunch, cell: Cell, folder: Path, address: str) -> None:
        with listening_at(address) as listener:
            meeting = meeting_at(listener)
            for remote in launch.remotes:
                remote.begin(self._cells, cell, folder, meeting.address, meeting.port)
            launch.local = starter_for(cell).start_part(Part(cell, folder, 0, meeting, address))

    def _begin_elsewhere(self, launch: NodesLaunch, cell: Cell, folder: Path) -> None:
        """The first of them says where the ranks meet."""
        first, *others = launch.remotes
        first.begin(self._cells, cell, folder, "", 0)
        meeting = first.meeting()
        for remote in others:
            remote.begin(self._cells, cell, folder, meeting.address, meeting.port)

    def close(self) -> None:
        for remote in self._remotes:
            with suppress(NodeLost):
                remote.end()
            remote.close()
        self._at_last()


class NodesLaunch:
    """Over when the ranks of all nodes are gone. Sleeps in the kernel until one of them says something."""

    def __init__(
        self,
        remotes: Sequence[Remote],
        systems: Sequence[System],
        why_lost: Callable[[], tuple[FailureKind, str] | None],
    ) -> None:
        self.remotes, self._systems, self._why_lost = list(remotes), systems, why_lost
        self.local: NodeLaunch | None = None
        self._clocks: list[ClockPair] = []
        self._lost: NodeLost | None = None
        self._first_over: float | None = None

    def compare_clocks(self, when: Literal["start", "end"]) -> None:
        self._clocks += [remote.clock_pair(when) for remote in self.remotes]

    @contextmanager
    def stopped_if_it_fails(self) -> Iterator[None]:
        """A node that is lost while the cell begins is an outcome of the cell, like one that is lost later."""
        try:
            yield
        except NodeLost as lost:
            self._lost = lost
        except BaseException:
            self.stop()
            raise

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            self._take_what_came()
            if self._over():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._sleep(left)

    def _over(self) -> bool:
        if self._lost is not None:
            return True
        over = [remote.done is not None for remote in self.remotes]
        over += [self.local.wait(0)] if self.local is not None else []
        if any(over) and self._first_over is None:
            self._first_over = time.monotonic()
        if not all(over) and self._waited_long_enough():
            if self._somebody_failed():  # then the others wait for that one, and it is what happened
                self.stop()
            else:
                self._name_the_missing()
            return True
        return all(over)

    def _waited_long_enough(self) -> bool:
        """For who isn't over yet; somebody whose files still come is given more time."""
        if self._first_over is None:
            return False
        heard = [remote.heard_at for remote in self.remotes if remote.done is None]
        return time.monotonic() > max(self._first_over, *heard, 0.0) + LAST_SECONDS

    def _somebody_failed(self) -> bool:
        here = self.local is not None and self.local.wait(0) and self.local.ranks.code
        return bool(here) or any(ended.code for remote in self.remotes for ended in remote.exits())

    def _name_the_missing(self) -> None:
        missing = [str(remote) for remote in self.remotes if remote.done is None]
        if self.local is not None and not self.local.wait(0):
            missing.insert(0, "node 0")
        words = f"{', '.join(missing)} didn't end within {LAST_SECONDS:g} s after the ranks of another node had"
        self._lost = NodeLost(words)

    def _take_what_came(self) -> None:
        """Before every sleep: what was read together with an earlier message wakes nobody."""
        try:
            for remote in self.remotes:
                if self._lost is None and remote.done is None:
                    remote.listen()
                    remote.require_no_trouble()
        except NodeLost as lost:
            self._lost = lost

    def _sleep(self, seconds: float) -> None:
        """Until something comes, at most so long."""
        with ExitStack() as opened, selectors.DefaultSelector() as selector:
            for remote in self.remotes:
                if remote.done is None:
                    selector.register(remote, selectors.EVENT_READ)
            ending = None
            if self.local is not None and not self.local.wait(0):
                ending = opened.enter_context(self.local.ranks.ending())
                if ending is not None:
                    selector.register(ending, selectors.EVENT_READ)
            selector.select(min(seconds, 1.0) if self._first_over is not None else seconds)

    def stop(self) -> None:
        for remote in self.remotes:
            with suppress(NodeLost):
                remote.stop()
        if self.local is not None:
            self.local.stop()
        self._hear_out()

    def _hear_out(self) -> None:
        """What the others have to say once they are stopped: their files are evidence."""
        began = time.monotonic()
        for remote in self.remotes:
            with suppress(NodeLost):
                while remote.is_working:
                    if time.monotonic() > max(began, remote.heard_at) + STOP_SECONDS:
                        break
                    remote.listen_for(0.2)

    def collect(self) -> Left:
        if self._lost is not None:
            self.stop()
        silent = [str(remote) for remote in self.remotes if remote.is_working]
        if silent and self._lost is None:
            self._lost = NodeLost(f"{', '.join(silent)} gave no answer within {STOP_SECONDS:g} s of being told to stop")
        exits = [exit_ for remote in self.remotes for exit_ in remote.exits()]
        here = self.local.collect() if self.local is not None else Left()
        there = [remote.node for remote in self.remotes if remote.done is not None and remote.done.out_of_memory]
        with suppress(NodeLost):
            if self._lost is None:
                self.compare_clocks("end")
        kind, words = self._reason()
        return Left(
            exits=_worst_first([*here.exits, *exits]),
            out_of_memory=[*here.out_of_memory, *there],
            clocks=self._clocks,
            nodes=self._systems,
            lost=words,
            lost_kind=kind,
        )

    def _reason(self) -> tuple[FailureKind, str | None]:
        if self._lost is None:
            return "node_lost", None
        return self._why_lost() or ("node_lost", str(self._lost))


def _worst_first(exits: Sequence[Exit]) -> list[Exit]:
    """A rank that failed is who the others missed; the commands that started ranks tell nothing beside it."""
    named = [each for each in exits if each.participant is not None]
    return named if any(each.code for each in named) else [*exits]
