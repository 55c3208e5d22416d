"""The process that measures, one for each rank:
`python -m rigdyno.runner.worker <cell folder> <process id of the parent> <participant>`.

It reads the cell's specification, and writes steps and a report to the participant's folder; it doesn't communicate
with the parent. torchrun starts all ranks with one command: then the participant is `-`, and RANK identifies it. The
arm of a duel gets one more argument, the file descriptor of the socket through which it gets its turns; an arm of
several ranks connects to a socket instead.
"""

from __future__ import annotations

import math
import os
import random
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from rigdyno.analyse.steady import settled_so_far
from rigdyno.base.clock import SystemClock
from rigdyno.base.files import read_json, write_json
from rigdyno.base.linux import offer_to_oom_killer, peak_memory_bytes, process_age_seconds, tree_memory_bytes
from rigdyno.base.processes import die_with_parent, write_pid
from rigdyno.contracts import (
    CannotRun,
    Collective,
    Framework,
    Mark,
    Steps,
    Training,
    TrainingJob,
    WorkerPlace,
    Workload,
    no_mark,
)
from rigdyno.plan.budget import LEAST_SECONDS
from rigdyno.plan.build import arrangement_of, framework_of, launcher_of, update_of, workload_of
from rigdyno.rig.devices import find_loaded_frameworks
from rigdyno.rig.environment import describe_environment
from rigdyno.runner.device import memory_of, usable_cores, waiter_for, with_frameworks
from rigdyno.runner.fixed_batch import FixedBatchWorkload
from rigdyno.runner.meter import StepMeter
from rigdyno.runner.pairs.turns import SOCKET_KIND, TurnMeter
from rigdyno.runner.phases import PhaseClock
from rigdyno.schema.layout import CellFolder, ParticipantFolder, RowKind
from rigdyno.schema.record import (
    COUNTED,
    PHYSICAL_BATCH,
    UNNAMED,
    Completed,
    DeviceMemory,
    Facts,
    Failed,
    Outcome,
    Phase,
    Skipped,
    WorkerReport,
)
from rigdyno.schema.samples import PHASES, STEP_FIELDS, STEP_STRUCT, Header, RowFile
from rigdyno.schema.spec import Budget, Cell, Participant, RunSpec, on_node, ranks_among

LEAST_SHARE = 0.2  # of the budget that is kept, however late the start

_OUT_OF_MEMORY = ("out of memory", "cannot allocate memory")  # in any message; frameworks have further signs


