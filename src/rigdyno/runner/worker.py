"""The process that measures, once a rank:
`python -m rigdyno.runner.worker <cell folder> <process id of the parent> <participant>`.

Reads the cell's specification, leaves steps and a report in the participant's folder; talks to nobody. torchrun starts
all ranks by one command: its participant is `-`, and RANK tells which one it is. The arm of a duel is given one more
argument, the descriptor of the socket over which it is told when it may step; an arm of several ranks connects to it.
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
from rigdyno.clock import SystemClock
from rigdyno.contracts import CannotRun, Collective, Framework, Job, Mark, Place, Steps, Training, Workload, no_mark
from rigdyno.plan.budget import LEAST_SECONDS
from rigdyno.plan.build import arrangement_of, framework_of, update_of, workload_of
from rigdyno.processes import (
    die_with_parent,
    offer_to_oom_killer,
    peak_memory_bytes,
    process_age_seconds,
    tree_memory_bytes,
    write_pid,
)
from rigdyno.rig.devices import loaded_frameworks
from rigdyno.rig.environment import describe_environment
from rigdyno.runner.device import memory_of, usable_cores, waiter_for, with_frameworks
from rigdyno.runner.measure import StepMeter
from rigdyno.runner.phases import PhaseClock
from rigdyno.runner.tried import CrowdedWorkload
from rigdyno.runner.turns import SOCKET_KIND, TurnMeter
from rigdyno.schema.layout import CellFolder, ParticipantFolder, RowKind
from rigdyno.schema.participant import Participant, on_node, ranks_among
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
from rigdyno.schema.spec import Budget, Cell, RunSpec
from rigdyno.store.files import read_json, write_json

LEAST_SHARE = 0.2  # of a budget that a late start leaves
_OUT_OF_MEMORY = ("out of memory", "cannot allocate memory")  # whoever says so; frameworks have signs of their own


@dataclass
class Worker:
    spec: RunSpec
    own: Participant
    folder: ParticipantFolder
    place: Place
    turns: socket.socket | None = None  # of a duel's arm, in its first rank
    in_duel: bool = False
    allowed_bytes: int | None = None  # of the device's memory
    tried: bool = False  # by a search: it is about memory alone
    phase: Phase = "start"
    framework: Framework | None = None  # None: it isn't loaded yet
    facts: Facts = field(default_factory=Facts)
    counts: Callable[[], bool] | None = None
    meter: StepMeter | TurnMeter | None = None
    phases: PhaseClock | None = None
    afterwards: ExitStack = field(default_factory=ExitStack)
    born_seconds: float = 0.0  # age of this process when it became a worker
    start_seconds: float | None = None  # until the meter began
    device_memory: DeviceMemory | None = None
    budget: Budget = field(default_factory=Budget)  # as it is known once all is built
    tree_bytes: int | None = None  # the peak of this process and of those that it started
    over: bool = False  # whether the last step is done
    crowded: CrowdedWorkload | None = None  # as a search tries it

    @property
    def peak_bytes(self) -> int | None:
        """Of the steps alone where it is about what fits: an accuracy or an epsilon comes when they are over."""
        if self.allowed_bytes is not None and self.tree_bytes is not None:
            return self.tree_bytes
        known = [size for size in (peak_memory_bytes(), self.tree_bytes) if size is not None]
        return max(known, default=None)

    def run(self) -> Outcome:
        """The one broad handler of Rigdyno: whatever happens in here becomes a recorded outcome."""
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
            self.crowded = CrowdedWorkload(workload)
            workload = cast(Workload, self.crowded)
        framework = framework_of(workload)
        random.seed(self.place.seed)
        framework.prepare(self.place.seed, self.place.threads if self.place.world_size > 1 else self.spec.threads)
        self.framework = framework
        if self.allowed_bytes is not None:
            for device in self.place.all_devices:
                framework.limit_memory(device, self.allowed_bytes)
        self.facts = Facts(unit=workload.unit)
        self.phase = "build"
        job = Job(
            workload, update_of(self.spec), self.place, self._start_meter, self._start_phases, self._call_afterwards
        )
        try:
            quality = arrangement_of(self.spec).run(job)
            if self.counts is not None and self.facts.unit == UNNAMED and self.counts():
                self.facts = msgspec.structs.replace(self.facts, unit=COUNTED)
            if self.crowded is not None:
                self.facts = _as_tried(self.facts, self.crowded)
        finally:
            for open_file in (self.meter, self.phases):
                if open_file is not None:
                    open_file.close()
        return Completed(quality=quality)

    def _start_meter(self, built: Steps | Training, collective: Collective) -> StepMeter | TurnMeter:
        kinds = tuple(built.kinds) if isinstance(built, Steps) else ("step",)
        self.facts = _facts(built, self.facts.unit, self.place.world_size)
        self.counts = built.counts if isinstance(built, Steps) else None
        self.budget = in_steps(self.spec.budget, built)
        self.phase = "warm-up"
        age = process_age_seconds()
        self.start_seconds = None if age is None else age - self.born_seconds
        for device in self.place.all_devices:
            self._known_framework.forget_peak_memory(device)
        if self.in_duel:
            self.meter = self._turn_meter(len(kinds), collective)
        else:
            self.meter = self._step_meter(kinds, collective)
        return self.meter

    def _start_phases(self, training: Training) -> Mark:
        """A duel's turns are too few to be taken apart; of a job, the question is where its time goes."""
        wanted = training.phases or self.spec.budget.is_job
        if not wanted or self.in_duel:
            return no_mark
        file = self._row_file(PHASES, "phases")
        self.phases = PhaseClock(file, SystemClock(), self._known_framework, self.place.all_devices[0])
        return self.phases.mark

    def _call_afterwards(self, call: Callable[[], None]) -> None:
        self.afterwards.callback(call)

    def _turn_meter(self, kinds: int, collective: Collective) -> TurnMeter:
        """A step of each kind in a turn: two arms are held against each other as wholes."""
        self.phase = "measure"
        return TurnMeter(
            self._row_file(("turn",)),
            struct.Struct(STEP_STRUCT),
            SystemClock(),
            self.turns,
            kinds=kinds,
            agree=collective.agree if self.place.world_size > 1 else None,
            synchronise=self._waiter(),
            ended=self._look_at_memory,
        )

    def _row_file(self, kinds: tuple[str, ...], name: RowKind = "steps") -> RowFile:
        return RowFile(self.folder.rows(name), Header(fields=STEP_FIELDS, kinds=kinds, participant=self.own))

    def _step_meter(self, kinds: tuple[str, ...], collective: Collective) -> StepMeter:
        return StepMeter(
            self._row_file(kinds),
            SystemClock(),
            in_time(self.budget, self.start_seconds),
            kinds=len(kinds),
            synchronise=self._waiter(),
            agree=collective.agree if self.place.world_size > 1 else None,
            settled=settled_so_far,
            warmed_up=self._warmed_up,
            flushed=self._flushed,
            ended=self._look_at_memory,
        )

    @property
    def _known_framework(self) -> Framework:
        assert self.framework is not None, "nothing is built before it"
        return self.framework

    def _waiter(self) -> Callable[[], None] | None:
        return waiter_for(self._known_framework, self.place.all_devices)

    def _look_at_memory(self) -> None:
        """Behind the last step: what is computed afterwards, such as an accuracy, is no part of it. Processes that
        load its data are still there."""
        self.device_memory = memory_of(self._known_framework, self.place.all_devices)
        self._look_at_tree()
        self.over = True

    def _look_at_tree(self) -> None:
        seen = tree_memory_bytes(os.getpid(), peak=True)
        if seen is not None:
            self.tree_bytes = max(seen, self.tree_bytes or 0)

    def _warmed_up(self) -> None:
        self.phase = "measure"

    def _flushed(self) -> None:
        """Between two steps, twice a second. Processes that it started may be gone when the steps are over."""
        if self.phases is not None:
            self.phases.flush()
        if self.allowed_bytes is not None and not self.over:
            self._look_at_tree()


