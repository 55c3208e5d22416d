"""Nodes that communicate over real sockets, in threads, with scripted ranks."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rigdyno.contracts import Exit, Left
from rigdyno.launchers.nodes.messages import make_hello
from rigdyno.launchers.nodes.streams import Frames
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.spec import Cell, RunSpec, assign_participants
from support import a_system

HELLO = make_hello(a_system())


def a_cell(nodes=2, ranks=2, name="01-x"):
    spec = RunSpec(workload="w", arrangement="ddp", launcher="by_hand", world_size=ranks, nodes=nodes)
    return Cell(name=name, spec=spec, participants=assign_participants(ranks, nodes, "cpu"))


def stream_pair():
    ours, theirs = (end.detach() for end in socket.socketpair())
    return Frames(ours, ours), Frames(theirs, theirs)


def in_thread(function, *arguments):
    """Run the function in a thread and return a Future. The thread ends with the tests, even if it still waits."""
    future = Future()

    def run():
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class ScriptedRanks:
    """Replaces the processes of a node's ranks. They end when `end` is called or they are stopped."""

    def __init__(self):
        self.reading, self.writing = os.pipe()
        self.over = threading.Event()
        self.code = 0

    def end(self):
        self.over.set()
        os.write(self.writing, b"x")

    @contextmanager
    def ending(self):
        yield self.reading


class ScriptedLaunch:
    def __init__(self, part, files, exits, ends):
        self.part, self._exits, self.ranks, self.stopped = part, exits, ScriptedRanks(), False
        for each in part.participants:
            folder = CellFolder(part.folder).participant(each.id).path
            folder.mkdir()
            for name, content in files.items():
                (folder / name).write_bytes(content)
        if ends:
            self.ranks.end()

    def wait(self, seconds):
        return self.ranks.over.wait(seconds)

    def stop(self):
        self.stopped = True
        if not self.ranks.over.is_set():
            self.ranks.end()

    def collect(self):
        return Left(exits=self._exits)


class ScriptedStarter:
    """Starts scripted ranks. `ends`: they end at once; else only when they are stopped."""

    def __init__(self, files=None, exits=(), ends=True, error=None):
        self.files, self.exits, self.ends, self.error = files or {}, list(exits), ends, error
        self.launches: list[ScriptedLaunch] = []

    def start_part(self, part):
        if self.error is not None:
            raise self.error
        exits = self.exits or [Exit(0, each.id) for each in part.participants]
        self.launches.append(ScriptedLaunch(part, self.files, exits, self.ends))
        return self.launches[-1]

    def for_cell(self, _cell):
        return self


def cell_folder(path: Path, cell: Cell) -> Path:
    path.mkdir(exist_ok=True)
    CellFolder(path).spec.write_bytes(msgspec.json.encode(cell))
    return path
