"""A user's own loop, measured from inside: `with rigdyno.measure("my training", unit="image") as meter: ...`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from rigdyno.analyse.steady import settled_so_far
from rigdyno.clock import SystemClock
from rigdyno.runner.measure import StepMeter
from rigdyno.runner.run_here import RunHere, head_here, outcome_of
from rigdyno.schema.participant import laid_out
from rigdyno.schema.record import Facts
from rigdyno.schema.spec import OWN_LOOP, Cell, Plan, RunSpec


class OwnLoop:
    """Makes a run of one cell out of what happens inside the block; an exception is recorded, and goes on its way."""

    def __init__(self, name: str, unit: str, root: Path, label: str | None, done: Callable[[Path], None]) -> None:
        self._name, self._unit, self._root, self._label, self._done = name, unit, root, label, done

    def __enter__(self) -> StepMeter:
        slug = re.sub(r"[^A-Za-z0-9_-]+", "_", self._name)[:60].strip("_") or "own_loop"
        spec = RunSpec(workload=self._name, launcher=OWN_LOOP)
        cell = Cell(name=f"01-{slug}", spec=spec, participants=laid_out(1, 1, "cpu"))
        head = head_here(Plan(name=self._name, label=self._label, cells=(cell,)))
        self._run = RunHere(self._root, slug, head)
        self._meter = StepMeter(self._run.rows, SystemClock(), None, synchronise=_waiter(), settled=settled_so_far)
        return self._meter

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._meter.close()
        outcome = outcome_of(error or self._run.rows.error)
        record = self._run.end(outcome, Facts(unit=self._unit), device=_device_used())
        if error is None and record is not None:
            self._done(self._run.path)


def _device_used() -> str:
    """As far as the framework tells: whether it has touched a card by now."""
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"


def _waiter() -> Callable[[], None] | None:
    """None where torch is loaded and sees no device that works asynchronously. Otherwise the user's loop may begin to
    use one at any time from now on: look at every row."""
    torch = sys.modules.get("torch")
    if torch is not None and not (torch.cuda.is_available() or _other_device(torch)):
        return None
    return _wait_for_devices


def _wait_for_devices() -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif (other := _other_device(torch)) is not None:
        other.synchronize()


def _other_device(torch: Any) -> Any | None:
    if torch.backends.mps.is_available():
        return torch.mps
    return torch.xpu if torch.xpu.is_available() else None
