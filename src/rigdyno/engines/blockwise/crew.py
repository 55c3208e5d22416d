"""Threads that end with the run they belong to, and whose errors are raised in it.

Ctrl-C interrupts the calling thread, anywhere. So here and in the pipeline it only waits for SimpleQueues, which are
written in C: a Semaphore or an Event may be left half-way, and a `Thread.join` that is interrupted, up to Python 3.12,
takes its thread for ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NoReturn

LOOK_AGAIN_SECONDS = 0.5  # a Ctrl-C that comes just before the thread falls asleep is seen when it wakes

Places = SimpleQueue[None]  # a semaphore: `get` takes a place, `put` gives it back


def places(count: int) -> Places:
    free: Places = SimpleQueue()
    for _ in range(count):
        free.put(None)
    return free


class Stopped(Exception):
    """Ends a thread of the crew, and is no error."""


class Crew:
    """`stop` is called, in the thread that failed, to make the others end."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.errors: list[BaseException] = []
        self._stop = stop
        self._threads: list[threading.Thread] = []
        self._at_work: set[threading.Thread] = set()
        self._ended: SimpleQueue[None] = SimpleQueue()

    def start(self, count: int, work: Callable[[], None]) -> None:
        for _ in range(count):
            # A daemon: after a second Ctrl-C the process must not wait for a disk that hangs.
            thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
            self._at_work.add(thread)
            try:
                thread.start()
            except RuntimeError:  # there are too many
                self._at_work.remove(thread)
                raise
            self._threads.append(thread)

    def join(self) -> None:
        """May be interrupted, and called again."""
        while self._at_work:
            with suppress(Empty):
                self._ended.get(timeout=LOOK_AGAIN_SECONDS)
        for thread in self._threads:
            thread.join()

    @property
    def at_work(self) -> bool:
        return bool(self._at_work)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 (raised again in the calling thread, whatever it is)
            self.errors.append(error)
            self._stop()
        finally:
            self._at_work.remove(threading.current_thread())
            self._ended.put(None)


def raise_all(errors: list[BaseException]) -> NoReturn:
    """The first, with the others as its context: a traceback shows them all."""
    first, *others = errors
    try:
        if others:
            raise_all(others)
    finally:
        raise first