@dataclass
class Worker:
    spec: RunSpec
    own: Participant
    folder: ParticipantFolder
    place: WorkerPlace
    turns: socket.socket | None = None  # the socket of an arm's first rank in a duel
    in_duel: bool = False
    allowed_bytes: int | None = None  # limit of the device's memory
    tried: bool = False  # whether it is an attempt of a search, which concerns only memory
    phase: Phase = "start"
    framework: Framework | None = None  # None until it is loaded
    facts: Facts = field(default_factory=Facts)
    counts: Callable[[], bool] | None = None
    meter: StepMeter | TurnMeter | None = None
    phases: PhaseClock | None = None
    afterwards: ExitStack = field(default_factory=ExitStack)
    born_seconds: float = 0.0  # age of this process when it became a worker
    start_seconds: float | None = None  # time until the meter started
    device_memory: DeviceMemory | None = None
    budget: Budget = field(default_factory=Budget)  # final once the workload is built
    tree_bytes: int | None = None  # peak memory of this process and its children
    over: bool = False  # whether the last step is done
    fixed_batch: FixedBatchWorkload | None = None  # the workload of a search attempt

    @property
    def peak_bytes(self) -> int | None:
        """The peak memory; in a search that of the steps alone, without the evaluation after them."""
        if self.allowed_bytes is not None and self.tree_bytes is not None:
            return self.tree_bytes
        known = [size for size in (peak_memory_bytes(), self.tree_bytes) if size is not None]
        return max(known, default=None)

    def run(self) -> Outcome:
        """Measure, and turn every exception into an outcome. This is the only broad handler of Rigdyno."""
        try:
            return self._measure()
        except CannotRun as reason:
            return Skipped(reason=str(reason))
        except (Exception, SystemExit) as error:  # noqa: BLE001
            traceback.print_exc()
            return failure(error, self.phase)

    def _measure(self) -> Outcome:
        workload = workload_of(self.spec)
        if self.tried:
            self.fixed_batch = FixedBatchWorkload(workload)
            workload = cast(Workload, self.fixed_batch)
        framework = framework_of(workload)
        random.seed(self.place.seed)
        framework.prepare(self.place.seed, self.place.threads if self.place.world_size > 1 else self.spec.threads)
        self.framework = framework
        if self.allowed_bytes is not None:
            for device in self.place.all_devices:
                framework.limit_memory(device, self.allowed_bytes)
        self.facts = Facts(unit=workload.unit)
        self.phase = "build"
        job = TrainingJob(
            workload, update_of(self.spec), self.place, self._start_meter, self._start_phases, self._call_afterwards
        )
        try:
            quality = arrangement_of(self.spec).run(job)
            if self.counts is not None and self.facts.unit == UNNAMED and self.counts():
                self.facts = msgspec.structs.replace(self.facts, unit=COUNTED)
            if self.fixed_batch is not None:
                self.facts = _restore_facts(self.facts, self.fixed_batch)
        finally:
            for open_file in (self.meter, self.phases):
                if open_file is not None:
                    open_file.close()
        return Completed(quality=quality)

    def _start_meter(self, built: Steps | Training, collective: Collective) -> StepMeter | TurnMeter:
        kinds = tuple(built.kinds) if isinstance(built, Steps) else ("step",)
        self.facts = _collect_facts(built, self.facts.unit, self.place.world_size)
        self.counts = built.counts if isinstance(built, Steps) else None
        self.budget = in_steps(self.spec.budget, built)
        self.phase = "warm-up"
        age = process_age_seconds()
        self.start_seconds = None if age is None else age - self.born_seconds
        for device in self.place.all_devices:
            self._known_framework.forget_peak_memory(device)
        if self.in_duel:
            self.meter = self._make_turn_meter(len(kinds), collective)
        else:
            self.meter = self._make_step_meter(kinds, collective)
        return self.meter

    def _start_phases(self, training: Training) -> Mark:
        """Start timing phases if the workload wants it or for a job; never in a duel, which has too few turns."""
        wanted = training.phases or self.spec.budget.is_job
        if not wanted or self.in_duel:
            return no_mark
        file = self._open_rows(PHASES, "phases")
        self.phases = PhaseClock(file, SystemClock(), self._known_framework, self.place.all_devices[0])
        return self.phases.mark

    def _call_afterwards(self, call: Callable[[], None]) -> None:
        self.afterwards.callback(call)

    def _make_turn_meter(self, kinds: int, collective: Collective) -> TurnMeter:
        """Return the meter of a duel's arm. A turn has a step of each kind: the arms are compared as a whole."""
        self.phase = "measure"
        return TurnMeter(
            self._open_rows(("turn",)),
            struct.Struct(STEP_STRUCT),
            SystemClock(),
            self.turns,
            kinds=kinds,
            agree=collective.agree if self.place.world_size > 1 else None,
            synchronise=self._make_waiter(),
            ended=self._read_memory,
        )

    def _open_rows(self, kinds: tuple[str, ...], name: RowKind = "steps") -> RowFile:
        return RowFile(self.folder.rows(name), Header(fields=STEP_FIELDS, kinds=kinds, participant=self.own))

    def _make_step_meter(self, kinds: tuple[str, ...], collective: Collective) -> StepMeter:
        return StepMeter(
            self._open_rows(kinds),
            SystemClock(),
            in_time(self.budget, self.start_seconds),
            kinds=len(kinds),
            synchronise=self._make_waiter(),
            agree=collective.agree if self.place.world_size > 1 else None,
            settled=settled_so_far,
            warmed_up=self._enter_measure,
            flushed=self._after_flush,
            ended=self._read_memory,
        )

    @property
    def _known_framework(self) -> Framework:
        assert self.framework is not None, "the framework is loaded first"
        return self.framework

    def _make_waiter(self) -> Callable[[], None] | None:
        return waiter_for(self._known_framework, self.place.all_devices)

    def _read_memory(self) -> None:
        """Read the peak memory after the last step, before an evaluation such as an accuracy adds to it.

        Processes that load data are still running."""
        self.device_memory = memory_of(self._known_framework, self.place.all_devices)
        self._read_tree_memory()
        self.over = True

    def _read_tree_memory(self) -> None:
        seen = tree_memory_bytes(os.getpid(), peak=True)
        if seen is not None:
            self.tree_bytes = max(seen, self.tree_bytes or 0)

    def _enter_measure(self) -> None:
        self.phase = "measure"

    def _after_flush(self) -> None:
        """Write phases and read memory between two steps, twice a second: child processes may end before the steps
        do."""
        if self.phases is not None:
            self.phases.flush()
        if self.allowed_bytes is not None and not self.over:
            self._read_tree_memory()


def _collect_facts(built: Steps | Training, unit: str, ranks: int) -> Facts:
    samples = built.samples if isinstance(built, Training) else None
    return Facts(
        epoch_items=None if samples is None else samples.count * ranks,
        unit=(built.unit if isinstance(built, Steps) else None) or unit,
        per_item=dict(built.per_item),
        settled=dict(built.settled),
        notes=tuple(built.notes),
    )


def _restore_facts(facts: Facts, fixed_batch: FixedBatchWorkload) -> Facts:
    """Return the facts of the original workload, plus the number of samples per batch in the search attempt."""
    drawn = {} if fixed_batch.drawn is None else {PHYSICAL_BATCH: fixed_batch.drawn}
    return msgspec.structs.replace(facts, epoch_items=fixed_batch.epoch_items, settled={**facts.settled, **drawn})


