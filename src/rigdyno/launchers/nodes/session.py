"""Runs cells on several nodes: sends the cells to them, and collects what their participants write."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from rigdyno import catalogue
from rigdyno.base.clock import Deadline
from rigdyno.contracts import Exit, Left
from rigdyno.launchers.nodes.local import NodeLaunch, NodeShare, Starter
from rigdyno.launchers.nodes.ranks import listen_at, make_meeting_point
from rigdyno.launchers.nodes.remote import NodeLost, Remote
from rigdyno.schema.record import FailureKind
from rigdyno.schema.spec import Cell, ClockPair
from rigdyno.schema.system import System

LAST_SECONDS = 60.0  # time for the other nodes to end, once the ranks of one node have

STOP_SECONDS = 15.0  # time for a node to stop its ranks and report it


def find_starter(cell: Cell) -> Starter:
    """Return the launcher that starts the ranks of this cell on any one node."""
    name = catalogue.load("arrangement", cell.spec.arrangement).launcher
    starter: Starter = catalogue.load("launcher", name)()
    return starter


class NodesSession:
    """Connected nodes. `own_address` is the address of this machine if it is node 0; None: it isn't a node."""

    def __init__(
        self,
        remotes: Sequence[Remote],
        own_address: str | None,
        own_system: System | None = None,
        explain_loss: Callable[[], tuple[FailureKind, str] | None] = lambda: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`explain_loss` is called when a node is gone, and may know a larger reason; `on_close` is called after all
        nodes were told that the run is over."""
        self._remotes, self._own_address, self._own_system = list(remotes), own_address, own_system
        self._explain_loss, self._on_close, self._cells = explain_loss, on_close, 0

    def start(self, cell: Cell, folder: Path) -> NodesLaunch:
        self._cells += 1
        for remote in self._remotes:
            remote.forget()
        taking_part = [remote for remote in self._remotes if remote.node < cell.spec.nodes]
        launch = NodesLaunch(taking_part, self._systems(cell), self._explain_loss)
        with launch.stop_on_error():
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
        with listen_at(address) as listener:
            meeting = make_meeting_point(listener)
            for remote in launch.remotes:
                remote.begin(self._cells, cell, folder, meeting.address, meeting.port)
            launch.local = find_starter(cell).start_part(NodeShare(cell, folder, 0, meeting, address))

    def _begin_elsewhere(self, launch: NodesLaunch, cell: Cell, folder: Path) -> None:
        """Begin on the first node, which chooses where the ranks meet, then on the others."""
        first, *others = launch.remotes
        first.begin(self._cells, cell, folder, "", 0)
        meeting = first.wait_for_meeting()
        for remote in others:
            remote.begin(self._cells, cell, folder, meeting.address, meeting.port)

    def close(self) -> None:
        for remote in self._remotes:
            with suppress(NodeLost):
                remote.end()
            remote.close()
        self._on_close()


class NodesLaunch:
    """A cell that runs on several nodes, until the ranks of all have ended. It waits for messages without polling."""

    def __init__(
        self,
        remotes: Sequence[Remote],
        systems: Sequence[System],
        explain_loss: Callable[[], tuple[FailureKind, str] | None],
    ) -> None:
        self.remotes, self._systems, self._explain_loss = list(remotes), systems, explain_loss
        self.local: NodeLaunch | None = None
        self._clocks: list[ClockPair] = []
        self._lost: NodeLost | None = None
        self._first_over: float | None = None

    def compare_clocks(self, when: Literal["start", "end"]) -> None:
        self._clocks += [remote.compare_clock(when) for remote in self.remotes]

    @contextmanager
    def stop_on_error(self) -> Iterator[None]:
        """Stop the nodes if the cell can't begin. A node that is lost then is an outcome of the cell, as later on."""
        try:
            yield
        except NodeLost as lost:
            self._lost = lost
        except BaseException:
            self.stop()
            raise

    def wait(self, seconds: float) -> bool:
        deadline = Deadline(seconds)
        while True:
            self._handle_messages()
            if self._is_over():
                return True
            left = deadline.left
            if left <= 0:
                return False
            self._sleep(left)

    def _is_over(self) -> bool:
        if self._lost is not None:
            return True
        over = [remote.done is not None for remote in self.remotes]
        over += [self.local.wait(0)] if self.local is not None else []
        if any(over) and self._first_over is None:
            self._first_over = time.monotonic()
        if not all(over) and self._has_waited_enough():
            if self._has_failure():  # the others wait for the failed rank, which is the cause
                self.stop()
            else:
                self._report_missing()
            return True
        return all(over)

    def _has_waited_enough(self) -> bool:
        """Return whether the remaining nodes had enough time. A node that still sends files gets more."""
        if self._first_over is None:
            return False
        heard = [remote.heard_at for remote in self.remotes if remote.done is None]
        return time.monotonic() > max(self._first_over, *heard, 0.0) + LAST_SECONDS

    def _has_failure(self) -> bool:
        here = self.local is not None and self.local.wait(0) and self.local.ranks.code
        return bool(here) or any(ended.code for remote in self.remotes for ended in remote.exits())

    def _report_missing(self) -> None:
        missing = [str(remote) for remote in self.remotes if remote.done is None]
        if self.local is not None and not self.local.wait(0):
            missing.insert(0, "node 0")
        words = f"{', '.join(missing)} didn't end within {LAST_SECONDS:g} s after the ranks of another node had"
        self._lost = NodeLost(words)

    def _handle_messages(self) -> None:
        """Handle all messages before every sleep: one that was read together with an earlier one wakes no selector."""
        try:
            for remote in self.remotes:
                if self._lost is None and remote.done is None:
                    remote.listen()
                    remote.require_no_trouble()
        except NodeLost as lost:
            self._lost = lost

    def _sleep(self, seconds: float) -> None:
        """Sleep until a message arrives or the local ranks end, at most this long."""
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
        self._wait_for_stopped()

    def _wait_for_stopped(self) -> None:
        """Receive what the other nodes send after they were stopped: their files are evidence."""
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
        silent = ", ".join(str(remote) for remote in self.remotes if remote.is_working)
        if silent and self._lost is None:
            self._lost = NodeLost(f"{silent} gave no answer within {STOP_SECONDS:g} s of being told to stop")
        exits = [exit_ for remote in self.remotes for exit_ in remote.exits()]
        here = self.local.collect() if self.local is not None else Left()
        there = [remote.node for remote in self.remotes if remote.done is not None and remote.done.out_of_memory]
        with suppress(NodeLost):
            if self._lost is None:
                self.compare_clocks("end")
        kind, words = self._reason()
        return Left(
            exits=_select_exits([*here.exits, *exits]),
            out_of_memory=[*here.out_of_memory, *there],
            clocks=self._clocks,
            nodes=self._systems,
            lost=words,
            lost_kind=kind,
        )

    def _reason(self) -> tuple[FailureKind, str | None]:
        if self._lost is None:
            return "node_lost", None
        return self._explain_loss() or ("node_lost", str(self._lost))


def _select_exits(exits: Sequence[Exit]) -> list[Exit]:
    """Return the exits of participants if one of them failed: then the exits of agents add nothing. Else return all."""
    named = [each for each in exits if each.participant is not None]
    return named if any(each.code for each in named) else [*exits]