def _facts(built: Steps | Training, unit: str, ranks: int) -> Facts:
    samples = built.samples if isinstance(built, Training) else None
    return Facts(
        epoch_items=None if samples is None else samples.count * ranks,
        unit=(built.unit if isinstance(built, Steps) else None) or unit,
        per_item=dict(built.per_item),
        settled=dict(built.settled),
        notes=tuple(built.notes),
    )


def _as_tried(facts: Facts, crowded: CrowdedWorkload) -> Facts:
    """What a search did to it is no fact about it, but for how many samples went through at once."""
    drawn = {} if crowded.drawn is None else {PHYSICAL_BATCH: crowded.drawn}
    return msgspec.structs.replace(facts, epoch_items=crowded.epoch_items, settled={**facts.settled, **drawn})


def in_steps(budget: Budget, built: Steps | Training) -> Budget:
    """A job of so many items, where the batch is known: in whole batches, of which the last may be a part."""
    if budget.job_items is None:
        return budget
    batch = built.items_per_step if isinstance(built, Steps) else built.samples.batch_size if built.samples else 1
    return msgspec.structs.replace(budget, job_steps=max(1, math.ceil(budget.job_items / batch)))


def in_time(budget: Budget, start_seconds: float | None) -> Budget:
    """What the start took longer than it may is taken off, but never all of it."""
    if budget.start_seconds is None or start_seconds is None:
        return budget
    late = max(0.0, start_seconds - budget.start_seconds)
    least = min(budget.seconds, max(LEAST_SECONDS, LEAST_SHARE * budget.seconds))
    return msgspec.structs.replace(
        budget, seconds=max(least, budget.seconds - late), most_seconds=max(0.0, budget.most_seconds - late)
    )


