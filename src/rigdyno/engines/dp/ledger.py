"""The privacy ledger and checkpoints.

The ledger counts the privacy spent. It never counts less than the truth, even after a kill, a full disk or an old
checkpoint. It has one history for every process that ever spent. Only that process adds to it, so of two copies of a
history the longer one is right, and different histories add up. A checkpoint is one file with network, optimizer and
ledger.
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

import torch
from torch import nn
from torch.optim import Optimizer

from rigdyno.base.errors import os_error_reason
from rigdyno.base.files import atomic_write
from rigdyno.engines.dp.accounting import Accountant, Epsilon, Spent, check_count
from rigdyno.engines.dp.accounting import epsilon as epsilon_of
from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.ledger_file import Histories, LedgerFile, make_document, parse_ledger, shorten

FORM = "rigdyno private training 1"  # identifies a checkpoint


class Ledger:
    """Counts every noisy gradient before it is released: in memory, or with `Ledger.open` on disk as well."""

    def __init__(self) -> None:
        self._own = uuid.uuid4().hex
        self._histories: Histories = {}
        self._file: LedgerFile | None = None
        self.restarts = 0  # how often another history was loaded, or this process was forked
        self._one_at_a_time = threading.Lock()
        _LIVE_LEDGERS.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str], reserve: int = 64) -> Ledger:
        """Open a ledger file, or create it.

        Steps are written ahead, `reserve` at a time, so that not every step waits for the disk. `close` writes the
        exact count; after a kill the whole reserve counts as spent.
        """
        check_count("reserve", reserve)
        ledger = cls()
        ledger._use(LedgerFile(Path(path).resolve(), ledger._own, reserve))
        return ledger

    def reopen(self) -> None:
        """Open the file again after `close`, including what other processes have spent meanwhile."""
        with self._one_at_a_time:
            if self._file is not None and self._file.closed:
                self._use(LedgerFile(self._file.path, self._own, self._file.reserve))

    def _use(self, file: LedgerFile) -> None:
        self._file = file
        self._count(_join_histories(self._histories, file.histories))
        weakref.finalize(self, file.close)

    def spend(self, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step. Call this before the gradient is released; if it raises, nothing may be released."""
        step = Spent(noise_multiplier, sample_rate, 1)
        with self._one_at_a_time:
            own = self._histories.get(self._own, [])
            self._count({**self._histories, self._own: [*own[:-1], *_merge_runs([*own[-1:], step])]})

    @property
    def used(self) -> bool:
        return bool(self._histories)

    @property
    def spent(self) -> list[Spent]:
        """All histories, one after the other, with equal neighbouring runs merged."""
        return _merge_runs([run for history in self._histories.values() for run in history])

    def epsilon(self, delta: float, accountant: Accountant = "pld") -> Epsilon:
        return epsilon_of(self.spent, delta, accountant)

    def state_dict(self) -> dict[str, Any]:
        """Return the histories as plain data, for a checkpoint."""
        return make_document(self._histories)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Add the histories of a checkpoint; this never lowers a count.

        Of a history that both have, the longer copy stays, because the steps after the checkpoint were released too. A
        history that only one of them has counts in full. If two copies of a history diverge, their common beginning
        counts once, and both ends count.
        """
        try:
            theirs = parse_ledger(state)
        except ValueError as error:
            raise BadSetting(f"this state is no privacy ledger: {shorten(error)}") from error
        with self._one_at_a_time:
            self._count(_join_histories(self._histories, theirs))
            self.restarts += bool(theirs)

    def close(self) -> None:
        """Write the exact count and unlock the file. A ledger in memory has nothing to close."""
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
        """Start a separate history in a forked child. The file stays with the parent."""
        self._own = uuid.uuid4().hex
        self.restarts += 1
        self._one_at_a_time = threading.Lock()
        if self._file is not None:
            self._file.unlock()  # this copy of the lock: otherwise workers would hold it after their parent was killed


def _join_histories(ours: Histories, theirs: Histories) -> Histories:
    return {name: _join_history(ours.get(name, []), theirs.get(name, [])) for name in {**ours, **theirs}}


def _join_history(ours: list[Spent], theirs: list[Spent]) -> list[Spent]:
    """Return our copy, followed by the steps that theirs has beyond the common beginning."""
    shared = 0
    for our, their in zip(ours, theirs, strict=False):
        shared += min(our.steps, their.steps) if our.same_kind(their) else 0
        if our != their:
            break
    return _merge_runs([*ours, *_skip_steps(shared, theirs)])


def _skip_steps(steps: int, history: list[Spent]) -> Iterator[Spent]:
    """Yield the history without its first `steps` steps."""
    for run in history:
        skipped = min(steps, run.steps)
        steps -= skipped
        if skipped < run.steps:
            yield dataclasses.replace(run, steps=run.steps - skipped)


def _merge_runs(runs: Sequence[Spent]) -> list[Spent]:
    """Merge neighbouring runs of the same kind."""
    merged: list[Spent] = []
    for run in runs:
        before = merged.pop().steps if merged and merged[-1].same_kind(run) else 0
        merged.append(dataclasses.replace(run, steps=before + run.steps))
    return merged


_LIVE_LEDGERS: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _renew_ledgers() -> None:
    for ledger in list(_LIVE_LEDGERS):
        ledger._after_fork()


os.register_at_fork(after_in_child=_renew_ledgers)


def save(path: Path, module: nn.Module, optimizer: Optimizer | None, ledger: Ledger, extra: dict[str, Any]) -> None:
    """Whole or not at all: it is put in the place of an older one only when it is on the disk."""
    content = {
        "form": FORM,
        "module": module.state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "ledger": ledger.state_dict(),
        "extra": extra,
    }
    with atomic_write(path) as file:
        os.fchmod(file.fileno(), 0o600)  # for its owner alone
        torch.save(content, file)


def load(path: Path, module: nn.Module, optimizer: Optimizer | None, ledger: Ledger) -> dict[str, Any]:
    """Load a checkpoint and return its extra data.

    Nothing in the file is executed. The ledger never counts less than before, because gradients released after the
    checkpoint stay released.
    """
    content = _read(path)
    if optimizer is not None and content["optimizer"] is None:
        raise BadSetting(f"{path} was saved without an optimizer: leave it out")
    ledger.load_state_dict(content["ledger"])  # first: if anything below fails, the count is still complete
    module.load_state_dict(content["module"])
    if optimizer is not None:
        optimizer.load_state_dict(content["optimizer"])
    extra: dict[str, Any] = content["extra"]
    return extra


def _read(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BadSetting(f"can't read {path}: {os_error_reason(error)}") from error
    except Exception as error:  # torch raises many kinds of errors for a file that it didn't write
        raise BadSetting(f"{path} is no checkpoint of private training, or is damaged") from error
    if not isinstance(content, dict) or content.get("form") != FORM:
        raise BadSetting(f"{path} is no checkpoint of private training; engine.save_checkpoint writes one")
    return content