def in_steps(budget: Budget, built: Steps | Training) -> Budget:
    """Convert a job's number of items to steps, now that the batch size is known; a partial batch counts as a step."""
    if budget.job_items is None:
        return budget
    batch = built.items_per_step if isinstance(built, Steps) else built.samples.batch_size if built.samples else 1
    return msgspec.structs.replace(budget, job_steps=max(1, math.ceil(budget.job_items / batch)))


def in_time(budget: Budget, start_seconds: float | None) -> Budget:
    """Shorten the budget by the delay of the start, but never to less than the minimum."""
    if budget.start_seconds is None or start_seconds is None:
        return budget
    late = max(0.0, start_seconds - budget.start_seconds)
    least = min(budget.seconds, max(LEAST_SECONDS, LEAST_SHARE * budget.seconds))
    return msgspec.structs.replace(
        budget, seconds=max(least, budget.seconds - late), most_seconds=max(0.0, budget.most_seconds - late)
    )


def failure(error: BaseException, phase: Phase) -> Failed:
    """Return the outcome for an exception."""
    words = " ".join(str(error).split())
    text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    if _is_out_of_memory(error):
        return Failed(kind="out_of_memory", phase=phase, message=text)
    return Failed(kind="exception", phase=phase, message=text)


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether the memory ran out. All loaded frameworks are asked: a user's own step may use any of them."""
    if isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in _OUT_OF_MEMORY):
        return True
    return any(framework.is_out_of_memory(error) for framework in find_loaded_frameworks())


def place_of(cell: Cell, own: Participant) -> WorkerPlace:
    spec, ranks = cell.spec, len(ranks_among(cell.participants))
    on_same_node = [each.id for each in ranks_among(on_node(cell.participants, own.node))]
    return WorkerPlace(
        device=own.device or spec.device,
        rank=own.rank or 0,
        local_rank=on_same_node.index(own.id),
        world_size=ranks,
        devices=spec.world_size // ranks,
        role=own.role,
        threads=spec.threads or max(1, usable_cores() // len(on_same_node)),
        seed=spec.seed,  # the same on every rank; add the rank for different random numbers
    )


def own_among(cell: Cell, name: str) -> Participant:
    """Return the participant of this name; for `-`, the one with the rank in the variable RANK."""
    if name == "-":
        return next(each for each in ranks_among(cell.participants) if each.rank == int(os.environ["RANK"]))
    return next(each for each in cell.participants if each.id == name)


def work(cell_folder: Path, participant: str, turns: socket.socket | None = None) -> int:
    cell = read_json(CellFolder(cell_folder).spec, Cell)
    own = own_among(cell, participant)
    folder, place = CellFolder(cell_folder).participant(own.id), place_of(cell, own)
    if participant == "-":
        _redirect_output(folder.log)
    if cell.spec.pinned:
        pin_to_cores(place)
    write_pid(folder.pid)
    turns = turns or turns_of(cell, folder.path.parent, place)
    inside = not launcher_of(cell.spec.launcher).starts_processes  # if so, the process is older than the cell
    born = (process_age_seconds() or 0.0) if inside else 0.0
    worker = Worker(
        cell.spec,
        own,
        folder,
        place,
        turns,
        cell.pair is not None,
        cell.allowed_bytes,
        cell.attempt_of is not None,
        born_seconds=born,
    )
    outcome = worker.run()
    report = WorkerReport(
        outcome=outcome,
        facts=worker.facts,
        environment=with_frameworks(describe_environment(), [worker.framework] if worker.framework else []),
        peak_memory_bytes=worker.peak_bytes,
        device_memory=worker.device_memory,
        start_seconds=worker.start_seconds,
    )
    write_json(folder.report, report)
    if isinstance(outcome, Completed):  # after a failure there is no group of ranks left to leave
        worker.afterwards.close()
    # A skipped rank among several must be noticed as well: the others would wait for it.
    return 1 if isinstance(outcome, Failed) or (place.world_size > 1 and isinstance(outcome, Skipped)) else 0


def turns_of(cell: Cell, folder: Path, place: WorkerPlace) -> socket.socket | None:
    """Connect the first rank of a duel's arm of several ranks to the referee; None for any other process.

    A file descriptor can't be passed through the commands that start the ranks."""
    address_file = CellFolder(folder).turns
    if cell.pair is None or place.rank != 0 or not address_file.exists():
        return None
    turns = socket.socket(socket.AF_UNIX, SOCKET_KIND)
    turns.connect(address_file.read_text())
    return turns


def _redirect_output(path: Path) -> None:
    """Redirect output to this rank's own log: ranks started by one command share a log otherwise."""
    with path.open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())


def pin_to_cores(place: WorkerPlace) -> None:
    """Pin this process to its share of the cores, if the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    first = place.local_rank * place.threads % len(cores)
    os.sched_setaffinity(0, {cores[(first + offset) % len(cores)] for offset in range(place.threads)})


def main(arguments: Sequence[str]) -> int:
    folder, parent_pid, participant, *turns = arguments
    die_with_parent(int(parent_pid))
    offer_to_oom_killer()
    return work(Path(folder), participant, socket.socket(fileno=int(turns[0])) if turns else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
