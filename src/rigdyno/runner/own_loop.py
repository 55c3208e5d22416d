"""A user's own loop, measured from inside: `with rigdyno.measure("my training", unit="image") as meter: ...`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from rigdyno import __version__
from rigdyno.analyse.steady import settled_so_far
from rigdyno.clock import SystemClock, utc_now
from rigdyno.plan.build import OWN_LOOP
from rigdyno.processes import peak_memory_bytes, write_pid
from rigdyno.rig.environment import describe_environment
from rigdyno.rig.system import describe_system
from rigdyno.runner.device import with_framework
from rigdyno.runner.measure import StepMeter
from rigdyno.runner.sampling import Sampling, sampled
from rigdyno.runner.worker import failure
from rigdyno.schema.record import Completed, Facts, Failed, Outcome, RunHead, RunRecord
from rigdyno.schema.samples import STEP_FIELDS, Header, RowFile
from rigdyno.schema.spec import Cell, Plan, RunSpec
from rigdyno.store.files import write_json
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
        self._cell = Cell(name=f"01-{slug}", spec=RunSpec(workload=self._name, launcher=OWN_LOOP))
        self._started = utc_now()
        self._folder = RunFolder.create(self._root, slug, self._started)
        self._head = self._write_head()
        self._stack.enter_context(self._folder.locked())
        cell_folder = self._folder.fresh_cell_folder(self._cell)
        write_json(cell_folder / "spec.json", self._cell.spec)
        write_pid(cell_folder, "worker.0")
        self._sampling: Sampling = self._stack.enter_context(sampled(cell_folder))
        file = RowFile(cell_folder / "steps.0.rows", Header(fields=STEP_FIELDS, kinds=("step",)))
        self._began_ns = self._clock.now_ns()
        self._meter = StepMeter(file, self._clock, None, synchronise=_waiter(), settled=settled_so_far)
        return self._meter

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._meter.close()
        seconds = seconds_of_ns(self._clock.now_ns() - self._began_ns)
        with self._stack:
            pass  # ends the sampler, then lets go of the folder
        self._folder.write_record(self._record(_outcome(error), seconds), self._cell)
        if error is None:
            self._done(self._folder.path)

    def _write_head(self) -> RunHead:
        head = RunHead(
            rigdyno_version=__version__,
            created_at=self._started.isoformat(timespec="seconds"),
            plan=Plan(name=self._name, label=self._label, cells=(self._cell,)),
            system=describe_system(),
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
            spec=self._cell.spec,
            system=self._head.system,
            environment=with_framework(self._head.environment),
            facts=Facts(unit=self._unit),
            outcome=outcome,
            sampler_exit_code=self._sampling.exit_code,
            peak_memory_bytes=peak_memory_bytes(),
            files=tuple(sorted(path.name for path in self._folder.cell_folder(self._cell).iterdir())),
        )


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return Completed()
    if isinstance(error, KeyboardInterrupt):
        return Failed(kind="interrupted", phase="measure", message="interrupted by Ctrl-C")
    return failure(error, "measure")


def _waiter() -> Callable[[], None] | None:
    """The user's framework may put work on a GPU at any time from now on: ask it at every row."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None

    def wait() -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    return wait
