"""A configuration's figures, derived from the stored samples of all its processes."""

from __future__ import annotations

from typing import Literal

import msgspec

from rigdyno.schema.energy import EnergyFigures
from rigdyno.schema.estimate import Estimate, Missing, Validity
from rigdyno.schema.layout import log_of
from rigdyno.schema.metric import ENERGY_PER_ITEM, STEP_TIME, THROUGHPUT, Metric
from rigdyno.schema.record import Completed, Facts, Outcome, RunRecord, Skipped
from rigdyno.schema.spec import RunSpec

Status = Literal["VALID", "SUSPECT", "INVALID", "FAILED", "SKIPPED"]


class KindFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of step (most workloads have one, called 'step')."""

    throughput: Estimate  # items/s: sum of items over sum of seconds
    step_seconds: Estimate  # median
    steps: Estimate | None = None  # steps/s: the same in steps
    process_rates: tuple[float, ...] = ()  # items/s of each process: what two runs are compared by
    warm_up_seconds: float = 0.0  # by which steps before the steady ones took longer than as many of those; their mean
    energy: Estimate | None = None  # J an item, gross; None: there is no meter, or kinds of step take turns
    validity: Validity | None = None  # of these steps alone; None: that of the whole counts

    def by_metric(self) -> tuple[tuple[Metric, Estimate], ...]:
        """What one asks about first, of any workload."""
        energy = () if self.energy is None else ((ENERGY_PER_ITEM.in_unit(self.energy.unit), self.energy),)
        times = (THROUGHPUT.in_unit(self.throughput.unit), self.throughput), (STEP_TIME, self.step_seconds)
        return (*times, *energy)


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """What a training step was spent on."""

    forward: Estimate  # items/s of all ranks, if nothing else took time: broadcasts and computing
    backward: Estimate  # the same: computing, waiting for gradients, the optimizer
    by_rank: dict[int, dict[str, float]]  # mean seconds of a step, by phase
    longest_computing: float  # mean over the steps of what the slowest rank of each computed for
    explained: float  # the share of the step's time that the phases add up to; of the rank where it is furthest from 1


class JobTime(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a whole job went, from its start to its end. The parts add up to the whole."""

    seconds: Estimate
    start: float  # until the last rank's first step: processes, imports, images, joining; and their end
    data: float | None  # waiting for batches; None: the phases were not timed, and it is in the training
    training: float  # forward, backward, optimizer
    communication: float | None  # waiting for others' gradients; None: as with data
    evaluation: float  # of the accuracy; 0 where nothing was evaluated
    steps: int  # of one rank
    items: float  # of all ranks

    @property
    def loop(self) -> float:
        return (self.data or 0.0) + self.training + (self.communication or 0.0)

    @property
    def without_start(self) -> float:
        """What the clocks of the published scripts cover."""
        return self.loop + self.evaluation


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one node's meters said over time, thinned; 0 s is its first step. None: not read then."""

    node: int
    seconds: tuple[float, ...]
    cpu: tuple[float | None, ...]  # share of all cores
    device: tuple[float | None, ...] = ()  # share of the cards' time, mean over them; empty: no card could be read
    watts: tuple[float | None, ...] = ()  # empty: there is no meter of the whole node


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Of one configuration's first process, while it stepped."""

    nodes: tuple[NodeUsage, ...]
    cpu: float | None  # mean over nodes and time
    device: float | None = None
    device_low: float | None = None  # the range that nine readings of ten are in
    device_high: float | None = None
    burstiness: float | None = None  # standard deviation over mean of the device's readings
    interval_seconds: float | None = None  # between two readings


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """How the rate held over time."""

    burst: float  # items/s, early
    sustained: float  # items/s, at the end
    throttled: bool
    fell: bool = False  # lost much of its rate, whatever the reason
    seconds: tuple[float, ...] = ()  # middle of each time slice
    rates: tuple[float, ...] = ()
    clock_mhz: tuple[float, ...] = ()  # empty: can't be read here
    temperature_c: tuple[float, ...] = ()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a search for the largest value that fits."""

    value: int
    fits: bool | None  # None: it ended for a reason that has nothing to do with the value
    memory_bytes: int | None  # that it took; None: it didn't come to its end, or nobody knows
    thorough: bool = False  # with more steps, to confirm it
    physical: int | None = None  # samples that went through at once, where that isn't the value
    why: str = ""  # it ended early
    ran_out: bool = False  # of memory


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    spec: RunSpec
    records: tuple[RunRecord, ...]
    outcome: Outcome  # the first that isn't Completed, else Completed
    facts: Facts
    kinds: dict[str, KindFigures] = {}  # empty unless completed
    phases: Phases | None = None  # None: not timed
    validity: Validity | None = None
    soak: Soak | None = None
    energy: EnergyFigures | Missing | None = None  # None: nobody sampled it
    job: JobTime | None = None  # None: it wasn't one
    usage: Usage | None = None  # None: nobody sampled it, or it was no job
    attempts: tuple[Attempt, ...] = ()  # of the search for an option's value, in their order

    def throughput(self, kind: str = "step") -> Estimate | Missing:
        if kind in self.kinds:
            return self.kinds[kind].throughput
        return Missing(reason=self.why_missing())

    @property
    def status(self) -> Status:
        """What a table says at the end of the row: the verdict, or that there is no figure."""
        if isinstance(self.outcome, Skipped):
            return "SKIPPED"
        if not isinstance(self.outcome, Completed) or self.validity is None:
            return "FAILED"
        return self.validity.verdict

    def status_of(self, kind: str | None) -> Status:
        """Of the row of one kind: what is wrong with another one doesn't spoil it."""
        own = self.kinds[kind].validity if kind in self.kinds else None
        return self.status if own is None or not isinstance(self.outcome, Completed) else own.verdict

    @property
    def runs(self) -> tuple[str, ...]:
        """Which ones its processes belong to."""
        return tuple(dict.fromkeys(record.run for record in self.records))

    @property
    def best_kind(self) -> str | None:
        """The kind with the highest throughput: what a limit goes by."""
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
