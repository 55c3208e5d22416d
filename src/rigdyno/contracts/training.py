"""What is trained or computed (Workload), how a batch changes the parameters (Update), how participants share the work
(Arrangement), with which framework (Framework), and what reads the machine's power meters (Probe)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from rigdyno.contracts.options import check_options
from rigdyno.schema.channel import Channel as Channel
from rigdyno.schema.record import DeviceMemory, Quality
from rigdyno.schema.spec import OF_UPDATE, RANK, RunSpec, Value
from rigdyno.schema.system import Accelerator, System

ANY_FRAMEWORK = "any"

DEFAULT_FRAMEWORK = "torch"  # measures workloads that are for any framework


@dataclass(frozen=True)
class Requirement:
    """A module that must be importable, and the extra that installs it."""

    module: str
    extra: str | None = None  # None: part of the base install
    command: str | None = None  # command that installs it, if pip alone can't


TORCH = (Requirement("torch"),)


@dataclass(frozen=True)
class Unavailable:
    reason: str
    fix: str | None = None  # a command, or a setting to change


@dataclass(frozen=True)
class WorkerPlace:
    """The device, rank and threads of one worker process."""

    device: str
    rank: int = 0
    local_rank: int = 0  # rank within its node
    world_size: int = 1  # number of processes
    devices: int = 1  # number of devices of this process, counted from 0
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
    """Return the index of an accelerator, 0 if none is given; None for the CPU."""
    kind, _, number = device.partition(":")
    return None if kind == "cpu" else int(number or 0)


class CannotRun(Exception):
    """Raise this while building: the cell ends Skipped with this reason, which only the built workload can know."""


Step = Callable[[], "float | None"]  # does one step; may return its number of items


@dataclass(kw_only=True)
class Steps:
    """Steps to repeat. Several kinds of step take turns, so that noise affects them alike."""

    kinds: Mapping[str, Step]
    items_per_step: float = 1.0  # for a step that returns None
    unit: str | None = None  # if it differs from the workload's
    counts: Callable[[], bool] | None = None  # whether steps returned their number of items; called at the end
    per_item: Mapping[str, float] = field(default_factory=dict)
    settled: Mapping[str, Value] = field(default_factory=dict)
    notes: Sequence[str] = ()
    check: Callable[[], bool | None] | None = None  # whether the results are right; called at the end
    shown_epsilon: Callable[[], float | None] | None = None  # epsilon that an audit has shown; called at the end


Mark = Callable[[str], None]  # ends a phase: the work since the last mark was this one (schema.samples.PHASES)


def no_mark(phase: str) -> None:
    """Ignore the mark: phases are not timed."""


@dataclass(frozen=True)
class Samples:
    """The data set of the batches, for an update that draws batches by itself."""

    count: int
    batch_size: int
    pick: Callable[[Sequence[int]], tuple[Any, Any]]  # indices of samples, possibly none -> inputs and targets


@dataclass(frozen=True)
class Validation:
    """When to stop: at an accuracy on images that are neither trained on nor tested with. They count as public."""

    accuracy: Callable[[], float]
    wanted: float  # training ends at this accuracy
    every: int  # steps between two validations


@dataclass(kw_only=True)
class Training:
    """A model and its data, for an update to train and an arrangement to distribute.

    An update may replace the batches in `prepare`, and add settled options, notes and epsilon."""

    framework: str = DEFAULT_FRAMEWORK  # framework of the model and its tensors
    model: Any
    loss: Callable[[Any, Any], Any]  # (outputs, targets) -> mean over the samples
    optimizer: Callable[[Any], Any]  # parameters -> optimizer
    batches: Iterator[tuple[Any, Any]]  # endless
    samples: Samples | None = None  # None: a stream, or a data set of unknown size
    accuracy: Callable[[], float | None] | None = None
    validation: Validation | None = None  # None: training ends with its budget
    epsilon: Callable[[], float] | None = None  # cost of all steps together; called at the end
    finish: Callable[[], None] | None = None  # called at the end by every rank: ends loaders, saves weights
    epoch_epsilon: Callable[[], float] | None = None  # cost of one epoch alone; called at the end
    per_item: Mapping[str, float] = field(default_factory=dict)
    settled: Mapping[str, Value] = field(default_factory=dict)
    notes: Sequence[str] = ()
    scaler: Any = None  # loss scaler, if the precision needs one (torch.amp.GradScaler)
    phases: bool = False  # whether a step is long enough to be timed phase by phase
    mark: Mark = no_mark  # the update calls it after each of its phases


TrainStep = Callable[[Any, Any], Any]  # (inputs, targets) -> the batch's loss, still on the device


class Collective(Protocol):
    """Communication between ranks. With one rank every call returns its argument."""

    def sum(self, tensors: list[Any]) -> None:
        """Sum over ranks in place. If tensors are immutable, replace them in the list."""
        ...

    def agree(self, number: int) -> int:
        """Return the largest number of all ranks."""
        ...


class Meter(Protocol):
    """Times the steps of a loop: `while meter.more(): ...; meter.step(items)`."""

    def more(self) -> bool: ...

    def step(self, items: float = 1.0, kind: int = 0) -> None: ...

    def repeat(self, step: Step, items_per_step: float) -> None:
        """Run the same loop over steps of one kind, with as little as possible between two of them."""
        ...


Options = Mapping[str, Value]


class Workload(ABC):
    """Something to measure. Implementations are frozen dataclasses: their fields are the options.

    An implementation states `unit`, its options and `build`; everything else has a default."""

    framework: ClassVar[str] = DEFAULT_FRAMEWORK  # name of a framework, or ANY_FRAMEWORK
    version: ClassVar[int] = 1  # raise it when older figures no longer compare
    requires: ClassVar[tuple[Requirement, ...]] = TORCH
    arrangement: ClassVar[str] = "single"  # default arrangement
    trains: ClassVar[bool] = False  # whether it builds a Training, for an update
    small: ClassVar[Options] = {}  # options with which a step takes milliseconds, for a trial

    def __post_init__(self) -> None:
        check_options(self)

    @property
    @abstractmethod
    def unit(self) -> str:
        """Return what is counted: "image", "voxel", "iteration". A class variable in most implementations."""

    def refuses(self, system: System, device: str) -> str | None:
        """Return why it can't run there; None if it can."""
        return None

    def traps(self) -> tuple[str, ...]:
        """Return names of traps of `rigdyno doctor` that affect it on a CPU; it is refused where one is found."""
        return ()

    def memory_bytes(self, system: System) -> int | None:
        """Return the memory that one process needs; None if unknown."""
        return None

    def start_seconds(self) -> float:
        """Return the time to start and build it, to plan by."""
        return 3.0

    def step_seconds(self, device: str) -> float | None:
        """Return the time of one step (of each kind) on a current machine, to plan by; None if unknown."""
        return None

    @abstractmethod
    def build(self, place: WorkerPlace) -> Steps | Training: ...


