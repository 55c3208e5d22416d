"""A user's own loop, measured from inside: `with rigdyno.measure("my training", unit="image") as meter: ...`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from rigdyno import __version__
from rigdyno.analyse.steady import settled_so_far
from rigdyno.clock import SystemClock, utc_now
from rigdyno.errors import StoreError
from rigdyno.launchers._node import NodeSampler, Part, make_folders
from rigdyno.plan.build import OWN_LOOP
from rigdyno.processes import peak_memory_bytes, write_pid
from rigdyno.rig.devices import loaded_frameworks, look_here, together
from rigdyno.rig.environment import describe_environment
from rigdyno.rig.system import describe_system
from rigdyno.runner.device import memory_of, waiter_for, with_frameworks
from rigdyno.runner.measure import StepMeter
from rigdyno.runner.worker import failure
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.participant import laid_out, ranks_among
from rigdyno.schema.record import LAUNCHER, Completed, DeviceMemory, Facts, Failed, Outcome, RunHead, RunRecord, fullest
from rigdyno.schema.samples import STEP_FIELDS, Header, RowFile
from rigdyno.schema.spec import Cell, Plan, RunSpec
from rigdyno.schema.system import System
from rigdyno.store.files import disk_errors, write_json
from rigdyno.store.folder import RunFolder
from rigdyno.units import seconds_of_ns


class OwnLoop:
    """Makes a run of one cell out of what happens inside the block; an exception is recorded, and goes on its way."""

    def __init__(self, name: str, unit: str, root: Path, label: str | None, done: Callable[[Path], None]) -> None:
        self._name, self._unit, self._root, self._label, self._done = name, unit, root, label, done
        self._clock = SystemClock()
        self._stack = ExitStack()

    def __enter__(self) -> StepMeter:
        slug = re.sub(r"[^A-Za-z0-9_-]+", "_", self._name)[:60].strip("_") or "own_loop"
        spec, participants = RunSpec(workload=self._name, launcher=OWN_LOOP), laid_out(1, 1, "cpu")
        self._cell = Cell(name=f"01-{slug}", spec=spec, participants=participants)
        self._started = utc_now()
        self._folder = RunFolder.create(self._root, slug, self._started)
        self._stack.enter_context(self._folder.locked())
        self._head = self._write_head()
        part = Part(self._cell, self._folder.fresh_cell_folder(self._cell))
        cell_folder, (own,) = CellFolder(part.folder), ranks_among(participants)
        write_json(cell_folder.spec, self._cell)
        with disk_errors(part.folder):
            make_folders(part)
            home = cell_folder.participant(own.id)
            write_pid(home.pid)
            self._file = _ForgivingFile(
                home.rows("steps"), Header(fields=STEP_FIELDS, kinds=("step",), participant=own)
            )
            self._sampler = NodeSampler(part)
        self._began_ns = self._clock.now_ns()
        self._meter = StepMeter(
            self._file, self._clock, None, synchronise=_waiter(self._head.system), settled=settled_so_far
        )
        return self._meter

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """The folder stays locked until the record is there: without one, `clean` would take it for nothing."""
        with self._stack:
            self._meter.close()
            seconds = seconds_of_ns(self._clock.now_ns() - self._began_ns)
            self._exits = self._sampler.stop()
            record = self._record(_outcome(error or self._file.error), seconds)
            try:
                self._folder.write_record(record, self._cell)
            except StoreError as trouble:
                return _warn(str(trouble))
        if error is None:
            self._done(self._folder.path)
        return None

    def _write_head(self) -> RunHead:
        head = RunHead(
            rigdyno_version=__version__,
            created_at=self._started.isoformat(timespec="seconds"),
            plan=Plan(name=self._name, label=self._label, cells=(self._cell,)),
            system=describe_system(together(map(look_here, loaded_frameworks())).accelerators),
            environment=describe_environment(),
        )
        self._folder.write_head(head)
        return head

    def _record(self, outcome: Outcome, seconds: float) -> RunRecord:
        return RunRecord(
            rigdyno_version=__version__,
            run=self._folder.name,
            cell=self._cell.name,
            label=self._label,
            started_at=self._head.created_at,
            seconds=round(seconds, 3),
            spec=replace(self._cell.spec, device=_device_used()),
            system=self._head.system,
            environment=with_frameworks(self._head.environment, loaded_frameworks()),
            facts=Facts(unit=self._unit),
            outcome=outcome,
            participants=self._cell.participants,
            exit_codes={ended.participant or LAUNCHER: ended.code for ended in self._exits},
            peak_memory_bytes=peak_memory_bytes(),
            device_memory=_device_memory(),
            files=CellFolder(self._folder.cell_folder(self._cell)).files(),
        )


class _ForgivingFile(RowFile):
    """A full disk ends the recording, not the user's training."""

    error: OSError | None = None

    def append(self, rows: bytes | memoryview) -> None:
        if self.error is not None:
            return
        try:
            super().append(rows)
        except OSError as error:
            self.error = error
            _warn(f"steps are no longer recorded: {(error.strerror or str(error)).lower()}")


def _warn(message: str) -> None:
    print(f"rigdyno: {message}", file=sys.stderr)  # noqa: T201


def _outcome(error: BaseException | None) -> Outcome:
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return Completed()
    if isinstance(error, KeyboardInterrupt):
        return Failed(kind="interrupted", phase="measure", message="interrupted by Ctrl-C")
    return failure(error, "measure")


def _device_used() -> str:
    """As far as the frameworks tell: the kind of those that hold something by now."""
    used = [device for framework in loaded_frameworks() for device in framework.in_use()]
    return used[0].partition(":")[0] if used else "cpu"


def _device_memory() -> DeviceMemory | None:
    """Of the whole script so far: its own figures are not to be reset."""
    return fullest(memory_of(framework, framework.in_use()) for framework in loaded_frameworks())


def _waiter(system: System) -> Callable[[], None] | None:
    """None where a framework is loaded and none sees a device that works asynchronously. Otherwise the user's loop may
    begin to use one at any time from now on: look at every row."""
    return None if loaded_frameworks() and not system.accelerators else _wait_for_devices


def _wait_for_devices() -> None:
    for framework in loaded_frameworks():
        synchronise = waiter_for(framework, framework.in_use())
        if synchronise is not None:
            synchronise()
