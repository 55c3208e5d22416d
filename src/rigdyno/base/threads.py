"""Calls that may hang, made in a daemon thread so that the caller can stop waiting."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class CallResult(NamedTuple):
    """The value that a call returned, or the error that it raised."""

    value: Any = None
    error: Exception | None = None


def call_safely(call: Callable[[], Any]) -> CallResult:
    """Make a call and return its error instead of raising it."""
    try:
        return CallResult(call())
    except Exception as error:  # noqa: BLE001  # an installed probe may raise anything
        return CallResult(error=error)


class WorkerThread:
    """A thread that makes one call after the other; being a daemon, it doesn't keep the process alive if one hangs."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[CallResult] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._results.put(call_safely(self._calls.get()))

    def discard_results(self) -> None:
        """Drop results that came too late or that are not needed."""
        while not self._results.empty():
            self._results.get()

    def submit(self, call: Callable[[], Any]) -> None:
        """Queue a call; its result comes from `wait_for_result`."""
        self._calls.put(call)

    def wait_for_result(self, seconds: float) -> CallResult | None:
        """Return the next result, or None if it takes longer."""
        try:
            return self._results.get(timeout=seconds)
        except queue.Empty:
            return None


def describe_trouble(result: CallResult | None, seconds: float) -> str | None:
    """Return why a call that was given so many seconds has no value, or None if it has one."""
    if result is None:
        return f"it didn't answer within {seconds:g} s"
    return None if result.error is None else f"it failed: {result.error or type(result.error).__name__}"
