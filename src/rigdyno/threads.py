"""Calls that may hang, made by a thread that nobody has to wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class Answer(NamedTuple):
    value: Any = None
    error: Exception | None = None


def answered(call: Callable[[], Any]) -> Answer:
    try:
        return Answer(call())
    except Exception as error:  # noqa: BLE001  # whatever an installed probe throws is its own affair
        return Answer(error=error)


class Worker:
    """A thread that does what it is asked, one thing at a time. Daemonic: a call that never returns doesn't keep the
    process from its end."""

    def __init__(self, name: str) -> None:
        self._asked: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._answers.put(answered(self._asked.get()))

    def forget(self) -> None:
        """Answers that came too late, or that nobody wants."""
        while not self._answers.empty():
            self._answers.get()

    def ask(self, call: Callable[[], Any]) -> None:
        self._asked.put(call)

    def answer(self, seconds: float) -> Answer | None:
        """None: it takes longer."""
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            return None


def trouble_of(answer: Answer | None, seconds: float) -> str | None:
    """Why there is no value, in words; None: there is one."""
    if answer is None:
        return f"it didn't answer within {seconds:g} s"
    return None if answer.error is None else f"it failed: {answer.error or type(answer.error).__name__}"
