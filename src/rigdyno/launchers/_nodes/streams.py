"""Frames over a pair of descriptors: a length, so many bytes, a new line. Nothing that comes in is believed before it
is checked.

The new line is for srun, which passes on what a task prints line by line. Everything has a deadline: a peer that
doesn't read, or stops in the middle of a frame, is given up.
"""

from __future__ import annotations

import os
import select
import struct
import time
from typing import Protocol

from rigdyno.errors import RigdynoError

MOST_BYTES = 8 * 2**20  # in a frame: a plan of ten thousand ranks, or a piece of a file
PIECE_BYTES = 2**20
SEND_SECONDS = 60.0
_LENGTH, _END = struct.Struct(">I"), b"\n"


class Disconnected(RigdynoError):
    """The other side is gone, or doesn't keep to the protocol. The message says what it does, without naming it:
    'is gone', 'sends ...'."""


class Stream(Protocol):
    def send(self, content: bytes) -> None: ...

    def receive(self, seconds: float) -> bytes | None:
        """The next message; None if none comes within that time."""
        ...

    def fileno(self) -> int:
        """Readable when something has come, or the other side is gone."""
        ...

    def close(self) -> None: ...


class Frames:
    """Owns both descriptors (the same one twice, for a socket)."""

    def __init__(self, reading: int, writing: int, received: bytes = b"") -> None:
        self._reading, self._writing, self._received = reading, writing, bytearray(received)
        self.most_bytes = MOST_BYTES  # less for whoever isn't known yet
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        return self._reading

    def send(self, content: bytes) -> None:
        if len(content) > MOST_BYTES:
            raise Disconnected(f"can't be sent a message of {len(content):,} bytes")
        left = memoryview(_LENGTH.pack(len(content)) + content + _END)
        deadline = time.monotonic() + SEND_SECONDS
        while left:
            if not _ready(self._writing, select.POLLOUT, deadline):
                raise Disconnected(f"takes nothing for {SEND_SECONDS:g} s")
            try:
                left = left[os.write(self._writing, left) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Disconnected(f"is gone ({(error.strerror or str(error)).lower()})") from error

    def receive(self, seconds: float) -> bytes | None:
        deadline = time.monotonic() + seconds
        while (whole := self._taken()) is None:
            if not self._read_by(deadline):
                return None
        return whole

    def _taken(self) -> bytes | None:
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > self.most_bytes:
            raise Disconnected(f"sends a message of {length:,} bytes, which is longer than any of ours")
        end = _LENGTH.size + length
        if len(self._received) < end + len(_END):
            return None
        content = bytes(self._received[_LENGTH.size : end])
        if self._received[end : end + len(_END)] != _END:
            raise Disconnected("sends what isn't a message of ours")
        del self._received[: end + len(_END)]
        return content

    def _read_by(self, deadline: float) -> bool:
        """Takes what comes; whether anything did before the deadline."""
        if not _ready(self._reading, select.POLLIN, deadline):
            return False
        self._read()
        return True

    def _read(self) -> None:
        try:
            content = os.read(self._reading, 2**18)
        except BlockingIOError:
            return
        except OSError as error:
            raise Disconnected(f"is gone ({(error.strerror or str(error)).lower()})") from error
        if not content:
            raise Disconnected("is gone")
        self._received += content

    def close(self) -> None:
        for descriptor in {self._reading, self._writing} - {-1}:
            os.close(descriptor)
        self._reading = self._writing = -1


def _ready(descriptor: int, event: int, deadline: float) -> bool:
    """Not by select, which knows the first thousand descriptors only."""
    if descriptor < 0:
        raise Disconnected("is gone")
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))))
