"""Reads all probes one after the other in one thread, which wakes once; one that hangs keeps that thread to itself, and
the others get a new one."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rigdyno.threads import Answer, Worker, answered

Call = Callable[[], Any]


class _Round:
    """Calls in a row, each with its own answer. Who waits is woken once, when all of them are there: every waking up is
    time that the machine being measured doesn't get."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._answers: list[Answer] = []
        self._over: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._given_up = self.is_over = False

    def run(self) -> None:
        for call in self._calls:
            if self._given_up:  # somebody else makes the rest of them
                break
            self._answers.append(answered(call))
        self.is_over = True
        self._over.put(None)

    def answers(self, seconds: float) -> list[Answer]:
        """Those that came within the time. If some are missing, the first of these is under way, and the last of this
        round."""
        try:
            self._over.get(timeout=seconds)
        except queue.Empty:
            self._given_up = True
        return list(self._answers)


class _Group:
    """Probes that share a thread."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._worker = Worker("probes")
        self.round = _Round(())
        self.round.is_over = True

    def start(self, names: Sequence[str], calls: Mapping[str, Call]) -> None:
        self._worker.forget()  # that earlier rounds are over
        self.round = _Round([calls[name] for name in names])
        self._worker.ask(self.round.run)


class Rounds:
    def __init__(self, names: Sequence[str]) -> None:
        self._groups = [_Group(names)]

    def read(self, calls: Mapping[str, Call], seconds: float) -> dict[str, Answer]:
        """By name; those that hang, now or since an earlier round, are left out."""
        ready = [group for group in self._groups if group.round.is_over]
        for group in ready:
            group.start(group.names, calls)
        found: dict[str, Answer] = {}
        for group in ready:
            self._collect(group, list(group.names), calls, seconds, found)
        return found

    def is_hanging(self, name: str) -> bool:
        return any(name in group.names and not group.round.is_over for group in self._groups)

    def _collect(
        self, group: _Group, names: Sequence[str], calls: Mapping[str, Call], seconds: float, found: dict[str, Answer]
    ) -> None:
        answers = group.round.answers(seconds)
        found.update(zip(names, answers, strict=False))
        if len(answers) < len(names):
            stuck, *rest = names[len(answers) :]
            self._leave_to(group, stuck, rest, calls, seconds, found)
        else:
            group.round.is_over = True  # all that it was for

    def _leave_to(
        self,
        group: _Group,
        stuck: str,
        rest: Sequence[str],
        calls: Mapping[str, Call],
        seconds: float,
        found: dict[str, Answer],
    ) -> None:
        """The thread is the stuck one's from now on."""
        others = [name for name in group.names if name != stuck]
        group.names = [stuck]
        if others:
            self._groups.append(new := _Group(others))
        if others and rest:
            new.start(rest, calls)
            self._collect(new, rest, calls, seconds, found)
