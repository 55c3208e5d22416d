"""Record a run of one cell in this process, with its folder, sampler, rows and record.

It is used for a user's own loop: `with rigdyno.measure("my training", unit="image") as meter: ...`.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from rigdyno.analyse.steady import settled_so_far
from rigdyno.base.clock import SystemClock, utc_now
from rigdyno.base.errors import StoreError, os_error_reason
from rigdyno.base.files import disk_errors, write_json
from rigdyno.base.linux import peak_memory_bytes
from rigdyno.base.processes import write_pid
from rigdyno.contracts import Left
from rigdyno.launchers.nodes.local import NodeSampler, NodeShare, make_folders
from rigdyno.rig.devices import find_devices_here, find_loaded_frameworks, merge_devices
from rigdyno.rig.environment import describe_environment
from rigdyno.rig.system import describe_system
from rigdyno.runner.collect import Stamp, record_of
from rigdyno.runner.device import memory_of, waiter_for, with_frameworks
from rigdyno.runner.meter import StepMeter
from rigdyno.runner.worker import failure
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import (
    Completed,
    DeviceMemory,
    Facts,
    Failed,
    Outcome,
    RunHead,
    RunRecord,
    WorkerReport,
    fullest,
)
from rigdyno.schema.samples import STEP_FIELDS, Header, RowFile
from rigdyno.schema.spec import OWN_LOOP, Cell, RunPlan, RunSpec, assign_participants, ranks_among
from rigdyno.schema.system import System
from rigdyno.store.folder import RunFolder


def head_here(plan: RunPlan) -> RunHead:
    """Return the head of a run in this process, with a description of this machine."""
    system = describe_system(merge_devices(map(find_devices_here, find_loaded_frameworks())).accelerators)
    return RunHead.of(plan, system, describe_environment())


class RunHere:
    """A run that starts when the object is created, and lasts until `end`.

    The constructor raises a StoreError, and leaves no files, if nothing can be written. Later errors may lose the
    record, but never interrupt the user's work."""

    def __init__(self, root: Path, name: str, head: RunHead) -> None:
        self._head, (self._cell,) = head, head.plan.cells
        self._stack = ExitStack()
        self._folder = RunFolder.create(root, name, utc_now())
        try:
            self._stack.enter_context(self._folder.locked())
            self._prepare()
        except StoreError:
            self._stack.close()
            shutil.rmtree(self._folder.path, ignore_errors=True)  # it was just created, and has no results
            raise
        self._stamp = Stamp(SystemClock())

    def _prepare(self) -> None:
        self._folder.write_head(self._head)
        part = NodeShare(self._cell, self._folder.fresh_cell_folder(self._cell))
        folder, (own,) = CellFolder(part.folder), ranks_among(self._cell.participants)
        write_json(folder.spec, self._cell)
        with disk_errors(part.folder):
            make_folders(part)
            home = folder.participant(own.id)
            write_pid(home.pid)
            self.log = home.log
            header = Header(fields=STEP_FIELDS, kinds=("step",), participant=own)
            self.rows = ForgivingFile(home.rows("steps"), header)
            self._sampler = NodeSampler(part)

    @property
    def path(self) -> Path:
        return self._folder.path

    def end(self, outcome: Outcome, facts: Facts, device: str | None = None) -> RunRecord | None:
        """Write the record and return it; None if it couldn't be written. `device`: the one that was used, if it is
        only known at the end.

        The folder stays locked until the record is written: `clean` deletes folders without one."""
        with self._stack:
            self.rows.close()
            record = self._stamp.on(self._make_record(outcome, facts, device))
            try:
                self._folder.write_record(record, self._cell)
            except StoreError as trouble:
                warn(str(trouble))
                return None
        return record

    def _make_record(self, outcome: Outcome, facts: Facts, device: str | None) -> RunRecord:
        report = WorkerReport(
            outcome=outcome,
            facts=facts,
            environment=with_frameworks(self._head.environment, find_loaded_frameworks()),
            peak_memory_bytes=peak_memory_bytes(),
            device_memory=_read_device_memory(),
        )
        left, cell = Left(exits=self._sampler.stop()), self._cell
        if device is not None:
            cell = replace(cell, spec=replace(cell.spec, device=device))
        files = CellFolder(self._folder.cell_folder(cell)).files()
        return record_of(self._head, self._folder.name, cell, outcome, reports=[report], left=left, files=files)


def _read_device_memory() -> DeviceMemory | None:
    """Return the peak memory of the whole process: resetting it would disturb the user's own figures."""
    return fullest(memory_of(framework, framework.in_use()) for framework in find_loaded_frameworks())


class ForgivingFile(RowFile):
    """A file that stops recording when the disk is full, instead of interrupting the user's work."""

    error: OSError | None = None

    def append(self, rows: bytes | memoryview) -> None:
        if self.error is not None:
            return
        try:
            super().append(rows)
        except OSError as error:
            self.error = error
            warn(f"steps are no longer recorded: {os_error_reason(error)}")


def warn(message: str) -> None:
    print(f"rigdyno: {message}", file=sys.stderr)  # noqa: T201


def outcome_from_error(error: BaseException | None) -> Outcome:
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return Completed()
    if isinstance(error, KeyboardInterrupt):
        return Failed(kind="interrupted", phase="measure", message="interrupted by Ctrl-C")
    return failure(error, "measure")


class OwnLoop:
    """Records what happens inside the block as a run of one cell. An exception is recorded and raised again."""

    def __init__(self, name: str, unit: str, root: Path, label: str | None, done: Callable[[Path], None]) -> None:
        self._name, self._unit, self._root, self._label, self._done = name, unit, root, label, done

    def __enter__(self) -> StepMeter:
        slug = re.sub(r"[^A-Za-z0-9_-]+", "_", self._name)[:60].strip("_") or "own_loop"
        spec = RunSpec(workload=self._name, launcher=OWN_LOOP)
        cell = Cell(name=f"01-{slug}", spec=spec, participants=assign_participants(1, 1, "cpu"))
        head = head_here(RunPlan(name=self._name, label=self._label, cells=(cell,)))
        self._run = RunHere(self._root, slug, head)
        waiter = _make_waiter(head.system)
        self._meter = StepMeter(self._run.rows, SystemClock(), None, synchronise=waiter, settled=settled_so_far)
        return self._meter

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._meter.close()
        outcome = outcome_from_error(error or self._run.rows.error)
        record = self._run.end(outcome, Facts(unit=self._unit), device=_find_used_device())
        if error is None and record is not None:
            self._done(self._run.path)


def _find_used_device() -> str:
    """Return the kind of device that a loaded framework has used; else the CPU."""
    used = [device for framework in find_loaded_frameworks() for device in framework.in_use()]
    return used[0].partition(":")[0] if used else "cpu"


def _make_waiter(system: System) -> Callable[[], None] | None:
    """Return a function that waits for all devices in use.

    Return None if a framework is loaded and no asynchronous device exists. Otherwise the loop may start to use one at
    any time, so that every row has to check."""
    return None if find_loaded_frameworks() and not system.accelerators else _wait_for_devices


def _wait_for_devices() -> None:
    for framework in find_loaded_frameworks():
        synchronise = waiter_for(framework, framework.in_use())
        if synchronise is not None:
            synchronise()
