"""Message streams between nodes: frames over a pair of descriptors, authenticated by the run's secret.

A frame is a length, that many bytes, and a newline; everything that arrives is checked. The newline is for srun, which
forwards a task's output line by line. Everything has a deadline: a peer that doesn't read, or stops in the middle of a
frame, is given up.

In the handshake each end sends a random number, and answers with a keyed hash of both, so that neither a recording nor
an end's own messages can be replayed. After that every message carries a hash over its sender, its number and its
content, with a key of this connection. Nothing is encrypted: only a plan and its figures are sent.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from rigdyno.base.addresses import is_loopback
from rigdyno.base.clock import Deadline
from rigdyno.base.errors import BadValue, RigdynoError, UsageError
from rigdyno.launchers.nodes.children import SECRET_VARIABLE

MOST_BYTES = 8 * 2**20  # largest frame: a plan of ten thousand ranks, or a piece of a file

PIECE_BYTES = 2**20

SEND_SECONDS = 60.0

HAND_SHAKE_SECONDS = 10.0

LEAST_CHARACTERS = 16

MOST_CHARACTERS = 4096

HOW_TO_MAKE = "python3 -c 'import secrets; print(secrets.token_hex(32))' > run.secret; chmod 600 run.secret"

_NONCE_BYTES = _TAG_BYTES = 32

_HAND_SHAKE_BYTES = 256  # largest frame of a peer that isn't authenticated yet

_GREETING = b"rigdyno nodes 1\n"  # increased when older versions would misread what follows

Side = Literal["leader", "node"]

_LENGTH, _END = struct.Struct(">I"), b"\n"


class Disconnected(RigdynoError):
    """The peer is gone, or breaks the protocol. The message lacks the subject: 'is gone', 'sends ...'."""


class MessageStream(Protocol):
    def send(self, content: bytes) -> None: ...

    def receive(self, seconds: float) -> bytes | None:
        """Return the next message, or None if none arrives within the time."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when something has arrived or the peer is gone."""
        ...

    def close(self) -> None: ...


class Frames:
    """Sends and receives frames. It owns both descriptors, which are the same for a socket."""

    def __init__(self, reading: int, writing: int, received: bytes = b"") -> None:
        self._reading, self._writing, self._received = reading, writing, bytearray(received)
        self.most_bytes = MOST_BYTES  # less until the peer is authenticated
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        return self._reading

    def send(self, content: bytes) -> None:
        if len(content) > MOST_BYTES:
            raise Disconnected(f"can't be sent a message of {len(content):,} bytes")
        left = memoryview(_LENGTH.pack(len(content)) + content + _END)
        deadline = Deadline(SEND_SECONDS)
        while left:
            if not _is_ready(self._writing, select.POLLOUT, deadline):
                raise Disconnected(f"takes nothing for {SEND_SECONDS:g} s")
            try:
                left = left[os.write(self._writing, left) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Disconnected(f"is gone ({(error.strerror or str(error)).lower()})") from error

    def receive(self, seconds: float) -> bytes | None:
        deadline = Deadline(seconds)
        while (content := self._take_frame()) is None:
            if not self._read_until(deadline):
                return None
        return content

    def _take_frame(self) -> bytes | None:
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

    def _read_until(self, deadline: Deadline) -> bool:
        """Read what arrives, and return whether anything did before the deadline."""
        if not _is_ready(self._reading, select.POLLIN, deadline):
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


def _is_ready(descriptor: int, event: int, deadline: Deadline) -> bool:
    """Wait for the event with poll: select supports only about the first thousand descriptors."""
    if descriptor < 0:
        raise Disconnected("is gone")
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(1000 * deadline.left))


def read_secret(file: str | None, variables: Mapping[str, str] = os.environ) -> bytes | None:
    """Read the secret from the file, else from the environment; None if there is none."""
    if file is not None:
        return _check_secret(_read_secret_file(Path(file)), file)
    return _check_secret(variables[SECRET_VARIABLE], f"${SECRET_VARIABLE}") if variables.get(SECRET_VARIABLE) else None


