"""What a machine does that takes part in somebody else's run: its share of each cell that it is told of.

`python -m rigdyno.runner.node` is what ssh and srun start: it is spoken to over its own input and output. Nodes that
are started by hand connect to the first one. Files lie in a temporary folder until they are sent.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from rigdyno.clock import SystemClock
from rigdyno.errors import RigdynoError
from rigdyno.launchers._address import LOOPBACK, address_of, family_of, own_address_towards, split_endpoint
from rigdyno.launchers._node import MeetingPoint, NodeLaunch, Part
from rigdyno.launchers._nodes.calls import GREETING
from rigdyno.launchers._nodes.messages import (
    AskClock,
    Begin,
    ClockIs,
    Done,
    Ended,
    Hello,
    Meeting,
    Over,
    Piece,
    Refused,
    Stop,
    ToLeader,
    ToNode,
    Welcome,
    hello,
)
from rigdyno.launchers._nodes.secret import sealed_by_node, secret_for
from rigdyno.launchers._nodes.session import starter_for
from rigdyno.launchers._nodes.streams import PIECE_BYTES, Disconnected, Frames, Stream
from rigdyno.launchers.by_hand import JOIN_SECONDS, POLL_SECONDS, stream_over
from rigdyno.launchers.torchrun import listening_at, meeting_at
from rigdyno.rig.devices import accelerators_here
from rigdyno.rig.system import describe_system
from rigdyno.runner.signals import termination_as_interrupt
from rigdyno.schema.layout import CellFolder, returned_names
from rigdyno.schema.spec import Cell
from rigdyno.schema.system import System
from rigdyno.store.files import write_json

WELCOME_SECONDS = 120.0  # the leader may still wait for others
TICK_SECONDS = 0.5

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(ToNode)


class LeaderLost(RigdynoError):
    """Whoever leads the run is gone, turned us away, or says what no leader of ours says."""


class Node:
    def __init__(self, stream: Stream, folder: Path, leader: str, say: Callable[[str], None]) -> None:
        """`leader`: in words, for messages."""
        self._stream, self._folder, self._leader, self._told = stream, folder, leader, say
        self._number = 0  # of this node
        self._begun: Begin | None = None
        self._launch: NodeLaunch | None = None

    def join(self, own: Hello) -> Welcome:
        self._say(own)
        answer = self._receive(WELCOME_SECONDS)
        if isinstance(answer, Refused):
            raise LeaderLost(f"{self._leader} turned this node away: {answer.reason}")
        if not isinstance(answer, Welcome):
            raise LeaderLost(f"{self._leader} gives no answer for {WELCOME_SECONDS:g} s")
        self._number = answer.node
        return answer

    def serve(self) -> int:
        """How many cells it took part in, until the leader says that it is over."""
        count = 0
        try:
            while True:
                while (message := self._receive(0.0)) is not None:
                    if isinstance(message, Over):
                        return count
                    self._obey(message)
                if self._launch is not None and self._launch.wait(0):
                    self._finish()
                    count += 1
                else:
                    self._sleep()  # only now: what was read together with an earlier message wakes nobody
        except KeyboardInterrupt:
            self._leave()
            raise
        finally:
            if self._launch is not None:
                self._launch.stop()

    def _sleep(self) -> None:
        """In the kernel, until the leader says something or the ranks are gone: who polls disturbs what is measured."""
        with ExitStack() as opened, selectors.DefaultSelector() as selector:
            selector.register(self._stream, selectors.EVENT_READ)
            ending = None if self._launch is None else opened.enter_context(self._launch.ranks.ending())
            if ending is not None:
                selector.register(ending, selectors.EVENT_READ)
            selector.select(TICK_SECONDS if self._launch is not None and ending is None else None)

    def _obey(self, message: ToNode) -> None:
        if isinstance(message, AskClock):
            self._say(ClockIs(now_ns=SystemClock.now_ns()))
        elif isinstance(message, Begin) and self._launch is None:
            self._begin(message)
        elif isinstance(message, Stop):
            if self._launch is not None and self._begun is not None and message.number == self._begun.number:
                self._launch.stop()
        elif isinstance(message, Refused):
            raise LeaderLost(f"{self._leader} turned this node away: {message.reason}")
        else:
            raise LeaderLost(f"{self._leader} says '{type(message).__name__.lower()}' out of turn")

    def _begin(self, begin: Begin) -> None:
        self._told(f"node {self._number}: {begin.cell.name}")
        self._begun = begin
        folder = self._folder / str(begin.number)
        try:
            folder.mkdir()
            write_json(CellFolder(folder).spec, begin.cell)
            self._launch = self._started(begin.cell, begin, folder)
        except (OSError, RigdynoError) as error:
            self._say(Done(number=begin.number, trouble=f"could not begin: {error}"))

    def _started(self, cell: Cell, begin: Begin, folder: Path) -> NodeLaunch:
        if begin.address:
            own, meeting = own_address_towards(begin.address), MeetingPoint(begin.address, begin.port)
            return starter_for(cell).start_part(Part(cell, folder, self._number, meeting, own))
        own = LOOPBACK if cell.spec.nodes == 1 else own_address_in_cluster()
        with listening_at(own) as listener:
            meeting = meeting_at(listener)
            self._say(Meeting(number=begin.number, address=meeting.address, port=meeting.port))
            return starter_for(cell).start_part(Part(cell, folder, self._number, meeting, own))

    def _leave(self) -> None:
        """Somebody ends this node, as a batch system does with a job: what there is so far is still evidence."""
        if self._launch is not None:
            self._launch.stop()
            with suppress(LeaderLost):
                self._finish("was told to stop")

    def _finish(self, trouble: str = "") -> None:
        """What the ranks and the sampler left, then how they ended."""
        assert self._launch is not None
        assert self._begun is not None
        begun, left = self._begun, self._launch.collect()
        self._launch = None
        for each in Part(begun.cell, self._folder / str(begun.number), self._number).participants:
            for name in returned_names(each):
                self._send_file(begun.number, each.id, name)
        exits = tuple(Ended(code=ended.code, participant=ended.participant) for ended in left.exits)
        self._say(Done(number=begun.number, exits=exits, out_of_memory=bool(left.out_of_memory), trouble=trouble))

    def _send_file(self, number: int, participant: str, name: str) -> None:
        path = CellFolder(self._folder / str(number)).participant(participant).path / name
        with suppress(FileNotFoundError), path.open("rb") as file:
            first = True
            while (content := file.read(PIECE_BYTES)) or first:
                self._say(Piece(number=number, participant=participant, file=name, content=content))
                first = False

    def _say(self, message: ToLeader) -> None:
        try:
            self._stream.send(_ENCODER.encode(message))
        except Disconnected as error:
            raise LeaderLost(f"{self._leader} {error}") from error

    def _receive(self, seconds: float) -> ToNode | None:
        try:
            content = self._stream.receive(seconds)
            return None if content is None else _DECODER.decode(content)
        except Disconnected as error:
            raise LeaderLost(f"{self._leader} {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LeaderLost(f"{self._leader} sends a message that can't be read ({error})") from error


def own_address_in_cluster() -> str:
    """By which the other nodes reach this one: of the interface on which Slurm itself talks to it."""
    launched_from = os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    return own_address_towards(launched_from) if launched_from else address_of(socket.gethostname())


def by_hand(rendezvous: str, node: int, secret: bytes | None, say: Callable[[str], None]) -> int:
    """How many cells it took part in."""
    host, port = split_endpoint(rendezvous)
    address = address_of(host)
    known = secret_for(address, secret)
    own, leader = hello(_system()), f"the first node at {rendezvous}"
    say(f"node {node}: looking for {leader}")
    frames = stream_over(_connected(address, port, leader))
    with termination_as_interrupt(), tempfile.TemporaryDirectory(prefix="rigdyno") as folder:
        try:
            stream = sealed_by_node(frames, known, node)
        except Disconnected as error:
            raise LeaderLost(f"{leader} {error}") from error
        taking_part = Node(stream, Path(folder), leader, say)
        taking_part.join(own)
        say(f"node {node}: joined")
        return taking_part.serve()


def _connected(address: str, port: int, leader: str) -> socket.socket:
    """The first node may be started after this one."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        connection = socket.socket(family_of(address))
        connection.settimeout(max(1.0, deadline - time.monotonic()))
        try:
            connection.connect((address, port))
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                reason = (error.strerror or str(error)).lower()
                raise LeaderLost(f"can't reach {leader} within {JOIN_SECONDS:g} s: {reason}") from error
            time.sleep(POLL_SECONDS)
        else:
            return connection


def _system() -> System:
    return describe_system(accelerators_here())


def main() -> int:
    """What ssh or srun started. Whatever else prints here must not mix with what is said: it goes to stderr."""
    reading, writing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull) as nothing:  # noqa: PTH123  # not a path
        os.dup2(nothing.fileno(), 0)
    os.write(writing, GREETING)
    with termination_as_interrupt(), tempfile.TemporaryDirectory(prefix="rigdyno") as folder:
        node = Node(Frames(reading, writing), Path(folder), "whoever started this node", lambda words: None)
        try:
            welcome = node.join(hello(_system()))
            with suppress(OSError):  # it may have no such folder: only a user's own step needs it
                os.chdir(welcome.working_folder)
            node.serve()
        except RigdynoError as error:
            print(f"rigdyno: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201
            return error.exit_code
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
