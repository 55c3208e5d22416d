"""Nobody in without the run's secret: how two ends of a connection prove that they know it, and seal what they say.

Each end sends a random number; each answers with a keyed hash of both, so that neither an eavesdropper's recording nor
one end's own words can be played back. From then on every message carries a hash over its sender, its number and its
content, by a key of this connection alone. Nothing is encrypted: what travels is a plan and its figures.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from rigdyno.errors import BadValue, UsageError
from rigdyno.launchers._address import is_loopback
from rigdyno.launchers._children import SECRET_VARIABLE
from rigdyno.launchers._nodes.streams import MOST_BYTES, Disconnected, Frames

HAND_SHAKE_SECONDS = 10.0
LEAST_CHARACTERS = 16
MOST_CHARACTERS = 4096
HOW_TO_MAKE = "python3 -c 'import secrets; print(secrets.token_hex(32))' > run.secret; chmod 600 run.secret"
_NONCE_BYTES = _TAG_BYTES = 32
_HAND_SHAKE_BYTES = 256  # at most, of somebody who may be anybody
_GREETING = b"rigdyno nodes 1\n"  # raised when older ends would misread what follows

Side = Literal["leader", "node"]


def read_secret(file: str | None, variables: Mapping[str, str] = os.environ) -> bytes | None:
    """From the file, else from the environment; None: there is none."""
    if file is not None:
        return _checked(_content(Path(file)), file)
    return _checked(variables[SECRET_VARIABLE], f"${SECRET_VARIABLE}") if variables.get(SECRET_VARIABLE) else None


def _content(path: Path) -> str:
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


def _checked(text: str, where: str) -> bytes:
    secret = text.strip()
    if not LEAST_CHARACTERS <= len(secret) <= MOST_CHARACTERS:
        bounds = f"{LEAST_CHARACTERS} to {MOST_CHARACTERS} characters"
        raise BadValue(f"the secret in {where} must have {bounds}; make one with: {HOW_TO_MAKE}")
    return secret.encode(errors="surrogateescape")


def secret_for(address: str, secret: bytes | None) -> bytes:
    """On the loopback interface one can do without: nobody but users of this machine gets there."""
    if secret is not None:
        return secret
    if is_loopback(address):
        return b"nobody else is on this machine"
    raise UsageError(
        f"nodes that meet at {address} must share a secret: {HOW_TO_MAKE}; copy it to every node and add "
        f"--secret-file run.secret (or set ${SECRET_VARIABLE})"
    )


class Sealed:
    """A stream whose every message is known to come from the other end, and in this order."""

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


def sealed_by_leader(frames: Frames, secret: bytes) -> tuple[int, Sealed]:
    """The first node's end of the handshake: which node it is that knows the secret, and the stream to it."""
    own, frames.most_bytes = os.urandom(_NONCE_BYTES), _HAND_SHAKE_BYTES
    frames.send(_GREETING + own)
    answer = _expected(frames, 4 + _NONCE_BYTES + _TAG_BYTES)
    node, theirs, proof = answer[:4], answer[4 : 4 + _NONCE_BYTES], answer[4 + _NONCE_BYTES :]
    if not hmac.compare_digest(proof, _hash(secret, b"node", own, theirs, node)):
        raise Disconnected("has another secret")
    frames.send(_hash(secret, b"leader", own, theirs, node))
    frames.most_bytes = MOST_BYTES
    return int.from_bytes(node, "big"), Sealed(frames, _hash(secret, b"session", own, theirs, node), "leader")


def sealed_by_node(frames: Frames, secret: bytes, number: int) -> Sealed:
    """Another node's end: whoever answers there must prove itself before anything it says is listened to."""
    frames.most_bytes = _HAND_SHAKE_BYTES
    greeting = _expected(frames, len(_GREETING) + _NONCE_BYTES)
    if not greeting.startswith(_GREETING):
        raise Disconnected("isn't a Rigdyno of this version")
    theirs, own, node = greeting[len(_GREETING) :], os.urandom(_NONCE_BYTES), number.to_bytes(4, "big")
    frames.send(node + own + _hash(secret, b"node", theirs, own, node))
    try:
        proof = _expected(frames, _TAG_BYTES)
    except Disconnected:
        raise Disconnected("turned this node away: is the secret the same on both?") from None
    if not hmac.compare_digest(proof, _hash(secret, b"leader", theirs, own, node)):
        raise Disconnected("doesn't know the run's secret")
    frames.most_bytes = MOST_BYTES
    return Sealed(frames, _hash(secret, b"session", theirs, own, node), "node")


def _expected(frames: Frames, length: int) -> bytes:
    content = frames.receive(HAND_SHAKE_SECONDS)
    if content is None:
        raise Disconnected(f"says nothing for {HAND_SHAKE_SECONDS:g} s")
    if len(content) != length:
        raise Disconnected("isn't a Rigdyno of this version")
    return content


def _hash(key: bytes, *parts: bytes) -> bytes:
    """Every part with its length: no two lists of parts give the same bytes."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
