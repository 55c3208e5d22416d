"""The program of a node that takes part in a run led by another machine: it runs its share of each cell.

ssh and srun start `python -m rigdyno.runner.node`, which communicates over its standard input and output. Nodes that
are started by hand connect to node 0. Files are kept in a temporary folder until they are sent.
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

from rigdyno.base.addresses import LOOPBACK, address_family, find_own_address, resolve_host, split_endpoint
from rigdyno.base.clock import Deadline, SystemClock
from rigdyno.base.errors import RigdynoError
from rigdyno.base.files import write_json
from rigdyno.base.processes import termination_as_interrupt
from rigdyno.launchers.by_hand import JOIN_SECONDS, POLL_SECONDS, make_stream
from rigdyno.launchers.nodes.calls import GREETING
from rigdyno.launchers.nodes.local import MeetingPoint, NodeLaunch, NodeShare
from rigdyno.launchers.nodes.messages import (
    AskClock,
    Begin,
    ClockIs,
    Ended,
    Hello,
    JoinRefused,
    Over,
    Piece,
    RendezvousInfo,
    RunDone,
    Stop,
    ToLeader,
    ToNode,
    Welcome,
    make_hello,
)
from rigdyno.launchers.nodes.ranks import listen_at, make_meeting_point
from rigdyno.launchers.nodes.session import find_starter
from rigdyno.launchers.nodes.streams import (
    PIECE_BYTES,
    Disconnected,
    Frames,
    MessageStream,
    authenticate_leader,
    require_secret,
)
from rigdyno.rig.devices import find_accelerators_here
from rigdyno.rig.system import describe_system
from rigdyno.schema.layout import CellFolder, returned_names
from rigdyno.schema.spec import Cell
from rigdyno.schema.system import System

WELCOME_SECONDS = 120.0  # time for the answer of the leader, which may still wait for other nodes

TICK_SECONDS = 0.5

_ENCODER = msgspec.msgpack.Encoder()

_DECODER: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(ToNode)


class LeaderLost(RigdynoError):
    """The leader of the run is gone, refused this node, or sent an invalid message."""


class NodeProgram:
    def __init__(self, stream: MessageStream, folder: Path, leader: str, say: Callable[[str], None]) -> None:
        """`leader`: a description of the leader for messages."""
        self._stream, self._folder, self._leader, self._announce = stream, folder, leader, say
        self._number = 0  # number of this node
        self._begun: Begin | None = None
        self._launch: NodeLaunch | None = None

    def join(self, own: Hello) -> Welcome:
        self._send(own)
        answer = self._receive(WELCOME_SECONDS)
        if isinstance(answer, JoinRefused):
            raise LeaderLost(f"{self._leader} turned this node away: {answer.reason}")
        if not isinstance(answer, Welcome):
            raise LeaderLost(f"{self._leader} gives no answer for {WELCOME_SECONDS:g} s")
        self._number = answer.node
        return answer

    def serve(self) -> int:
        """Take part in cells until the leader ends the run. Return the number of cells."""
        count = 0
        try:
            while True:
                while (message := self._receive(0.0)) is not None:
                    if isinstance(message, Over):
                        return count
                    self._handle(message)
                if self._launch is not None and self._launch.wait(0):
                    self._finish()
                    count += 1
                else:
                    self._sleep()  # only when no message is left: one that is already in the buffer doesn't wake it
        except KeyboardInterrupt:
            self._leave()
            raise
        finally:
            if self._launch is not None:
                self._launch.stop()

    def _sleep(self) -> None:
        """Sleep in the kernel until the leader sends something or the ranks end: polling would disturb the ranks."""
        with ExitStack() as opened, selectors.DefaultSelector() as selector:
            selector.register(self._stream, selectors.EVENT_READ)
            ending = None if self._launch is None else opened.enter_context(self._launch.ranks.ending())
            if ending is not None:
                selector.register(ending, selectors.EVENT_READ)
            selector.select(TICK_SECONDS if self._launch is not None and ending is None else None)

    def _handle(self, message: ToNode) -> None:
        if isinstance(message, AskClock):
            self._send(ClockIs(now_ns=SystemClock.now_ns()))
        elif isinstance(message, Begin) and self._launch is None:
            self._begin(message)
        elif isinstance(message, Stop):
            if self._launch is not None and self._begun is not None and message.number == self._begun.number:
                self._launch.stop()
        elif isinstance(message, JoinRefused):
            raise LeaderLost(f"{self._leader} turned this node away: {message.reason}")
        else:
            raise LeaderLost(f"{self._leader} sent '{message.__struct_config__.tag}' out of turn")

    def _begin(self, begin: Begin) -> None:
        self._announce(f"node {self._number}: {begin.cell.name}")
        self._begun = begin
        folder = self._folder / str(begin.number)
        try:
            folder.mkdir()
            write_json(CellFolder(folder).spec, begin.cell)
            self._launch = self._start(begin.cell, begin, folder)
        except (OSError, RigdynoError) as error:
            self._send(RunDone(number=begin.number, trouble=f"could not begin: {error}"))

    def _start(self, cell: Cell, begin: Begin, folder: Path) -> NodeLaunch:
        if begin.address:
            own, meeting = find_own_address(begin.address), MeetingPoint(begin.address, begin.port)
            return find_starter(cell).start_part(NodeShare(cell, folder, self._number, meeting, own))
        own = LOOPBACK if cell.spec.nodes == 1 else own_address_in_cluster()
        with listen_at(own) as listener:
            meeting = make_meeting_point(listener)
            self._send(RendezvousInfo(number=begin.number, address=meeting.address, port=meeting.port))
            return find_starter(cell).start_part(NodeShare(cell, folder, self._number, meeting, own))

    def _leave(self) -> None:
        """Send what has been measured when this node is stopped from outside, for example by a batch system."""
        if self._launch is not None:
            self._launch.stop()
            with suppress(LeaderLost):
                self._finish("was told to stop")

    def _finish(self, trouble: str = "") -> None:
        """Send the files of the ranks and the sampler, then their exit codes."""
        assert self._launch is not None
        assert self._begun is not None
        begun, left = self._begun, self._launch.collect()
        self._launch = None
        for each in NodeShare(begun.cell, self._folder / str(begun.number), self._number).participants:
            for name in returned_names(each):
                self._send_file(begun.number, each.id, name)
        exits = tuple(Ended(code=ended.code, participant=ended.participant) for ended in left.exits)
        self._send(RunDone(number=begun.number, exits=exits, out_of_memory=bool(left.out_of_memory), trouble=trouble))

    def _send_file(self, number: int, participant: str, name: str) -> None:
        path = CellFolder(self._folder / str(number)).participant(participant).path / name
        with suppress(FileNotFoundError), path.open("rb") as file:
            first = True
            while (content := file.read(PIECE_BYTES)) or first:
                self._send(Piece(number=number, participant=participant, file=name, content=content))
                first = False

    def _send(self, message: ToLeader) -> None:
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
    """Return the address at which other nodes reach this one: that of the interface used by Slurm."""
    launched_from = os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    return find_own_address(launched_from) if launched_from else resolve_host(socket.gethostname())


def by_hand(rendezvous: str, node: int, secret: bytes | None, say: Callable[[str], None]) -> int:
    """Join a run as a node that was started by hand. Return the number of cells it took part in."""
    host, port = split_endpoint(rendezvous)
    address = resolve_host(host)
    known = require_secret(address, secret)
    own, leader = make_hello(_system()), f"the first node at {rendezvous}"
    say(f"node {node}: looking for {leader}")
    frames = make_stream(_connect(address, port, leader))
    with termination_as_interrupt(), tempfile.TemporaryDirectory(prefix="rigdyno") as folder:
        try:
            stream = authenticate_leader(frames, known, node)
        except Disconnected as error:
            raise LeaderLost(f"{leader} {error}") from error
        program = NodeProgram(stream, Path(folder), leader, say)
        program.join(own)
        say(f"node {node}: joined")
        return program.serve()


def _connect(address: str, port: int, leader: str) -> socket.socket:
    """Connect to node 0, which may be started after this one."""
    deadline = Deadline(JOIN_SECONDS)
    while True:
        connection = socket.socket(address_family(address))
        connection.settimeout(max(1.0, deadline.left))
        try:
            connection.connect((address, port))
        except OSError as error:
            connection.close()
            if deadline.passed:
                reason = (error.strerror or str(error)).lower()
                raise LeaderLost(f"can't reach {leader} within {JOIN_SECONDS:g} s: {reason}") from error
            time.sleep(POLL_SECONDS)
        else:
            return connection


def _system() -> System:
    return describe_system(find_accelerators_here())


def main() -> int:
    """Run the node that ssh or srun started. Other output must not mix with the messages, and goes to stderr."""
    reading, writing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull) as nothing:  # noqa: PTH123  # not a path
        os.dup2(nothing.fileno(), 0)
    os.write(writing, GREETING)
    with termination_as_interrupt(), tempfile.TemporaryDirectory(prefix="rigdyno") as folder:
        node = NodeProgram(Frames(reading, writing), Path(folder), "the leader of the run", lambda words: None)
        try:
            welcome = node.join(make_hello(_system()))
            with suppress(OSError):  # the folder may not exist here; only a user's own step needs it
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