class Update(ABC):
    """How a batch changes the parameters. A private update must clip before it sums over ranks."""

    framework: ClassVar[str] = DEFAULT_FRAMEWORK  # framework of the workloads that it can train
    requires: ClassVar[tuple[Requirement, ...]] = TORCH
    private: ClassVar[bool] = False  # clips per-sample gradients: they must not be summed over ranks before
    start_seconds: ClassVar[float] = 0.0  # time to load it, to plan by

    def __post_init__(self) -> None:
        check_options(self, OF_UPDATE)

    def refuses(self, workload: Workload) -> str | None:
        """Return why it can't train this workload; None if it can."""
        return None

    @abstractmethod
    def prepare(self, training: Training, place: WorkerPlace, collective: Collective) -> TrainStep: ...


@dataclass(frozen=True)
class TrainingJob:
    """The work of one process of an arrangement."""

    workload: Workload
    update: Update
    place: WorkerPlace
    start_meter: Callable[[Steps | Training, Collective], Meter]  # call it when everything is built
    start_phases: Callable[[Training], Mark] = lambda training: no_mark
    afterwards: Callable[[Callable[[], None]], None] = lambda call: None  # call it once the results are on disk


World = Literal["one", "ranks", "devices"]


class Arrangement(ABC):
    """How participants share the work."""

    launcher: ClassVar[str]
    # What the world_size of a specification counts: one process; ranks, each a process with its own device; or the
    # devices of one process.
    world: ClassVar[World]
    frameworks: ClassVar[tuple[str, ...]] = (DEFAULT_FRAMEWORK,)  # frameworks of the workloads that it can distribute
    roles: ClassVar[tuple[str, ...]] = (RANK,)  # roles of its participants, samplers excluded
    requires: ClassVar[tuple[Requirement, ...]] = TORCH

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None:
        """Return why it can't run this combination; None if it can."""
        return None

    @abstractmethod
    def run(self, job: TrainingJob) -> Quality: ...