def _read_secret_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise BadValue(f"others may read the secret in {path}; try: chmod 600 {path}")
        with path.open(encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadValue(f"can't read the secret in {path}: {reason}; make one with: {HOW_TO_MAKE}") from None
    except UnicodeDecodeError:
        raise BadValue(f"the secret in {path} must be text; make one with: {HOW_TO_MAKE}") from None


def _check_secret(text: str, where: str) -> bytes:
    secret = text.strip()
    if not LEAST_CHARACTERS <= len(secret) <= MOST_CHARACTERS:
        bounds = f"{LEAST_CHARACTERS} to {MOST_CHARACTERS} characters"
        raise BadValue(f"the secret in {where} must have {bounds}; make one with: {HOW_TO_MAKE}")
    return secret.encode(errors="surrogateescape")


def require_secret(address: str, secret: bytes | None) -> bytes:
    """Return the secret, or a constant on the loopback interface, which only users of this machine can reach. Raises
    UsageError if a secret is needed and there is none."""
    if secret is not None:
        return secret
    if is_loopback(address):
        return b"nobody else is on this machine"
    raise UsageError(
        f"nodes that meet at {address} must share a secret: {HOW_TO_MAKE}; copy it to every node and add "
        f"--secret-file run.secret (or set ${SECRET_VARIABLE})"
    )


class SealedStream:
    """A stream in which every message is authenticated and in order."""

    def __init__(self, frames: Frames, key: bytes, side: Side) -> None:
        other: Side = "node" if side == "leader" else "leader"
        self._frames, self._key, self._own, self._other = frames, key, side.encode(), other.encode()
        self._sent = self._received = 0

    def fileno(self) -> int:
        return self._frames.fileno()

    def send(self, content: bytes) -> None:
        self._frames.send(self._tag(self._own, self._sent, content) + content)
        self._sent += 1

    def receive(self, seconds: float) -> bytes | None:
        whole = self._frames.receive(seconds)
        if whole is None:
            return None
        tag, content = whole[:_TAG_BYTES], whole[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(self._other, self._received, content)):
            raise Disconnected("sends a message that isn't sealed with the run's secret")
        self._received += 1
        return content

    def _tag(self, sender: bytes, number: int, content: bytes) -> bytes:
        return _hash(self._key, sender, number.to_bytes(8, "big"), content)

    def close(self) -> None:
        self._frames.close()


def authenticate_node(frames: Frames, secret: bytes) -> tuple[int, SealedStream]:
    """Do the leader's part of the handshake. Return the number of the authenticated node, and the stream to it."""
    own, frames.most_bytes = os.urandom(_NONCE_BYTES), _HAND_SHAKE_BYTES
    frames.send(_GREETING + own)
    answer = _receive_exactly(frames, 4 + _NONCE_BYTES + _TAG_BYTES)
    node, theirs, proof = answer[:4], answer[4 : 4 + _NONCE_BYTES], answer[4 + _NONCE_BYTES :]
    if not hmac.compare_digest(proof, _hash(secret, b"node", own, theirs, node)):
        raise Disconnected("has another secret")
    frames.send(_hash(secret, b"leader", own, theirs, node))
    frames.most_bytes = MOST_BYTES
    return int.from_bytes(node, "big"), SealedStream(frames, _hash(secret, b"session", own, theirs, node), "leader")


def authenticate_leader(frames: Frames, secret: bytes, number: int) -> SealedStream:
    """Do a node's part of the handshake: the leader must authenticate itself before any of its messages count."""
    frames.most_bytes = _HAND_SHAKE_BYTES
    greeting = _receive_exactly(frames, len(_GREETING) + _NONCE_BYTES)
    if not greeting.startswith(_GREETING):
        raise Disconnected("isn't a Rigdyno of this version")
    theirs, own, node = greeting[len(_GREETING) :], os.urandom(_NONCE_BYTES), number.to_bytes(4, "big")
    frames.send(node + own + _hash(secret, b"node", theirs, own, node))
    try:
        proof = _receive_exactly(frames, _TAG_BYTES)
    except Disconnected:
        raise Disconnected("turned this node away: is the secret the same on both?") from None
    if not hmac.compare_digest(proof, _hash(secret, b"leader", theirs, own, node)):
        raise Disconnected("doesn't know the run's secret")
    frames.most_bytes = MOST_BYTES
    return SealedStream(frames, _hash(secret, b"session", theirs, own, node), "node")


def _receive_exactly(frames: Frames, length: int) -> bytes:
    content = frames.receive(HAND_SHAKE_SECONDS)
    if content is None:
        raise Disconnected(f"says nothing for {HAND_SHAKE_SECONDS:g} s")
    if len(content) != length:
        raise Disconnected("isn't a Rigdyno of this version")
    return content


def _hash(key: bytes, *parts: bytes) -> bytes:
    """Hash every part with its length, so that no two lists of parts give the same bytes."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
