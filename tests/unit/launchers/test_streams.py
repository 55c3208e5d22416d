"""Tests of frames over real pipes and sockets: whatever the peer does, the result is a message, None, or a reason."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.launchers.nodes import streams
from rigdyno.launchers.nodes.calls import GREETING, MOST_CHATTER_BYTES, CalledStream
from rigdyno.launchers.nodes.streams import MOST_BYTES, Disconnected, Frames


@pytest.fixture
def pair():
    """Return our end, and the bare socket of the other end."""
    ours, theirs = socket.socketpair()
    descriptor = ours.detach()
    frames = Frames(descriptor, descriptor)
    yield frames, theirs
    frames.close()
    theirs.close()


def framed(content):
    return struct.pack(">I", len(content)) + content + b"\n"


@given(contents=st.lists(st.binary(max_size=300), max_size=8), cut=st.integers(1, 40))
@settings(deadline=None)
def test_messages_are_received_intact_however_they_are_split(contents, cut):
    ours, theirs = socket.socketpair()
    with theirs:
        descriptor = ours.detach()
        frames = Frames(descriptor, descriptor)
        whole = b"".join(map(framed, contents))
        for start in range(0, len(whole), cut):
            theirs.sendall(whole[start : start + cut])
        assert [frames.receive(1.0) for _ in contents] == contents
        assert frames.receive(0.0) is None
        frames.close()


def test_a_large_message_goes_through_pipes():
    reading, writing = os.pipe()
    frames = Frames(reading, writing)
    content = os.urandom(30_000)
    frames.send(content)
    assert frames.receive(1.0) == content
    frames.close()
    frames.close()  # closing twice must not close another descriptor


def test_half_a_message_is_none_and_then_disconnected(pair):
    frames, other = pair
    other.sendall(framed(b"hello")[:-2])
    assert frames.receive(0.05) is None
    other.close()
    with pytest.raises(Disconnected, match="is gone"):
        frames.receive(1.0)


def test_a_message_that_is_too_long_is_refused_before_it_is_read(pair):
    frames, other = pair
    other.sendall(struct.pack(">I", MOST_BYTES + 1))
    with pytest.raises(Disconnected, match="longer than any of ours"):
        frames.receive(1.0)
    with pytest.raises(Disconnected, match="can't be sent"):
        frames.send(bytes(MOST_BYTES + 1))


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1ab"])
def test_a_foreign_protocol_is_refused(pair, noise):
    frames, other = pair
    other.sendall(noise + bytes(20))
    with pytest.raises(Disconnected):
        frames.receive(1.0)


def test_a_peer_that_never_reads_is_given_up(pair, monkeypatch):
    monkeypatch.setattr(streams, "SEND_SECONDS", 0.1)
    frames, _ = pair
    with pytest.raises(Disconnected, match=r"takes nothing for 0.1 s"):
        frames.send(bytes(4 * 2**20))  # more than a socket holds


@contextmanager
def called(before):
    """Give a stream to a shell that has printed something, and the shell's end."""
    ours, theirs = socket.socketpair()
    with theirs:
        descriptor = ours.detach()
        theirs.sendall(before)
        stream = CalledStream(descriptor, descriptor)
        yield stream, theirs
        stream.close()


def test_output_of_a_login_shell_is_skipped():
    with called(b"Welcome to cluster\xff!\nlast login: never" + GREETING + framed(b"hello")) as (stream, other):
        assert stream.receive(1.0) == b"hello"
        other.sendall(framed(GREETING))  # after the first one it is a message like any other
        assert stream.receive(1.0) == GREETING


def test_a_shell_that_only_prints_is_given_up():
    with called(b"no such file or directory\n") as (stream, other):
        assert stream.receive(0.05) is None
        other.sendall(bytes(MOST_CHATTER_BYTES + 1))
        with pytest.raises(Disconnected, match="prints something else"):
            stream.receive(1.0)
