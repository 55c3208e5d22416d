"""A run of one cell that happens in this process: its folder, its sampler, its rows and its record."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from rigdyno import __version__
from rigdyno.clock import SystemClock, utc_now
from rigdyno.errors import StoreError
from rigdyno.launchers._node import NodeSampler, Part, make_folders
from rigdyno.processes import peak_memory_bytes, write_pid
from rigdyno.rig.devices import loaded_frameworks, look_here, together
from rigdyno.rig.environment import describe_environment
from rigdyno.rig.system import describe_system
from rigdyno.runner.device import memory_of, with_frameworks
from rigdyno.runner.worker import failure
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.participant import ranks_among
from rigdyno.schema.record import LAUNCHER, Completed, DeviceMemory, Facts, Failed, Outcome, RunHead, RunRecord, fullest
from rigdyno.schema.samples import STEP_FIELDS, Header, RowFile
from rigdyno.schema.spec import Plan
from rigdyno.store.files import disk_errors, write_json
from rigdyno.store.folder import RunFolder
from rigdyno.units import seconds_of_ns


def head_here(plan: Plan) -> RunHead:
    """Of a plan that is carried out here and now."""
    system = describe_system(together(map(look_here, loaded_frameworks())).accelerators)
    return RunHead.of(plan, system, describe_environment())


class RunHere:
    """Under way from when it is made until `end`. Raises a StoreError where nothing can be written, and leaves nothing
    then; what fails later costs the record, never the work."""

    def __init__(self, root: Path, name: str, head: RunHead) -> None:
        self._head, (self._cell,) = head, head.plan.cells
        self._stack, started = ExitStack(), utc_now()
        self._started_at = started.isoformat(timespec="seconds")
        self._folder = RunFolder.create(root, name, started)
        try:
            self._stack.enter_context(self._folder.locked())
            self._prepare()
        except StoreError:
            self._stack.close()
            shutil.rmtree(self._folder.path, ignore_errors=True)  # made just now, and nothing is in it
            raise
        self._clock = SystemClock()
        self._began_ns = self._clock.now_ns()

    def _prepare(self) -> None:
        self._folder.write_head(self._head)
        part = Part(self._cell, self._folder.fresh_cell_folder(self._cell))
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
        """None: the record couldn't be written. `device`: the one that was used, where only the end tells.

        The folder stays locked until the record is there: without one, `clean` would take it for nothing."""
        with self._stack:
            self.rows.close()
            seconds = seconds_of_ns(self._clock.now_ns() - self._began_ns)
            exits = self._sampler.stop()
            spec = self._cell.spec if device is None else replace(self._cell.spec, device=device)
            record = RunRecord(
                rigdyno_version=__version__,
                run=self._folder.name,
                cell=self._cell.name,
                label=self._head.plan.label,
                started_at=self._started_at,
                seconds=round(seconds, 3),
                spec=spec,
                system=self._head.system,
                environment=with_frameworks(self._head.environment, loaded_frameworks()),
                facts=facts,
                outcome=outcome,
                participants=self._cell.participants,
                exit_codes={ended.participant or LAUNCHER: ended.code for ended in exits},
                peak_memory_bytes=peak_memory_bytes(),
                device_memory=_device_memory(),
                files=CellFolder(self._folder.cell_folder(self._cell)).files(),
            )
            try:
                self._folder.write_record(record, self._cell)
            except StoreError as trouble:
                warn(str(trouble))
                return None
        return record


def _device_memory() -> DeviceMemory | None:
    """Of the whole process so far: a user's own figures are not to be reset."""
    return fullest(memory_of(framework, framework.in_use()) for framework in loaded_frameworks())


class ForgivingFile(RowFile):
    """A full disk ends the recording, not the user's work."""

    error: OSError | None = None

    def append(self, rows: bytes | memoryview) -> None:
        if self.error is not None:
            return
        try:
            super().append(rows)
        except OSError as error:
            self.error = error
            warn(f"steps are no longer recorded: {(error.strerror or str(error)).lower()}")


def warn(message: str) -> None:
    print(f"rigdyno: {message}", file=sys.stderr)  # noqa: T201


def outcome_of(error: BaseException | None) -> Outcome:
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return Completed()
    if isinstance(error, KeyboardInterrupt):
        return Failed(kind="interrupted", phase="measure", message="interrupted by Ctrl-C")
    return failure(error, "measure")
