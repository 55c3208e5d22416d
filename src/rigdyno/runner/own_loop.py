"""A user's own loop, measured from inside: `with rigdyno.measure("my training", unit="image") as meter: ...`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rigdyno.analyse.steady import settled_so_far
from rigdyno.clock import SystemClock
from rigdyno.rig.devices import loaded_frameworks
from rigdyno.runner.device import waiter_for
from rigdyno.runner.measure import StepMeter
from rigdyno.runner.run_here import RunHere, head_here, outcome_of
from rigdyno.schema.participant import laid_out
from rigdyno.schema.record import Facts
from rigdyno.schema.spec import OWN_LOOP, Cell, Plan, RunSpec
from rigdyno.schema.system import System


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
        waiter = _waiter(head.system)
        self._meter = StepMeter(self._run.rows, SystemClock(), None, synchronise=waiter, settled=settled_so_far)
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
    """As far as the frameworks tell: the kind of those that hold something by now."""
    used = [device for framework in loaded_frameworks() for device in framework.in_use()]
    return used[0].partition(":")[0] if used else "cpu"


def _waiter(system: System) -> Callable[[], None] | None:
    """None where a framework is loaded and none sees a device that works asynchronously. Otherwise the user's loop may
    begin to use one at any time from now on: look at every row."""
    return None if loaded_frameworks() and not system.accelerators else _wait_for_devices


def _wait_for_devices() -> None:
    for framework in loaded_frameworks():
        synchronise = waiter_for(framework, framework.in_use())
        if synchronise is not None:
            synchronise()
