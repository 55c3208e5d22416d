"""Store the figures of one configuration: rates, energy, phases, usage and verdict.

They are derived from the stored samples of all its processes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rigdyno.schema.channel import Extent, Scope
from rigdyno.schema.estimate import Estimate, Missing, Validity
from rigdyno.schema.layout import log_of
from rigdyno.schema.metric import ENERGY_PER_ITEM, STEP_TIME, THROUGHPUT, Metric
from rigdyno.schema.record import Completed, Facts, Outcome, RunRecord, Skipped
from rigdyno.schema.spec import RunSpec

# Sensor updates in one turn of a duel by joules: with this many, the sensor's averaging matters less than a margin.
UPDATES_OF_A_TURN = 20

Method = Literal["counter", "integral"]

# What a sum of power covers, the widest first: all that a node draws from the wall, or at its board's input; the sum of
# its board's rails; the sum of its GPUs and processor packages, which is less than the node draws.
Whole = Literal["wall", "board", "rails", "chips"]

WHOLES: tuple[Whole, ...] = ("wall", "board", "rails", "chips")


class MeterEnergy(msgspec.Struct, frozen=True, kw_only=True):
    """The energy that one power meter measured over one window."""

    title: str  # "gpu0", "VDD_IN"
    sensor: str
    scope: Scope
    extent: Extent
    method: Method
    joules: float  # over the covered time
    seconds: float  # covered time
    coverage: float  # covered share of the window
    watts: float  # mean over the covered time
    peak_watts: float | None = None
    updates: int = 0  # new values inside the window
    interval_seconds: float | None = None  # between two updates
    check_watts: float | None = None  # mean by the integral of power, to check a counter; None: can't be checked
    node: int = 0


class EnergyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The energy of one configuration over the steady windows of its processes."""

    whole: Whole
    source: str  # names of the meters, in words
    joules: Estimate  # gross, in the steady window of a process
    watts: Estimate  # mean, of all nodes together
    peak_watts: float | None
    coverage: float  # of the process with the lowest coverage
    per_item: Estimate | Missing  # J/image
    per_step: Estimate | Missing
    idle_watts: Estimate | Missing
    net_watts: Estimate | Missing  # minus the power of the idle machine
    net_per_item: Estimate | Missing
    watts_by_node: dict[int, float] = {}
    meters: tuple[MeterEnergy, ...] = ()  # of the first process
    process_per_item: tuple[float, ...] = ()  # of each process; used to compare two runs


Status = Literal["VALID", "SUSPECT", "INVALID", "FAILED", "SKIPPED"]


class KindFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one kind of step (most workloads have one kind, called 'step')."""

    throughput: Estimate  # items/s: sum of items over sum of seconds
    step_seconds: Estimate  # median
    steps: Estimate | None = None  # steps/s
    process_rates: tuple[float, ...] = ()  # items/s of each process; used to compare two runs
    warm_up_seconds: float = 0.0  # extra time of the warm-up over steady steps with as many items, mean of processes
    energy: Estimate | None = None  # J per item, gross; None: there is no meter, or kinds of step alternate
    validity: Validity | None = None  # of these steps alone; None: the verdict of the measurement applies

    def by_metric(self) -> tuple[tuple[Metric, Estimate], ...]:
        """Return the main figures of any workload: throughput, step time and, if measured, energy per item."""
        energy = () if self.energy is None else ((ENERGY_PER_ITEM.in_unit(self.energy.unit), self.energy),)
        times = (THROUGHPUT.in_unit(self.throughput.unit), self.throughput), (STEP_TIME, self.step_seconds)
        return (*times, *energy)


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """How the time of a training step divides into phases."""

    forward: Estimate  # items/s of all ranks if the forward pass took all the time: broadcasts and computing
    backward: Estimate  # likewise for the backward pass: computing, waiting for gradients, the optimizer
    by_rank: dict[int, dict[str, float]]  # mean seconds per step, by phase
    longest_computing: float  # computing time of the slowest rank of each step, mean over the steps
    explained: float  # sum of the phases as a share of the step's time, of the rank where it is furthest from 1


class JobTime(msgspec.Struct, frozen=True, kw_only=True):
    """How the time of a whole job divides, from its start to its end. The parts add up to the whole."""

    seconds: Estimate
    start: float  # until the last rank's first step (processes, imports, images, joining), and after the last step
    data: float | None  # waiting for batches; None: phases were not timed, and `training` includes it
    training: float  # forward, backward, optimizer
    communication: float | None  # waiting for the gradients of other ranks; None: as for `data`
    evaluation: float  # of the accuracy; 0 if nothing was evaluated
    steps: int  # per rank
    items: float  # of all ranks

    @property
    def loop(self) -> float:
        return (self.data or 0.0) + self.training + (self.communication or 0.0)

    @property
    def without_start(self) -> float:
        """Return the seconds that the published scripts measure."""
        return self.loop + self.evaluation


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of one node over time, thinned; 0 s is its first step. None: not read at that time."""

    node: int
    seconds: tuple[float, ...]
    cpu: tuple[float | None, ...]  # share of all cores
    device: tuple[float | None, ...] = ()  # share of the time, mean over the GPUs; empty: no GPU could be read
    watts: tuple[float | None, ...] = ()  # empty: there is no power meter for the whole node


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of CPU and devices by the first process of a configuration, while it stepped."""

    nodes: tuple[NodeUsage, ...]
    cpu: float | None  # mean over nodes and time
    device: float | None = None
    device_low: float | None = None  # with `device_high`: the range of nine in ten readings
    device_high: float | None = None
    burstiness: float | None = None  # standard deviation of the device's readings divided by their mean
    interval_seconds: float | None = None  # between two readings


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """The rate over time."""

    burst: float  # items/s, early
    sustained: float  # items/s, at the end
    throttled: bool
    fell: bool = False  # the rate fell by much, for whatever reason
    seconds: tuple[float, ...] = ()  # middle of each time slice
    rates: tuple[float, ...] = ()
    clock_mhz: tuple[float, ...] = ()  # empty: can't be read on this machine
    temperature_c: tuple[float, ...] = ()


class Attempt(msgspec.Struct, frozen=True):
    """One attempt of a search for the largest value that fits."""

    value: int
    fits: bool | None  # None: it ended for a reason that has nothing to do with the value
    memory_bytes: int | None = None  # peak memory; None: it didn't finish, or it is unknown
    thorough: bool = False  # with more steps, to confirm the value
    physical: int | None = None  # samples that went through the network at once, if that isn't the value
    why: str = ""  # reason for an early end
    ran_out: bool = False  # out of memory


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    spec: RunSpec
    records: tuple[RunRecord, ...]
    outcome: Outcome  # the first outcome that isn't Completed, else Completed
    facts: Facts
    kinds: dict[str, KindFigures] = {}  # empty unless completed
    phases: Phases | None = None  # None: not timed
    validity: Validity | None = None
    soak: Soak | None = None
    energy: EnergyFigures | Missing | None = None  # None: not sampled
    job: JobTime | None = None  # None: not a job
    usage: Usage | None = None  # None: not sampled, or not a job
    attempts: tuple[Attempt, ...] = ()  # of the search for an option's value, in order

    def throughput(self, kind: str = "step") -> Estimate | Missing:
        if kind in self.kinds:
            return self.kinds[kind].throughput
        return Missing(reason=self.why_missing())

    @property
    def status(self) -> Status:
        """Return the verdict, or FAILED or SKIPPED if there is no figure."""
        if isinstance(self.outcome, Skipped):
            return "SKIPPED"
        if not isinstance(self.outcome, Completed) or self.validity is None:
            return "FAILED"
        return self.validity.verdict

    def status_of(self, kind: str | None) -> Status:
        """Return the status of one kind of step, which doesn't depend on the verdicts of other kinds."""
        own = self.kinds[kind].validity if kind in self.kinds else None
        return self.status if own is None or not isinstance(self.outcome, Completed) else own.verdict

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the names of the runs that its processes belong to."""
        return tuple(dict.fromkeys(record.run for record in self.records))

    @property
    def best_kind(self) -> str | None:
        """Return the kind of step with the highest throughput, which limits are checked against."""
        return max(self.kinds, key=lambda kind: self.kinds[kind].throughput.value, default=None)

    def why_missing(self) -> str:
        outcome = self.outcome
        if isinstance(outcome, Skipped):
            return outcome.reason
        if isinstance(outcome, Completed):
            return "no steady steps were recorded"
        failed = next(record for record in self.records if record.outcome == outcome)
        kind = outcome.kind.replace("_", " ")
        log = log_of(failed.cell, failed.files)
        where = f" (log: {failed.run}/{log})" if log is not None else ""
        return f"{kind} while in {outcome.phase}: {outcome.message}{where}"
