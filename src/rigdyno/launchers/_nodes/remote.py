"""One other node, as whoever leads the run sees it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from rigdyno.clock import Clock, SystemClock
from rigdyno.contracts import Exit
from rigdyno.errors import RigdynoError
from rigdyno.launchers._nodes.messages import (
    AskClock,
    Begin,
    ClockIs,
    Done,
    Hello,
    Meeting,
    Over,
    Piece,
    Refused,
    Stop,
    ToLeader,
    ToNode,
    Welcome,
)
from rigdyno.launchers._nodes.streams import Disconnected, Stream
from rigdyno.schema.layout import CellFolder, returned_names
from rigdyno.schema.participant import ClockPair, clock_of, on_node, ranks_among
from rigdyno.schema.spec import Cell

HELLO_SECONDS = 60.0  # an interpreter on a slow network disk takes its time
ANSWER_SECONDS = 30.0  # to a question that takes no time
MOST_REASON = 300  # characters
LISTEN_SECONDS = 0.5  # to one node, before the next
LEAST_PIECE_BYTES = 64  # an empty one costs something, too
CLOCK_ROUNDS = 8  # the quickest round trip tells most
MOST_RETURNED_BYTES = 2**32  # of all files of a node in a cell: days of steps

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[ToLeader] = msgspec.msgpack.Decoder(ToLeader)
Message = TypeVar("Message", Hello, ClockIs, Meeting)


class NodeLost(RigdynoError):
    """A node is gone, hangs, or says what no node of ours says."""


class Remote:
    """`why_gone`: asked when it is, where somebody may know more: what its ssh said, what became of its job."""

    def __init__(self, node: int, stream: Stream, name: str, why_gone: Callable[[], str | None] = lambda: None) -> None:
        self.node, self.name, self._stream, self._why_gone = node, name, stream, why_gone
        self._clock: Clock = SystemClock()
        self._part: _RemotePart | None = None
        self.hello: Hello | None = None
        self.lost: str | None = None  # why, once it is
        self.heard_at = 0.0  # when it last said something, by time.monotonic

    def __str__(self) -> str:
        """By the name that the user gave it, if there is one. What a machine calls itself is never stored."""
        return f"node {self.node} ({self.name})" if self.name else f"node {self.node}"

    def with_host(self) -> str:
        """For the user's eyes alone."""
        host = self.name or (self.hello.host if self.hello is not None else "")
        return f"node {self.node} ({host})" if host else f"node {self.node}"

    def meet(self, own: Hello) -> None:
        """Raises what differs, after the node was told, too."""
        self.hello = self._next(Hello, HELLO_SECONDS)
        difference = self.hello.differs_from(own)
        if difference is not None:
            words = f"{self.with_host()} has {difference}: nodes must run the same"
            self.refuse(words)
            raise NodeLost(words)
        self._say(Welcome(node=self.node, working_folder=_working_folder()))

    def refuse(self, reason: str) -> None:
        with suppress(NodeLost):
            self._say(Refused(reason=reason))
        self.close()

    def clock_pair(self, when: Literal["start", "end"]) -> ClockPair:
        return min((self._one_pair(when) for _ in range(CLOCK_ROUNDS)), key=lambda pair: pair.uncertainty_ns)

    def _one_pair(self, when: Literal["start", "end"]) -> ClockPair:
        asked_ns = self._clock.now_ns()
        self._say(AskClock())
        theirs_ns = self._next(ClockIs, ANSWER_SECONDS).now_ns
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
        """What it said of an earlier cell."""
        self._part = None

    def begin(self, number: int, cell: Cell, folder: Path, address: str, port: int) -> None:
        self._part = _RemotePart(self.node, number, cell, folder)
        self._say(Begin(number=number, cell=cell, address=address, port=port))

    def meeting(self) -> Meeting:
        """Where the ranks meet, as the node has chosen."""
        return self._next(Meeting, ANSWER_SECONDS)

    def stop(self) -> None:
        if self._part is not None and self.is_working:
            self._say(Stop(number=self._part.number))

    @property
    def is_working(self) -> bool:
        """Whether it has begun its part of the cell and may still say how that ended."""
        return self._part is not None and self._part.done is None and self.lost is None

    @property
    def done(self) -> Done | None:
        return None if self._part is None else self._part.done

    def exits(self) -> list[Exit]:
        """Of its own participants alone: it has no say about others."""
        return [] if self._part is None else self._part.exits()

    def fileno(self) -> int:
        return self._stream.fileno()

    def listen(self) -> None:
        """Takes what has come, without waiting."""
        until = time.monotonic() + LISTEN_SECONDS  # others want to be heard, too
        while time.monotonic() < until and (message := self._receive(0.0)) is not None:
            self._take(message)

    def listen_for(self, seconds: float) -> None:
        """Takes the next message, if one comes within that time."""
        message = self._receive(seconds)
        if message is not None:
            self._take(message)

    def _next(self, kind: type[Message], seconds: float) -> Message:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            message = self._receive(left)
            if isinstance(message, kind):
                return message
            if message is not None:
                self._take(message)
                self.require_no_trouble()
        raise self._given_up(f"gives no answer for {seconds:g} s")

    def require_no_trouble(self) -> None:
        """A node that could not start its part won't be able to start the next one either; the others wait for it."""
        if self.done is not None and self.done.trouble:
            raise NodeLost(f"{self} {self._storable(self.done.trouble)}")

    def _take(self, message: ToLeader) -> None:
        if self._part is None or not isinstance(message, (Piece, Done)):
            raise self._given_up(f"says '{type(message).__name__.lower()}' out of turn")
        try:
            self._part.take(message)
        except Disconnected as error:
            raise self._given_up(str(error)) from error

    def _receive(self, seconds: float) -> ToLeader | None:
        try:
            content = self._stream.receive(seconds)
            if content is None:
                return None
            self.heard_at = time.monotonic()
            return _DECODER.decode(content)
        except Disconnected as error:
            raise self._given_up(self._why_gone() or str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._given_up(f"sends a message that can't be read ({error})") from error

    def _say(self, message: ToNode) -> None:
        try:
            self._stream.send(_ENCODER.encode(message))
        except Disconnected as error:
            raise self._given_up(self._why_gone() or str(error)) from error

    def _given_up(self, reason: str) -> NodeLost:
        self.lost = f"{self} {self._storable(reason)}"
        return NodeLost(self.lost)

    def _storable(self, reason: str) -> str:
        """In one line of bounded length, without what the machine calls itself."""
        host = self.hello.host if self.hello is not None else ""
        for name in filter(None, (host, host.partition(".")[0])):
            reason = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "its host", reason)
        printable = "".join(sign if sign.isprintable() else " " for sign in reason)
        return " ".join(printable.split())[:MOST_REASON]

    def end(self) -> None:
        """Tells it that all is over."""
        if self.lost is None:
            self._say(Over())

    def close(self) -> None:
        self.lost = self.lost or f"{self} was left"
        self._stream.close()


def _working_folder() -> str:
    """Empty where there is none any more, or its name is no text."""
    try:
        folder = str(Path.cwd())
        folder.encode()
    except (OSError, UnicodeEncodeError):
        return ""
    return folder


class _RemotePart:
    """What a node sends back of the cell that is under way: files of its own participants, and how they ended."""

    def __init__(self, node: int, number: int, cell: Cell, folder: Path) -> None:
        self.number = number
        self.done: Done | None = None
        self._folder = CellFolder(folder)
        self._own = {each.id: each for each in on_node(cell.participants, node)}
        self._begun: set[tuple[str, str]] = set()
        self._bytes = 0

    def take(self, message: Piece | Done) -> None:
        if message.number != self.number or self.done is not None:
            raise Disconnected("speaks of a cell that isn't under way")
        if isinstance(message, Done):
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
        # What started its ranks failed, and none of them tells: the first stands for them.
        ranks = ranks_among(self._own.values())
        return [
            *named,
            *(Exit(ended.code, ranks[0].id) for ended in self.done.exits if ended.participant is None and ranks),
        ]