class Framework(ABC):
    """What differs between frameworks and their devices. The core asks this class and names no framework.

    The constructor and `has_no_accelerator` must not import the framework; every other method may. A device is "cpu",
    or a kind with or without an index: "cuda", "cuda:1". The defaults are those of a framework without accelerators.
    """

    module: ClassVar[str]  # name of its Python module
    requires: ClassVar[tuple[Requirement, ...]]

    def has_no_accelerator(self) -> bool:
        """Return whether this is certain without importing the framework, which takes seconds."""
        return False

    def accelerators(self) -> tuple[Accelerator, ...]:
        """Return the accelerators that it can use here. A broken driver may crash the process: `rig.devices` calls it
        in a child process."""
        return ()

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return versions by name: its own, and those of the libraries that it was built for or runs on."""

    def threads(self) -> int | None:
        return None

    @abstractmethod
    def prepare(self, seed: int, threads: int | None) -> None:
        """Set seed and threads before anything is built. None: the framework's default number of threads."""

    def waiter(self, device: str) -> Callable[[], None] | None:
        """Return a function that waits until the device is idle; None if calls are synchronous."""
        return None

    def in_use(self) -> Sequence[str]:
        """Return the accelerators that this process has used so far."""
        return ()

    def event(self, device: str) -> Any:
        """Record an event after all work queued on the device; doesn't wait."""
        raise NotImplementedError

    def elapsed_ns(self, first: Any, last: Any) -> int:
        """Return the time between two completed events of one device."""
        raise NotImplementedError

    def forget_peak_memory(self, device: str) -> None:  # noqa: B027
        """Reset the peak of allocated memory."""

    def memory(self, device: str) -> DeviceMemory | None:
        """Return the peak since the last reset and the capacity; None for the CPU."""
        return None

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def limit_memory(self, device: str, size: int) -> None:  # noqa: B027
        """Limit the memory of an accelerator before anything is allocated on it. Does nothing for the CPU, or where
        the allocator has no limit."""


class Probe(ABC):
    """Reads sensors of the machine. It is opened once, in the sampler's process, in its own thread: a probe that hangs
    or raises loses its own readings only. `read` must be cheap."""

    hints: ClassVar[Mapping[str, str]] = {}  # what to change if a single channel can't be read, by channel name

    @abstractmethod
    def availability(self) -> Unavailable | None: ...

    @abstractmethod
    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        """Return the channels in the order of the readings. schema/channel.py says what a channel means."""

    @abstractmethod
    def read(self) -> Sequence[float]:
        """Return one value per channel; NaN if it can't be read or has not changed since the last reading. Zero is a
        measurement."""

    @abstractmethod
    def close(self) -> None: ...
