"""What was spent, counted so that it is never less than the truth: not after a kill, a full disk or an old checkpoint.

There is one history for every process that ever spent. Only that one adds to it, so of two copies of a history the
longer is right, and different histories add up.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import uuid
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rigdyno.engines.dp.accounting import Accountant, Epsilon, Spent, check_count
from rigdyno.engines.dp.accounting import epsilon as epsilon_of
from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.ledger_file import Histories, LedgerFile, as_document, parsed, short


class Ledger:
    """Counts every noisy gradient before it is released: in memory, or with `Ledger.open` on disk as well."""

    def __init__(self) -> None:
        self._own = uuid.uuid4().hex
        self._histories: Histories = {}
        self._file: LedgerFile | None = None
        self.restarts = 0  # how often another history was taken in, or this one was forked
        self._one_at_a_time = threading.Lock()
        _LIVING.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str], reserve: int = 64) -> Ledger:
        """Creates the file or goes on with it. Steps are written ahead, `reserve` at a time, so that not every one
        waits for the disk; `close` writes the exact figure, and after a kill the whole reserve counts as spent."""
        check_count("reserve", reserve)
        ledger = cls()
        ledger._use(LedgerFile(Path(path).resolve(), ledger._own, reserve))
        return ledger

    def reopen(self) -> None:
        """After `close`: goes on with the file, and with what others have spent meanwhile."""
        with self._one_at_a_time:
            if self._file is not None and self._file.closed:
                self._use(LedgerFile(self._file.path, self._own, self._file.reserve))

    def _use(self, file: LedgerFile) -> None:
        self._file = file
        self._count(_joined(self._histories, file.histories))
        weakref.finalize(self, file.close)

    def spend(self, noise_multiplier: float, sample_rate: float) -> None:
        """Call it before the gradient is released. Where it raises, nothing may be released."""
        step = Spent(noise_multiplier, sample_rate, 1)
        with self._one_at_a_time:
            own = self._histories.get(self._own, [])
            self._count({**self._histories, self._own: [*own[:-1], *_merged([*own[-1:], step])]})

    @property
    def used(self) -> bool:
        return bool(self._histories)

    @property
    def spent(self) -> list[Spent]:
        """All histories, one after the other; equal runs next to each other are one."""
        return _merged([run for history in self._histories.values() for run in history])

    def epsilon(self, delta: float, accountant: Accountant = "pld") -> Epsilon:
        return epsilon_of(self.spent, delta, accountant)

    def state_dict(self) -> dict[str, Any]:
        """Plain figures, for a checkpoint."""
        return as_document(self._histories)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes in what a checkpoint knows, and never lowers a count. Of a history that both have, the longer copy
        stays: the steps after the checkpoint were released all the same. A history that only one of them has counts in
        full. Where two copies went different ways, what they share counts once, and both ends count."""
        try:
            theirs = parsed(state)
        except ValueError as error:
            raise BadSetting(f"this state is no privacy ledger: {short(error)}") from error
        with self._one_at_a_time:
            self._count(_joined(self._histories, theirs))
            self.restarts += bool(theirs)

    def close(self) -> None:
        """Writes the exact figure and lets others in. A ledger in memory has nothing to close."""
        with self._one_at_a_time:
            if self._file is not None:
                self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _count(self, histories: Histories) -> None:
        if self._file is not None:
            self._file.cover(histories)
        self._histories = histories

    def _after_fork(self) -> None:
        """In the child, whose steps are a history of their own; the file stays with the parent."""
        self._own = uuid.uuid4().hex
        self.restarts += 1
        self._one_at_a_time = threading.Lock()
        if self._file is not None:
            self._file.unlock()  # this copy of the lock: otherwise workers would hold it after their parent was killed


def _joined(ours: Histories, theirs: Histories) -> Histories:
    return {name: _longer(ours.get(name, []), theirs.get(name, [])) for name in {**ours, **theirs}}


def _longer(ours: list[Spent], theirs: list[Spent]) -> list[Spent]:
    """Ours, and what theirs has beyond the steps that they share."""
    shared = 0
    for our, their in zip(ours, theirs, strict=False):
        shared += min(our.steps, their.steps) if our.same_kind(their) else 0
        if our != their:
            break
    return _merged([*ours, *_without(shared, theirs)])


def _without(steps: int, history: list[Spent]) -> Iterator[Spent]:
    """The history behind its first `steps` steps."""
    for run in history:
        left_out = min(steps, run.steps)
        steps -= left_out
        if left_out < run.steps:
            yield dataclasses.replace(run, steps=run.steps - left_out)


def _merged(runs: Sequence[Spent]) -> list[Spent]:
    merged: list[Spent] = []
    for run in runs:
        before = merged.pop().steps if merged and merged[-1].same_kind(run) else 0
        merged.append(dataclasses.replace(run, steps=before + run.steps))
    return merged


_LIVING: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _forked() -> None:
    for ledger in list(_LIVING):
        ledger._after_fork()


os.register_at_fork(after_in_child=_forked)
