"""Store the outcome of a cell. Records are raw and final: estimates and verdicts are derived from them, not stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from rigdyno import __version__
from rigdyno.base.clock import utc_now
from rigdyno.schema.spec import Arm, ClockPair, Participant, RunPlan, RunSpec, Value
from rigdyno.schema.system import ByteCount, Environment, System

SCHEMA_VERSION = 2

Phase = Literal["start", "build", "warm-up", "measure", "finish"]

FailureKind = Literal[
    "out_of_memory", "signal", "timeout", "exception", "interrupted", "exit", "node_lost", "job_ended"
]  # fmt: skip

PHYSICAL_BATCH = "physical_batch"  # key in `settled`: largest number of samples that go through the network at once

UNNAMED, COUNTED = "step", "item"  # default units: if steps report no items, and if they do

LAUNCHER = "launcher"  # key in `exit_codes` of the command that started all ranks of a node

# Failures that say nothing about the configuration: resuming runs such a cell again.
RUN_AGAIN: frozenset[FailureKind] = frozenset(("node_lost", "job_ended"))


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The correctness of the results: a fast wrong answer doesn't count."""

    correct: bool | None = None  # result of the workload's own check; None: it has no check
    loss_finite: bool | None = None  # False: a loss was NaN or infinite, which JSON lacks, and is stored as None
    first_loss: float | None = None
    last_loss: float | None = None
    accuracy: float | None = None
    evaluation_seconds: float | None = None  # time to compute the accuracy
    epsilon: float | None = None
    epoch_epsilon: float | None = None  # of one epoch by itself, to go with an extrapolated time per epoch
    reached: bool | None = None  # whether the target accuracy on validation images was reached; None: no target
    trained_seconds: float | None = None  # until it was reached, without the time for validation
    trained_steps: int | None = None
    shown_epsilon: float | None = None  # lower bound of the true epsilon, found by an audit


class Total(msgspec.Struct, frozen=True, kw_only=True):
    value: float
    unit: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are known only once the workload is built."""

    unit: str = UNNAMED
    per_item: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1e30)]] = {}  # cost of one item: {"byte": 1.2e9}
    epoch_items: Annotated[int, msgspec.Meta(ge=0)] | None = None  # of all ranks; None: there are no epochs
    settled: dict[str, Value] = {}  # options that got their value at run time
    totals: dict[str, Total] = {}  # totals over the whole cell, by name
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
    """The memory of an accelerator, as its framework counts it."""

    peak_bytes: ByteCount | None = None  # of all steps, warm-up included; None: the framework doesn't count it
    limit_bytes: ByteCount | None = None


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report that a rank writes into its folder."""

    outcome: Outcome
    facts: Facts = Facts()
    environment: Environment | None = None
    peak_memory_bytes: ByteCount | None = None
    device_memory: DeviceMemory | None = None  # of its fullest device; None: it uses only the CPU
    start_seconds: float | None = None  # from the start of the process to the first step


def fullest(devices: Iterable[DeviceMemory | None]) -> DeviceMemory | None:
    """Return the device with the highest peak, which decides whether something fits."""
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
    pair: int | None = None  # number of the pair in a duel: its steps are only meaningful relative to its partner's
    arm: Arm | None = None
    attempt_of: str | None = None  # cell that a search is for: this one shows whether something fits, not how fast
    started_at: str  # UTC, ISO 8601
    seconds: float = 0.0  # the whole cell, start-up included
    start_seconds: float | None = None  # until the last rank took its first step
    spec: RunSpec
    system: System
    environment: Environment
    facts: Facts = Facts()
    outcome: Outcome
    participants: tuple[Participant, ...] = ()
    exit_codes: dict[str, int] = {}  # by participant, if known; negative: the signal
    clocks: tuple[ClockPair, ...] = ()  # of the other nodes
    nodes: tuple[System, ...] = ()  # one per node; empty: a single node, which is this machine
    peak_memory_bytes: ByteCount | None = None  # summed over the ranks
    device_memory: DeviceMemory | None = None  # of the fullest device of all ranks
    files: tuple[str, ...] = ()

    @property
    def is_to_run_again(self) -> bool:
        return isinstance(self.outcome, Failed) and self.outcome.kind in RUN_AGAIN

    @property
    def memory_bytes(self) -> int | None:
        """Return the peak of the device's memory, or on a CPU that of the processes."""
        if self.spec.device == "cpu":
            return self.peak_memory_bytes
        return None if self.device_memory is None else self.device_memory.peak_bytes

    @property
    def is_figure(self) -> bool:
        """Return whether its steps are meaningful by themselves, unlike those of a duel or a search."""
        return self.pair is None and self.attempt_of is None

    def columns(self) -> dict[str, str | int]:
        """Return facts that could explain a number, by the names of a table's extra columns."""
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
    """The first file of a run folder: the plan, the machine and the environment."""

    schema_version: int = SCHEMA_VERSION
    rigdyno_version: str
    created_at: str
    plan: RunPlan
    system: System  # of the machine on which it was started
    environment: Environment

    @classmethod
    def of(cls, plan: RunPlan, system: System, environment: Environment) -> RunHead:
        """Make the head of a run that begins now."""
        created_at = utc_now().isoformat(timespec="seconds")
        return cls(
            rigdyno_version=__version__, created_at=created_at, plan=plan, system=system, environment=environment
        )

    def machines(self, records: Iterable[RunRecord]) -> tuple[System, ...]:
        """Return the machines of the cell with the most nodes. A login node is not among them."""
        return max((record.nodes for record in records), key=len, default=()) or (self.system,)
