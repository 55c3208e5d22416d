"""The two ends of the socket through which an arm gets its turns: the arm's meter and the referee's seat.

The referee sends the number of steps and their flags; the arm answers with the times of their start and end. If an arm
dies, the referee sees end of file at once. This module imports very little: an arm without a framework starts in
milliseconds.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rigdyno.base.clock import Clock, process_cpu_ns, thread_cpu_ns

if TYPE_CHECKING:
    from rigdyno.contracts import Step
    from rigdyno.schema.samples import RowFile

REQUEST = struct.Struct("<IHH")  # number of steps (0: end), flags of the row, core to start on

REPLY = struct.Struct("<qqd")  # start_ns, end_ns, items; the first reply only says that the arm is ready

FLAG_BITS = 16

FLUSH_NS = 500_000_000  # the most that a crash may lose

OTHER_THREADS_SHARE = 0.05  # of a process's CPU time; a thread pool that takes part in the steps has far more

# Message sockets if the system has them (Linux); otherwise a stream, as all messages have a fixed size.
SOCKET_KIND = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_STREAM)

try:
    socket.socket(socket.AF_UNIX, SOCKET_KIND).close()
except OSError:  # macOS defines the constant but doesn't support it
    SOCKET_KIND = socket.SOCK_STREAM


class ArmLost(Exception):
    """The arm's process is gone."""


class ArmStuck(Exception):
    """The arm didn't finish its turn in time."""

    def __init__(self, arm: int) -> None:
        self.arm = arm
        super().__init__(f"arm {'AB'[arm]} is stuck")


class Turn(NamedTuple):
    start_ns: int
    end_ns: int
    items: float

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, SOCKET_KIND)


class CorePinning:
    """Makes a turn begin on a given core.

    Left to the scheduler, each arm stays on its core, and other load on one of them looks like a difference: ratios of
    identical single-threaded processes were up to 5 % off, and below 1 % on the same core. It is not used for steps of
    several threads: a thread that is moved onto the core of another thread of its pool waits for a time slice, and
    turns became 15 times as long."""

    def __init__(self) -> None:
        self._allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._process_ns, self._thread_ns = process_cpu_ns(), thread_cpu_ns()

    def begin_on(self, number: int) -> None:
        """Move this thread to a core, and allow all cores again: a step may use any core as usual."""
        if len(self._allowed) > 1 and self._one_thread_works():
            os.sched_setaffinity(0, {self._allowed[number % len(self._allowed)]})
            os.sched_setaffinity(0, self._allowed)

    def _one_thread_works(self) -> bool:
        """Return whether one thread does all the work, from the CPU times since the turns began."""
        whole_ns = process_cpu_ns() - self._process_ns
        others_ns = whole_ns - (thread_cpu_ns() - self._thread_ns)
        return others_ns < OTHER_THREADS_SHARE * whole_ns


def _nothing() -> None:
    pass


