"""One other node, as seen by the leader of the run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from rigdyno.base.clock import Clock, Deadline, SystemClock
from rigdyno.base.errors import RigdynoError
from rigdyno.contracts import Exit
from rigdyno.launchers.nodes.messages import (
    AskClock,
    Begin,
    ClockIs,
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
)
from rigdyno.launchers.nodes.streams import Disconnected, MessageStream
from rigdyno.schema.layout import CellFolder, returned_names
from rigdyno.schema.spec import Cell, ClockPair, clock_of, on_node, ranks_among

HELLO_SECONDS = 60.0  # starting an interpreter from a slow network disk takes long

ANSWER_SECONDS = 30.0  # time for an answer that needs no work

MOST_REASON = 300  # characters

LISTEN_SECONDS = 0.5  # time for one node before the next gets its turn

LEAST_PIECE_BYTES = 64  # counted for each piece, so that empty ones aren't free

CLOCK_ROUNDS = 8  # the fastest round trip is the most accurate

MOST_RETURNED_BYTES = 2**32  # files of one node in one cell: enough for days of steps

_ENCODER = msgspec.msgpack.Encoder()

_DECODER: msgspec.msgpack.Decoder[ToLeader] = msgspec.msgpack.Decoder(ToLeader)

Message = TypeVar("Message", Hello, ClockIs, RendezvousInfo)


class NodeLost(RigdynoError):
    """A node is gone, hangs, or breaks the protocol."""


class Remote:
    """A node. `explain_exit` is called when the node is gone, and may know the reason, such as ssh's last message."""

    def __init__(
        self, node: int, stream: MessageStream, name: str, explain_exit: Callable[[], str | None] = lambda: None
    ) -> None:
        self.node, self.name, self._stream, self._explain_exit = node, name, stream, explain_exit
        self._clock: Clock = SystemClock()
        self._share: _RemoteShare | None = None
        self.hello: Hello | None = None
        self.lost: str | None = None  # why the node is lost
        self.heard_at = 0.0  # time of its last message, by time.monotonic

    def __str__(self) -> str:
        """Return the node with the name that the user gave it, if any. The machine's host name is never stored."""
        return f"node {self.node} ({self.name})" if self.name else f"node {self.node}"

    def describe_with_host(self) -> str:
        """Return the node with its host name, for messages to the user that aren't stored."""
        host = self.name or (self.hello.host if self.hello is not None else "")
        return f"node {self.node} ({host})" if host else f"node {self.node}"

    def meet(self, own: Hello) -> None:
        """Exchange greetings. If versions differ, refuse the node and raise NodeLost."""
        self.hello = self._wait_for(Hello, HELLO_SECONDS)
        difference = self.hello.differs_from(own)
        if difference is not None:
            words = f"{self.describe_with_host()} has {difference}: nodes must run the same"
            self.refuse(words)
            raise NodeLost(words)
        self._send(Welcome(node=self.node, working_folder=_working_folder()))

    def refuse(self, reason: str) -> None:
        with suppress(NodeLost):
            self._send(JoinRefused(reason=reason))
        self.close()

    def compare_clock(self, when: Literal["start", "end"]) -> ClockPair:
        return min((self._measure_clock(when) for _ in range(CLOCK_ROUNDS)), key=lambda pair: pair.uncertainty_ns)

    def _measure_clock(self, when: Literal["start", "end"]) -> ClockPair:
        asked_ns = self._clock.now_ns()
        self._send(AskClock())
        theirs_ns = self._wait_for(ClockIs, ANSWER_SECONDS).now_ns
        answered_ns = self._clock.now_ns()
        middle_ns = (asked_ns + answered_ns) // 2
        return ClockPair(
            clock=clock_of(self.node),
            when=when,
            at_ns=middle_ns,
            offset_ns=theirs_ns - middle_ns,
            uncertainty_ns=(answered_ns - asked_ns + 1) // 2,
        )

    def forget(self) -> None:
        """Forget the results of an earlier cell."""
        self._share = None

    def begin(self, number: int, cell: Cell, folder: Path, address: str, port: int) -> None:
        self._share = _RemoteShare(self.node, number, cell, folder)
        self._send(Begin(number=number, cell=cell, address=address, port=port))

    def wait_for_meeting(self) -> RendezvousInfo:
        """Return the address at which the ranks meet, as chosen by the node."""
        return self._wait_for(RendezvousInfo, ANSWER_SECONDS)

    def stop(self) -> None:
        if self._share is not None and self.is_working:
            self._send(Stop(number=self._share.number))

    @property
    def is_working(self) -> bool:
        """Return whether it has begun its share of the cell and may still report how that ended."""
        return self._share is not None and self._share.done is None and self.lost is None

    @property
    def done(self) -> RunDone | None:
        return None if self._share is None else self._share.done

    def exits(self) -> list[Exit]:
        """Return the exits of this node's own participants: a node can't report about others."""
        return [] if self._share is None else self._share.exits()

    def fileno(self) -> int:
        return self._stream.fileno()

    def listen(self) -> None:
        """Handle the messages that have arrived, without waiting."""
        until = Deadline(LISTEN_SECONDS)  # leave time for other nodes
        while not until.passed and (message := self._receive(0.0)) is not None:
            self._handle(message)

    def listen_for(self, seconds: float) -> None:
        """Handle the next message, if one arrives within the time."""
        message = self._receive(seconds)
        if message is not None:
            self._handle(message)

    def _wait_for(self, kind: type[Message], seconds: float) -> Message:
        deadline = Deadline(seconds)
        while (left := deadline.left) > 0:
            message = self._receive(left)
            if isinstance(message, kind):
                return message
            if message is not None:
                self._handle(message)
                self.require_no_trouble()
        raise self._mark_lost(f"gives no answer for {seconds:g} s")

    def require_no_trouble(self) -> None:
        """Raise if the node couldn't start its share: others would wait for it, and the next cell would fail too."""
        if self.done is not None and self.done.trouble:
            raise NodeLost(f"{self} {self._clean(self.done.trouble)}")

    def _handle(self, message: ToLeader) -> None:
        if self._share is None or not isinstance(message, (Piece, RunDone)):
            raise self._mark_lost(f"says '{message.__struct_config__.tag}' out of turn")
        try:
            self._share.handle(message)
        except Disconnected as error:
            raise self._mark_lost(str(error)) from error

    def _receive(self, seconds: float) -> ToLeader | None:
        try:
            content = self._stream.receive(seconds)
            if content is None:
                return None
            self.heard_at = time.monotonic()
            return _DECODER.decode(content)
        except Disconnected as error:
            raise self._mark_lost(self._explain_exit() or str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._mark_lost(f"sends a message that can't be read ({error})") from error

    def _send(self, message: ToNode) -> None:
        try:
            self._stream.send(_ENCODER.encode(message))
        except Disconnected as error:
            raise self._mark_lost(self._explain_exit() or str(error)) from error

    def _mark_lost(self, reason: str) -> NodeLost:
        self.lost = f"{self} {self._clean(reason)}"
        return NodeLost(self.lost)

    def _clean(self, reason: str) -> str:
        """Return the reason in one line of bounded length, without the machine's host name."""
        host = self.hello.host if self.hello is not None else ""
        for name in filter(None, (host, host.partition(".")[0])):
            reason = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "its host", reason)
        printable = "".join(sign if sign.isprintable() else " " for sign in reason)
        return " ".join(printable.split())[:MOST_REASON]

    def end(self) -> None:
        """Tell the node that the run is over."""
        if self.lost is None:
            self._send(Over())

    def close(self) -> None:
        self.lost = self.lost or f"{self} was left"
        self._stream.close()


