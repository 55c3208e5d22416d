"""What is left of a cell when it is over. Raw and final: estimates and verdicts are derived from it, not stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from rigdyno import __version__
from rigdyno.clock import utc_now
from rigdyno.schema.participant import ClockPair, Participant
from rigdyno.schema.spec import Arm, Plan, RunSpec, Value
from rigdyno.schema.system import ByteCount, Environment, System

SCHEMA_VERSION = 2

Phase = Literal["start", "build", "warm-up", "measure", "finish"]
FailureKind = Literal[
    "out_of_memory", "signal", "timeout", "exception", "interrupted", "exit", "node_lost", "job_ended"
]  # fmt: skip
LAUNCHER = "launcher"  # among exit codes: the one command that started all ranks of a node

# Ends that say nothing about what was measured: resuming runs such a cell again.
RUN_AGAIN: frozenset[FailureKind] = frozenset(("node_lost", "job_ended"))


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Whether what was computed is right: a fast wrong answer is no result."""

    correct: bool | None = None  # the workload's own canary; None: it has none
    loss_finite: bool | None = None  # JSON has no NaN: a loss that is none is stored as None, and said here
    first_loss: float | None = None
    last_loss: float | None = None
    accuracy: float | None = None
    evaluation_seconds: float | None = None  # that finding the accuracy took
    epsilon: float | None = None
    epoch_epsilon: float | None = None  # of one epoch by itself, which an extrapolated time is about
    reached: bool | None = None  # the accuracy that was wanted, on validation images; None: none was
    trained_seconds: float | None = None  # until then, without the looks at validation images
    trained_steps: int | None = None
    shown_epsilon: float | None = None  # by an audit: the true one is this or more


PHYSICAL_BATCH = "physical_batch"  # among what was settled: samples that go through the network at once, at most
UNNAMED, COUNTED = "step", "item"  # the units where nobody gave one: of steps, and of what they say that they did


class Total(msgspec.Struct, frozen=True, kw_only=True):
    value: float
    unit: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What only the built workload knows."""

    unit: str = UNNAMED
    per_item: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1e30)]] = {}  # what one item costs: {"byte": 1.2e9}
    epoch_items: Annotated[int, msgspec.Meta(ge=0)] | None = None  # of the data set, on all ranks; None: it has none
    settled: dict[str, Value] = {}  # options that got their value at run time
    totals: dict[str, Total] = {}  # what was counted over the whole of it, by what it is called
    notes: tuple[str, ...] = ()


class Completed(msgspec.Struct, frozen=True, kw_only=True, tag="completed"):
    quality: Quality = Quality()


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    kind: FailureKind
    phase: Phase
    message: str


class Skipped(msgspec.Struct, frozen=True, kw_only=True, tag="skipped"):
    reason: str


Outcome = Completed | Failed | Skipped


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Of an accelerator, as its framework counts it."""

    peak_bytes: ByteCount | None = None  # of all steps, warm-up included; None: the framework doesn't count it
    limit_bytes: ByteCount | None = None


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank leaves in its folder."""

    outcome: Outcome
    facts: Facts = Facts()
    environment: Environment | None = None
    peak_memory_bytes: ByteCount | None = None
    device_memory: DeviceMemory | None = None  # of its fullest device; None: it has none but the CPU
    start_seconds: float | None = None  # from the process's own start to the first step


def fullest(devices: Iterable[DeviceMemory | None]) -> DeviceMemory | None:
    """The one that decides whether something fits."""
    known = [device for device in devices if device is not None]
    return max(known, key=lambda device: device.peak_bytes or 0, default=None)


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int = SCHEMA_VERSION
    benchmark_version: int = 1  # of the workload: figures of two versions are not compared
    rigdyno_version: str
    run: str
    cell: str
    suite: str | None = None
    label: str | None = None
    repeat: int = 1
    pair: int | None = None  # of a duel: its steps say something beside its partner's alone, never by themselves
    arm: Arm | None = None
    attempt_of: str | None = None  # of a search: it says whether something fits, and nothing about how fast it is
    started_at: str  # UTC, ISO 8601
    seconds: float = 0.0  # the whole cell, start-up included
    start_seconds: float | None = None  # until the last rank took its first step
    spec: RunSpec
    system: System
    environment: Environment
    facts: Facts = Facts()
    outcome: Outcome
    participants: tuple[Participant, ...] = ()
    exit_codes: dict[str, int] = {}  # by participant, where it is known; negative: the signal
    clocks: tuple[ClockPair, ...] = ()  # of the other nodes
    nodes: tuple[System, ...] = ()  # each node's own, where there are several or it isn't this machine
    peak_memory_bytes: ByteCount | None = None  # summed over the ranks
    device_memory: DeviceMemory | None = None  # of the fullest device of all ranks
    files: tuple[str, ...] = ()

    @property
    def is_to_run_again(self) -> bool:
        return isinstance(self.outcome, Failed) and self.outcome.kind in RUN_AGAIN

    @property
    def memory_bytes(self) -> int | None:
        """The peak of what is scarce where it ran: of the device's memory, or of the processes'."""
        if self.spec.device == "cpu":
            return self.peak_memory_bytes
        return None if self.device_memory is None else self.device_memory.peak_bytes

    @property
    def is_figure(self) -> bool:
        """Whether its steps say something by themselves."""
        return self.pair is None and self.attempt_of is None

    def columns(self) -> dict[str, str | int]:
        """What could explain a number, by the names that a table's extra columns go by."""
        environment = self.environment
        named = {
            "label": self.label,
            "cpu": self.system.cpu.model,
            "kernel": self.system.kernel,
            "device": self.spec.device,
            "python": environment.python,
            "threads": environment.threads,
            "governor": environment.governor,
            "commit": environment.rigdyno_git.commit[:12] if environment.rigdyno_git is not None else None,
            **environment.packages,
            **environment.framework,
        }
        return {name: value for name, value in named.items() if value is not None}


class RunHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first thing in a run folder: what it set out to do, and where."""

    schema_version: int = SCHEMA_VERSION
    rigdyno_version: str
    created_at: str
    plan: Plan
    system: System  # of the machine on which it was started
    environment: Environment

    @classmethod
    def of(cls, plan: Plan, system: System, environment: Environment) -> RunHead:
        """Of a run that is to begin now."""
        created_at = utc_now().isoformat(timespec="seconds")
        return cls(
            rigdyno_version=__version__, created_at=created_at, plan=plan, system=system, environment=environment
        )

    def machines(self, records: Iterable[RunRecord]) -> tuple[System, ...]:
        """On which it ran: those of the cell with the most nodes. A login node is none of them."""
        return max((record.nodes for record in records), key=len, default=()) or (self.system,)
