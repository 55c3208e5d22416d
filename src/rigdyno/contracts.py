"""Every protocol that one can implement, on one page.

One implementation is one file, found by its name: `workloads/tensor_add.py` *is* the workload `tensor_add`. The first
line of its docstring is what `rigdyno list` shows. Workloads, updates and arrangements are frozen dataclasses: the
constructor is the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from rigdyno.schema.channel import Channel as Channel
from rigdyno.schema.measured import Measurement
from rigdyno.schema.participant import RANK, ClockPair
from rigdyno.schema.record import DeviceMemory, FailureKind, Quality, RunRecord
from rigdyno.schema.spec import Cell, Plan, Reach, RunSpec, Value
from rigdyno.schema.system import Accelerator, System
from rigdyno.schema.view import Presentation

ANY_FRAMEWORK = "any"
DEFAULT_FRAMEWORK = "torch"  # of what is for any


@dataclass(frozen=True)
class Requirement:
    """A module that must be importable, and the extra that brings it."""

    module: str
    extra: str | None = None  # None: part of the base install
    command: str | None = None  # what brings it where pip alone can't


@dataclass(frozen=True)
class Unavailable:
    reason: str
    fix: str | None = None  # a command, or what to change


@dataclass(frozen=True)
class Place:
    """Where one worker process stands."""

    device: str
    rank: int = 0
    local_rank: int = 0  # among those of its node
    world_size: int = 1  # processes
    devices: int = 1  # that this process shares its work out to, counted from 0
    role: str = RANK
    threads: int = 1
    seed: int = 0

    @property
    def all_devices(self) -> tuple[str, ...]:
        if self.devices == 1:
            return (self.device,)
        kind = self.device.partition(":")[0]
        return tuple(f"{kind}:{index}" for index in range(self.devices))


def card_of(device: str) -> int | None:
    """Its number, of the first one where there is none; None: it is the CPU."""
    kind, _, number = device.partition(":")
    return None if kind == "cpu" else int(number or 0)


class CannotRun(Exception):
    """Raised while building: the cell ends Skipped with this reason, which only the built workload could know."""


Step = Callable[[], "float | None"]  # does one step; may return how many items that was


@dataclass(kw_only=True)
class Steps:
    """Something to be done again and again. Several kinds of step take turns, so that noise hits them alike."""

    kinds: Mapping[str, Step]
    items_per_step: float = 1.0  # for a step that returns None
    unit: str | None = None  # where it isn't the workload's
    counts: Callable[[], bool] | None = None  # whether steps said how many items they did; asked when all is over
    per_item: Mapping[str, float] = field(default_factory=dict)
    settled: Mapping[str, Value] = field(default_factory=dict)
    notes: Sequence[str] = ()
    check: Callable[[], bool | None] | None = None  # the canary, asked when all is over
    shown_epsilon: Callable[[], float | None] | None = None  # that an audit has shown, asked when all is over


Mark = Callable[[str], None]  # what was done since the last mark was this phase (schema.samples.PHASES)


def no_mark(phase: str) -> None:
    """Where nobody wants to know."""


@dataclass(frozen=True)
class Samples:
    """The data set behind the batches, for an update that draws its own."""

    count: int
    batch_size: int
    pick: Callable[[Sequence[int]], tuple[Any, Any]]  # samples by their numbers, maybe none -> inputs and targets


@dataclass(frozen=True)
class Validation:
    """When to stop: at an accuracy on images that are neither trained on nor tested with, which count as public."""

    accuracy: Callable[[], float]
    wanted: float  # it ends there
    every: int  # steps between two looks


@dataclass(kw_only=True)
class Training:
    """A model and its data, for an update to train and an arrangement to share out.

    An update that prepares it may put batches of its own there, what it settled, notes and epsilon."""

    framework: str = DEFAULT_FRAMEWORK  # whose model and tensors these are
    model: Any
    loss: Callable[[Any, Any], Any]  # (outputs, targets) -> mean over the samples
    optimizer: Callable[[Any], Any]  # parameters -> optimizer
    batches: Iterator[tuple[Any, Any]]  # endless
    samples: Samples | None = None  # None: a stream, or batches without a data set of known size
    accuracy: Callable[[], float | None] | None = None
    validation: Validation | None = None  # None: it ends with its budget alone
    epsilon: Callable[[], float] | None = None  # what all steps together cost, asked when all is over
    finish: Callable[[], None] | None = None  # called in the end, by every rank: ends loaders, keeps what was trained
    epoch_epsilon: Callable[[], float] | None = None  # what one epoch costs by itself, asked when all is over
    per_item: Mapping[str, float] = field(default_factory=dict)
    settled: Mapping[str, Value] = field(default_factory=dict)
    notes: Sequence[str] = ()
    scaler: Any = None  # of the loss, where the precision needs one (torch.amp.GradScaler)
    phases: bool = False  # whether a step is long enough to be timed phase by phase
    mark: Mark = no_mark  # for the update to call behind each of its phases


TrainStep = Callable[[Any, Any], Any]  # (inputs, targets) -> the batch's loss, still on the device


class Collective(Protocol):
    """How ranks agree. With one rank every call gives back its argument."""

    def sum(self, tensors: list[Any]) -> None:
        """In place; of a framework whose tensors can't be changed, the list gets others."""
        ...

    def agree(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        ...


class Meter(Protocol):
    """Handed to whoever owns the loop: `while meter.more(): ...; meter.step(items)`."""

    def more(self) -> bool: ...

    def step(self, items: float = 1.0, kind: int = 0) -> None: ...

    def repeat(self, step: Step, items_per_step: float) -> None:
        """The same loop over steps of one kind, with the least between two of them."""
        ...


Options = Mapping[str, Value]


class Workload(Protocol):
    framework: ClassVar[str]  # the name of one, or "any"
    version: ClassVar[int]  # raised whenever old figures no longer compare
    requires: ClassVar[tuple[Requirement, ...]]
    arrangement: ClassVar[str]  # where nobody chooses one: "single" unless it is about several ranks
    trains: ClassVar[bool]  # whether it builds a Training, for an update
    small: ClassVar[Options]  # options with which a step takes milliseconds, to try it out

    @property
    def unit(self) -> str:  # a ClassVar, except in a user's own step
        """What is counted: "image", "voxel", "iteration"."""
        ...

    def refuses(self, system: System, device: str) -> str | None: ...

    def traps(self) -> tuple[str, ...]:
        """Names of traps of `rigdyno doctor` that it would step into on a CPU; it is refused where one is a trap."""
        ...

    def memory_bytes(self, system: System) -> int | None: ...

    def start_seconds(self) -> float: ...

    def step_seconds(self, device: str) -> float | None:
        """Of one step (of each kind, if there are several) on a machine of today, to plan by; None: nobody knows."""
        ...

    def build(self, place: Place) -> Steps | Training: ...


class Update(Protocol):
    """How a batch changes the parameters. A private update must clip before it sums over ranks."""

    framework: ClassVar[str]  # of the workloads that it can train
    requires: ClassVar[tuple[Requirement, ...]]
    private: ClassVar[bool]  # bounds what one sample can change: nobody may sum its gradients before it has
    start_seconds: ClassVar[float]  # that it takes to load, to plan by. Without it: none worth speaking of

    def refuses(self, workload: Workload) -> str | None: ...

    def prepare(self, training: Training, place: Place, collective: Collective) -> TrainStep: ...


@dataclass(frozen=True)
class Job:
    """What an arrangement is to carry out at its place."""

    workload: Workload
    update: Update
    place: Place
    start_meter: Callable[[Steps | Training, Collective], Meter]  # call it once all is built
    start_phases: Callable[[Training], Mark] = lambda training: no_mark
    afterwards: Callable[[Callable[[], None]], None] = lambda call: None  # called once the results are on disk


World = Literal["one", "ranks", "devices"]


class Arrangement(Protocol):
    """How parties share the work."""

    launcher: ClassVar[str]
    # What a specification's world_size counts: the one process that there is; ranks, each a process on a device of its
    # own; or the devices of one process.
    world: ClassVar[World]
    framework: ClassVar[str]  # of the workloads that it can share out; `frameworks` beside it names those of several
    roles: ClassVar[tuple[str, ...]]  # of its participants, beside the samplers
    requires: ClassVar[tuple[Requirement, ...]]

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None: ...

    def run(self, job: Job) -> Quality: ...


class Framework(Protocol):
    """What differs between frameworks, and between their devices: whoever measures asks this, and names none of them.

    Making one loads nothing, nor does `has_no_accelerator`; every other method may. A device is "cpu", or a kind with
    or without a number: "cuda", "cuda:1".
    """

    module: ClassVar[str]  # what it is imported as
    requires: ClassVar[tuple[Requirement, ...]]

    def has_no_accelerator(self) -> bool:
        """Whether that is certain without loading it, which takes seconds."""
        ...

    def accelerators(self) -> tuple[Accelerator, ...]:
        """Those that it can use here. A broken driver may crash whoever asks: `rig.devices` asks in a child process."""
        ...

    def versions(self) -> dict[str, str]:
        """By name: its own, and of what it was built for or runs on."""
        ...

    def threads(self) -> int | None: ...

    def prepare(self, seed: int, threads: int | None) -> None:
        """Before anything is built; None: as many threads as it takes by itself."""
        ...

    def waiter(self, device: str) -> Callable[[], None] | None:
        """What waits until the device has done all that it was given; None: work is done when a call returns."""
        ...

    def in_use(self) -> Sequence[str]:
        """The devices that this process has used so far, the CPU left out."""
        ...

    def event(self, device: str) -> Any:
        """A mark behind all that the device was given so far; waits for nothing."""
        ...

    def elapsed_ns(self, first: Any, last: Any) -> int:
        """Between two marks of one device, which has come to both."""
        ...

    def forget_peak_memory(self, device: str) -> None: ...

    def memory(self, device: str) -> DeviceMemory | None:
        """The peak since it was forgotten, and what there is; None of the CPU."""
        ...

    def is_out_of_memory(self, error: BaseException) -> bool: ...

    def limit_memory(self, device: str, size: int) -> None:
        """Of an accelerator, before anything is put there: more than this is out of memory. Nothing for the CPU, and
        nothing where the device's allocator knows no limit."""
        ...


class Probe(Protocol):
    """Reads meters of the machine. Opened once, in the sampler's process, in a thread apart: one that hangs or
    throws costs its own readings alone. `read` must be cheap."""

    hints: ClassVar[Mapping[str, str]]  # what to change where a single channel can't be read, by its name

    def availability(self) -> Unavailable | None: ...

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        """The channels, in the order of the readings; each says what it means (schema/channel.py)."""
        ...

    def read(self) -> Sequence[float]:
        """NaN for what can't be read, or has no new value since the last reading: zero is a measurement."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Exit:
    code: int  # negative: the signal
    participant: str | None = None  # None: of the one command that started them all


@dataclass(frozen=True)
class Left:
    """What a cell left behind, beside its files."""

    exits: Sequence[Exit] = ()  # of ranks and samplers
    clocks: Sequence[ClockPair] = ()  # of other nodes
    nodes: Sequence[System] = ()  # what they are
    out_of_memory: Sequence[int] = ()  # nodes on which the kernel ended a process for want of memory
    overrun: str | None = None  # why a cell that took far more memory than it may was ended
    peak_bytes: int | None = None  # of all processes of this node, as seen from outside; None: nobody looked
    lost: str | None = None  # why the session can't go on: a node is gone, a job was cancelled
    lost_kind: FailureKind = "node_lost"


class Launch(Protocol):
    """One cell under way, on all of its nodes."""

    def wait(self, seconds: float) -> bool:
        """Sleeps until the ranks are gone, or so long; whether they are."""
        ...

    def stop(self) -> None: ...

    def collect(self) -> Left:
        """Once the ranks are gone: ends the samplers, and brings files from other nodes into the cell's folder."""
        ...


class Session(Protocol):
    """The nodes of a run, met once for all of its cells."""

    def start(self, cell: Cell, folder: Path) -> Launch:
        """`folder` holds the cell's specification, and a folder for each participant."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Opening:
    """What a launcher must know to meet the nodes."""

    cells: Sequence[Cell]  # that this launcher will start
    system: System  # of this machine
    reach: Reach = field(default_factory=Reach)
    secret: bytes | None = field(default=None, repr=False)  # of the run, where nodes are started by hand
    say: Callable[[str], None] = lambda words: None  # what it waits for, to the user

    @property
    def nodes(self) -> int:
        return max((cell.spec.nodes for cell in self.cells), default=1)


Scope = Literal["process", "machine", "nodes", "elsewhere"]


class Launcher(Protocol):
    requires: ClassVar[tuple[Requirement, ...]]
    # What it can start: one process here; several ranks here; ranks on this machine as the first node and on others;
    # or ranks on other machines alone, of which nothing is known while planning.
    scope: ClassVar[Scope]

    def open(self, opening: Opening) -> Session:
        """Raises a RigdynoError that names who is missing, after a bounded time."""
        ...


@dataclass(frozen=True)
class SuiteRequest:
    """What a suite needs to know to lay out its cells."""

    system: System
    device: str
    full: bool = False
    soak_seconds: float | None = None
    repeat: int | None = None
    ranks: int | None = None  # at most on a node, for a suite that is about several
    most_ranks: int = 1  # that this machine has room for
    nodes: int = 1
    threads: int | None = None  # of each process
    arrangement: str | None = None  # of what runs on several devices; None: the suite's own
    steps: int | None = None  # that one card would take for the job, for a suite that runs jobs
    budget_seconds: float | None = None  # for all cells together, for a suite whose cells can't be cut short
    cards: tuple[int, ...] = ()  # how many, one after the other; empty: as the suite chooses
    frameworks: tuple[str, ...] = ()  # empty: all that the suite knows
    memory_bytes: int | None = None  # that each configuration may fill, for a suite that searches
    workload: str | None = None  # FILE.py:FUNCTION of a user's own training, for a suite that takes one
    audit: bool = False  # whether private updates are held against the auditor
    until: float | None = None  # the accuracy to which each update trains
    data: str | None = None  # a folder with a data set, where options name one
    cheap: bool = False  # several suites share the time: of searches and of peers that take long, the short form only


@dataclass(frozen=True)
class Wanted:
    """A cell as a suite wants it: the specification, and how many processes."""

    spec: RunSpec
    repeat: int = 1
    most: int = 1  # where time is left, and the interval over fewer is wide


class Suite(Protocol):
    """Which cells, and what to make of them."""

    excerpt: ClassVar[bool]  # of other suites: `run all` runs those, and not this. Without it: no excerpt

    def cells(self, request: SuiteRequest) -> Sequence[Wanted]: ...

    def present(self, measurements: Sequence[Measurement]) -> Presentation: ...


@dataclass(frozen=True)
class Progress:
    cell: Cell
    seconds: float  # since the cell began
    share: float  # of the expected time, 0 to 1
    rate: float | None = None  # items/s, lately
    unit: str = ""
    figure: str | None = None  # instead of the rate: how it stands, in words
    left_seconds: float | None = None  # of the cell, where it knows better than the plan


class Observer(Protocol):
    """Told what happens while a plan runs; draws it, or doesn't."""

    def planned(self, plan: Plan, folder: Path) -> None: ...

    def started(self, cell: Cell) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def noticed(self, words: str) -> None:
        """Something that a person may want to act upon before the end."""
        ...

    def finished(self, record: RunRecord) -> None: ...

    def over(self) -> None: ...