def _working_folder() -> str:
    """Return the working folder; empty if it doesn't exist any more or its name isn't valid text."""
    try:
        folder = str(Path.cwd())
        folder.encode()
    except (OSError, UnicodeEncodeError):
        return ""
    return folder


class _RemoteShare:
    """Receives what a node sends back about the current cell: the files and exits of its participants."""

    def __init__(self, node: int, number: int, cell: Cell, folder: Path) -> None:
        self.number = number
        self.done: RunDone | None = None
        self._folder = CellFolder(folder)
        self._own = {each.id: each for each in on_node(cell.participants, node)}
        self._begun: set[tuple[str, str]] = set()
        self._bytes = 0

    def handle(self, message: Piece | RunDone) -> None:
        if message.number != self.number or self.done is not None:
            raise Disconnected("speaks of a cell that isn't under way")
        if isinstance(message, RunDone):
            self.done = message
        else:
            self._write(message)

    def _write(self, piece: Piece) -> None:
        whose = self._own.get(piece.participant)
        if whose is None:
            raise Disconnected(f"sends a file of {piece.participant}, which isn't one of its own participants")
        if piece.file not in returned_names(whose):
            raise Disconnected(f"sends a file '{piece.file[:40]}', which no participant leaves")
        self._bytes += LEAST_PIECE_BYTES + len(piece.content)
        if self._bytes > MOST_RETURNED_BYTES:
            raise Disconnected(f"sends more than {MOST_RETURNED_BYTES:,} bytes of files")
        folder = self._folder.participant(whose.id).path
        folder.mkdir(exist_ok=True)
        first = (whose.id, piece.file) not in self._begun
        self._begun.add((whose.id, piece.file))
        with (folder / piece.file).open("xb" if first else "ab") as file:
            file.write(piece.content)

    def exits(self) -> list[Exit]:
        if self.done is None:
            return []
        named = [Exit(ended.code, ended.participant) for ended in self.done.exits if ended.participant in self._own]
        if any(ended.code for ended in named):
            return named
        # The process that started its ranks failed, and no rank reports a failure: blame the first rank.
        ranks = ranks_among(self._own.values())
        return [
            *named,
            *(Exit(ended.code, ranks[0].id) for ended in self.done.exits if ended.participant is None and ranks),
        ]