class TurnMeter:
    """The meter of one arm: `more` waits for its turn. A step of a turn has one step of each of the workload's kinds.

    In an arm of several ranks, the first gets the request and shares it with the others through `agree`. A turn ends
    when all of them are done."""

    def __init__(
        self,
        file: RowFile,
        row: struct.Struct,
        clock: Clock,
        turns: socket.socket | None,
        *,
        kinds: int = 1,
        agree: Callable[[int], int] | None = None,
        synchronise: Callable[[], None] | None = None,
        ended: Callable[[], None] = _nothing,
    ) -> None:
        self._ended = ended
        self._file, self._row, self._turns, self._kinds, self._agree = file, row, turns, kinds, agree
        self._now_ns, self._synchronise = clock.now_ns, synchronise
        self._cores = CorePinning()
        self._steps = self._left = self._flags = 0
        self._items = 0.0
        self._rows = bytearray()
        self._start_ns = self._flushed_ns = self._now_ns()
        self._reply(Turn(0, 0, 0.0))

    def more(self) -> bool:
        return self._left > 0 or self._next_turn()

    def step(self, items: float = 1.0, kind: int = 0) -> None:
        self._items += items
        self._left -= 1
        if self._left == 0:
            self._end_turn()

    def repeat(self, step: Step, items_per_step: float) -> None:
        while self.more():
            items = step()
            self.step(items_per_step if items is None else items)

    def close(self) -> None:
        self._flush()
        self._file.close()
        if self._turns is not None:
            self._turns.close()

    def _next_turn(self) -> bool:
        self._steps, self._flags, core = self._receive_request()
        self._left, self._items = self._steps * self._kinds, 0.0
        if not self._left:
            self._ended()
            return False
        if self._agree is None:  # ranks have their own cores
            self._cores.begin_on(core)
        if self._synchronise is not None:
            self._synchronise()
        self._start_ns = self._now_ns()
        return True

    def _receive_request(self) -> tuple[int, int, int]:
        request = None if self._turns is None else _receive(self._turns, REQUEST.size)
        # Without a request the referee is gone, and the duel is over.
        steps, flags, core = (0, 0, 0) if request is None else REQUEST.unpack(request)
        if self._agree is not None:  # ranks without a socket contribute 0
            steps, flags = divmod(self._agree((steps << FLAG_BITS) + flags), 1 << FLAG_BITS)
        return steps, flags, core

    def _end_turn(self) -> None:
        """End a turn. All work is done before the reply: this arm is idle while the other one runs."""
        if self._synchronise is not None:
            self._synchronise()
        end_ns = self._now_ns()
        if self._agree is not None:
            self._agree(0)
        self._rows += self._row.pack(self._start_ns, end_ns, self._items, self._steps, 0, self._flags)
        if end_ns - self._flushed_ns >= FLUSH_NS:
            self._flush()
            self._flushed_ns = end_ns
        self._reply(Turn(self._start_ns, end_ns, self._items))

    def _reply(self, turn: Turn) -> None:
        if self._turns is None:
            return
        try:
            self._turns.sendall(REPLY.pack(*turn))
        except (BrokenPipeError, ConnectionResetError):
            return  # the next wait for a turn will end at once

    def _flush(self) -> None:
        if self._rows:
            self._file.append(bytes(self._rows))
            self._rows.clear()


class Seat:
    """The referee's connection to one arm."""

    def __init__(self, arm: int, turns: socket.socket, clock: Clock, until_ns: int) -> None:
        self._arm, self._turns, self._clock, self._until_ns = arm, turns, clock, until_ns

    def wait_until_ready(self, tick: Callable[[], None], tick_seconds: float) -> None:
        """Wait until the arm is ready. Building takes seconds: `tick` is called meanwhile."""
        while True:
            left = self._seconds_left()
            self._turns.settimeout(min(tick_seconds, left))
            try:
                self._receive_reply()
            except TimeoutError:
                tick()
            else:
                self._turns.settimeout(left)  # once: setting it for every turn would cost more than sending the request
                return

    def turn(self, steps: int, flags: int, core: int) -> Turn:
        try:
            self._turns.sendall(REQUEST.pack(steps, flags, core))
            return self._receive_reply()
        except (BrokenPipeError, ConnectionResetError):
            raise ArmLost from None
        except TimeoutError:
            raise ArmStuck(self._arm) from None

    def rest(self) -> None:
        """Keep the arm idle until its next turn. A process that waits for a message is idle anyway."""

    def dismiss(self) -> None:
        try:
            self._turns.sendall(REQUEST.pack(0, 0, 0))
        except OSError:
            return  # the arm is gone already

    def _receive_reply(self) -> Turn:
        reply = _receive(self._turns, REPLY.size)
        if reply is None:
            raise ArmLost
        return Turn(*REPLY.unpack(reply))

    def _seconds_left(self) -> float:
        left_ns = self._until_ns - self._clock.now_ns()
        if left_ns <= 0:
            raise ArmStuck(self._arm)
        return left_ns / 1e9


def _receive(end: socket.socket, size: int) -> bytes | None:
    """Return a complete message; None at end of file."""
    try:
        message = end.recv(size)
        while message and len(message) < size:
            rest = end.recv(size - len(message))
            message = message + rest if rest else b""
    except ConnectionResetError:
        return None
    return message or None
