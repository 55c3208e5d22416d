"""How two arms take turns: an arm's meter at one end of a socket, the referee's seat for it at the other.

The referee sends how many steps to do and how to flag them, the arm answers with when they began and ended. An arm that
dies shows as end of file at once. Imports next to nothing: an arm without a framework starts in milliseconds.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rigdyno.clock import Clock, process_cpu_ns, thread_cpu_ns

if TYPE_CHECKING:
    from rigdyno.contracts import Step
    from rigdyno.schema.samples import RowFile

REQUEST = struct.Struct("<IHH")  # steps to do, the row's flags, on which core to begin; no steps: it is over
REPLY = struct.Struct("<qqd")  # start_ns, end_ns, items; the first one only says that the arm is ready
FLAG_BITS = 16
FLUSH_NS = 500_000_000  # what a crash may cost
OTHER_THREADS_SHARE = 0.05  # of a process's time on the cores; a pool that takes part in the steps has far more
# Whole messages where the system has them (Linux); a stream of fixed-size ones does as well.
SOCKET_KIND = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_STREAM)
try:
    socket.socket(socket.AF_UNIX, SOCKET_KIND).close()
except OSError:  # macOS names it and doesn't have it
    SOCKET_KIND = socket.SOCK_STREAM


class ArmLost(Exception):
    """The arm's process is gone."""


class ArmStuck(Exception):
    """A turn of this arm doesn't end."""

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


class Cores:
    """Lets a turn begin on a given core. Left to the scheduler each arm stays where it is, and a neighbour on the core
    of one of them is taken for a difference: ratios of identical processes of one thread were up to 5 % off, and below
    1 % on the same core. Not for steps of several threads: moved onto the core of another thread of its own pool, a
    step waits for its time slice, and turns became 15 times as long."""

    def __init__(self) -> None:
        self._allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._process_ns, self._thread_ns = process_cpu_ns(), thread_cpu_ns()

    def begin_on(self, number: int) -> None:
        """Moves this thread there and lets go of it again: a step may use any core, as it always does."""
        if len(self._allowed) > 1 and self._one_thread_works():
            os.sched_setaffinity(0, {self._allowed[number % len(self._allowed)]})
            os.sched_setaffinity(0, self._allowed)

    def _one_thread_works(self) -> bool:
        """From what ran since the turns began."""
        whole_ns = process_cpu_ns() - self._process_ns
        others_ns = whole_ns - (thread_cpu_ns() - self._thread_ns)
        return others_ns < OTHER_THREADS_SHARE * whole_ns


def _nothing() -> None:
    pass


class TurnMeter:
    """The meter of one arm: `more` waits for its turn. A step of a turn is one of each of the workload's kinds.

    Of an arm of several ranks, the first is told and tells the others, by the one way that they have to `agree`; a turn
    is over once all of them are done."""

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
        self._cores = Cores()
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
        self._steps, self._flags, core = self._told()
        self._left, self._items = self._steps * self._kinds, 0.0
        if not self._left:
            self._ended()
            return False
        if self._agree is None:  # else each has cores of its own
            self._cores.begin_on(core)
        if self._synchronise is not None:
            self._synchronise()
        self._start_ns = self._now_ns()
        return True

    def _told(self) -> tuple[int, int, int]:
        request = None if self._turns is None else _receive(self._turns, REQUEST.size)
        # Without one the referee is gone, and so is the duel.
        steps, flags, core = (0, 0, 0) if request is None else REQUEST.unpack(request)
        if self._agree is not None:  # whoever isn't told says 0
            steps, flags = divmod(self._agree((steps << FLAG_BITS) + flags), 1 << FLAG_BITS)
        return steps, flags, core

    def _end_turn(self) -> None:
        """All of it in this arm's own time: while the other one steps, this one does nothing."""
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
            return  # then the next wait for a turn ends at once

    def _flush(self) -> None:
        if self._rows:
            self._file.append(bytes(self._rows))
            self._rows.clear()


class Seat:
    """The referee's end of one arm's socket."""

    def __init__(self, arm: int, turns: socket.socket, clock: Clock, until_ns: int) -> None:
        self._arm, self._turns, self._clock, self._until_ns = arm, turns, clock, until_ns

    def wait_until_ready(self, tick: Callable[[], None], tick_seconds: float) -> None:
        """Building takes seconds: `tick` is called meanwhile."""
        while True:
            left = self._seconds_left()
            self._turns.settimeout(min(tick_seconds, left))
            try:
                self._answer()
            except TimeoutError:
                tick()
            else:
                self._turns.settimeout(left)  # once: setting it for every turn would cost more than the turn's bytes
                return

    def turn(self, steps: int, flags: int, core: int) -> Turn:
        try:
            self._turns.sendall(REQUEST.pack(steps, flags, core))
            return self._answer()
        except (BrokenPipeError, ConnectionResetError):
            raise ArmLost from None
        except TimeoutError:
            raise ArmStuck(self._arm) from None

    def rest(self) -> None:
        """Until its next turn: a process that waits for a message does nothing by itself."""

    def dismiss(self) -> None:
        try:
            self._turns.sendall(REQUEST.pack(0, 0, 0))
        except OSError:
            return  # it is gone already

    def _answer(self) -> Turn:
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
    """A whole message; None at the end of file."""
    try:
        message = end.recv(size)
        while message and len(message) < size:
            rest = end.recv(size - len(message))
            message = message + rest if rest else b""
    except ConnectionResetError:
        return None
    return message or None