def failure(error: BaseException, phase: Phase) -> Failed:
    words = " ".join(str(error).split())
    text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    if _is_out_of_memory(error):
        return Failed(kind="out_of_memory", phase=phase, message=text)
    return Failed(kind="exception", phase=phase, message=text)


def _is_out_of_memory(error: BaseException) -> bool:
    """Any framework that is loaded may have raised it: which one a user's own step uses, nobody said."""
    if isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in _OUT_OF_MEMORY):
        return True
    return any(framework.is_out_of_memory(error) for framework in loaded_frameworks())


def place_of(cell: Cell, own: Participant) -> Place:
    spec, ranks = cell.spec, len(ranks_among(cell.participants))
    beside = [each.id for each in ranks_among(on_node(cell.participants, own.node))]
    return Place(
        device=own.device or spec.device,
        rank=own.rank or 0,
        local_rank=beside.index(own.id),
        world_size=ranks,
        devices=spec.world_size // ranks,
        role=own.role,
        threads=spec.threads or max(1, usable_cores() // len(beside)),
        seed=spec.seed,  # the same on every rank: whoever needs them apart adds the rank
    )


def own_among(cell: Cell, name: str) -> Participant:
    """`-`: whichever RANK says."""
    if name == "-":
        return next(each for each in ranks_among(cell.participants) if each.rank == int(os.environ["RANK"]))
    return next(each for each in cell.participants if each.id == name)


def work(cell_folder: Path, participant: str, turns: socket.socket | None = None) -> int:
    cell = read_json(CellFolder(cell_folder).spec, Cell)
    own = own_among(cell, participant)
    folder, place = CellFolder(cell_folder).participant(own.id), place_of(cell, own)
    if participant == "-":
        _log_to(folder.log)
    if cell.spec.pinned:
        pin(place)
    write_pid(folder.pid)
    turns = turns or turns_of(cell, folder.path.parent, place)
    inside = cell.spec.launcher == "inline"  # then the process is older than the cell
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
    if isinstance(outcome, Completed):  # whoever failed has nobody left to take leave of
        worker.afterwards.close()
    # Of several ranks, one that steps aside must be noticed as well: the others would wait for it.
    return 1 if isinstance(outcome, Failed) or (place.world_size > 1 and isinstance(outcome, Skipped)) else 0


def turns_of(cell: Cell, folder: Path, place: Place) -> socket.socket | None:
    """Of a duel's arm of several ranks, which no descriptor can be handed to through the commands that start them: the
    first one asks for it."""
    told = CellFolder(folder).turns
    if cell.pair is None or place.rank != 0 or not told.exists():
        return None
    turns = socket.socket(socket.AF_UNIX, SOCKET_KIND)
    turns.connect(told.read_text())
    return turns


def _log_to(path: Path) -> None:
    """Several ranks are started by one command, which has one log: each gets its own."""
    with path.open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())


def pin(place: Place) -> None:
    """To its share of the cores, where the system lets a process choose."""
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
