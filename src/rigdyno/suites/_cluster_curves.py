"""What the cluster suite's tables, figures and sentences are about: each job by number of cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rigdyno.schema.energy import EnergyFigures
from rigdyno.schema.estimate import Estimate, Missing, Number, worst_ratio
from rigdyno.schema.measured import JobTime, Measurement
from rigdyno.schema.record import Completed, Quality
from rigdyno.schema.spec import IDLE
from rigdyno.schema.view import Entry, Share

NAMES = {"mnist_cnn": "PyTorch", "mnist_cnn_tensorflow": "TensorFlow"}
# How ranks share the work, where it isn't the library's own way.
WAYS = {"horovod": "Horovod (Gloo)", "horovod_mpi": "Horovod (MPI)"}
NATIVE = {"mnist_cnn": "DistributedDataParallel", "mnist_cnn_tensorflow": "MultiWorkerMirroredStrategy"}
PARTS = ("start", "data", "training", "communication", "evaluation")


@dataclass(frozen=True)
class Curve:
    """One library, one way to share the work and one job, in the order of the number of cards."""

    name: str
    points: tuple[Measurement, ...]
    one_card: Measurement | None = None  # the same job on one, where it stands in another curve: it is shared by all

    @property
    def first(self) -> Measurement:
        return self.points[0]

    @property
    def whole(self) -> tuple[Measurement, ...]:
        """From one card on."""
        return self.points if self.one_card is None else (self.one_card, *self.points)

    @property
    def single(self) -> Measurement | None:
        first = self.whole[0]
        return first if first.spec.world_size == 1 else None

    @property
    def alone(self) -> JobTime | None:
        """On one card."""
        return None if self.single is None else self.single.job

    def ideal(self, cards: int) -> Estimate | None:
        """What one card took, shared out."""
        return None if self.alone is None else self.alone.seconds.scaled(1 / cards, "s")

    def speedup(self, point: Measurement) -> Entry:
        if point is self.single and self.alone is not None:
            return Number(value=1, unit="x")
        found = self._over(point, 1)
        if not isinstance(found, Share):
            return found
        return Number(value=found.value, low=found.low, high=found.high, unit="x")

    def efficiency(self, point: Measurement) -> Entry:
        return self._over(point, point.spec.world_size)

    def _over(self, point: Measurement, times: int) -> Entry:
        if point.job is None:
            return Missing(reason=point.why_missing())
        ideal = self.ideal(times)
        if ideal is None:
            return Missing(reason="the job was not measured on one card")
        low, high = worst_ratio(ideal, point.job.seconds) or (None, None)
        return Share(value=ideal.value / point.job.seconds.value, low=low, high=high, of="the ideal")


@dataclass(frozen=True)
class Shown:
    curves: tuple[Curve, ...] = ()
    idle: Measurement | None = None
    beside: tuple[Measurement, ...] = ()  # of another run: never mixed with the cluster's
    jobs: tuple[Measurement, ...] = field(default_factory=tuple)  # of all curves

    def by_job(self) -> list[list[Curve]]:
        """Those that differ only in how the work is shared out."""
        groups: dict[str, list[Curve]] = {}
        for curve in self.curves:
            groups.setdefault(_job_name(curve.first, self.jobs), []).append(curve)
        return list(groups.values())

    @property
    def cards_word(self) -> str:
        return "CPU ranks" if all(each.spec.device == "cpu" for each in self.jobs) else "cards"


def curves_of(measurements: Sequence[Measurement]) -> Shown:
    own = measurements[0].runs[:1] if measurements else ()
    here = [each for each in measurements if each.runs[:1] == own]
    jobs = [each for each in here if each.spec.workload in NAMES]
    groups: dict[str, list[Measurement]] = {}
    for each in jobs:
        groups.setdefault(name_of(each, jobs), []).append(each)
    ones = {_job_name(each, jobs): each for each in jobs if each.spec.world_size == 1}
    return Shown(
        curves=tuple(_curve(name, found, ones.get(_job_name(found[0], jobs))) for name, found in groups.items()),
        idle=next((each for each in here if each.spec.workload == IDLE), None),
        beside=tuple(each for each in measurements if each.runs[:1] != own),
        jobs=tuple(jobs),
    )


def _curve(name: str, points: Sequence[Measurement], one: Measurement | None) -> Curve:
    ordered = tuple(sorted(points, key=lambda each: each.spec.world_size))
    return Curve(name, ordered, None if one is None or any(one is each for each in ordered) else one)


def name_of(measurement: Measurement, among: Sequence[Measurement] = ()) -> str:
    """The job, with how it is shared out where that isn't the library's own way."""
    name, way = _job_name(measurement, among), WAYS.get(measurement.spec.arrangement)
    return name if way is None else f"{name}, {way}"


def _job_name(measurement: Measurement, among: Sequence[Measurement]) -> str:
    """The library; with the network where it is the published one, with the length of the job where there are two."""
    kind = _kind(measurement)
    words = [NAMES.get(kind[0], kind[0]), *(["as published"] if kind[1] else [])]
    if len({steps_of(each) for each in among if _kind(each) == kind}) > 1:
        words.append(f"{steps_of(measurement):,} steps")
    return ", ".join(words)


def way_of(measurement: Measurement) -> str:
    spec = measurement.spec
    return WAYS.get(spec.arrangement) or NATIVE.get(spec.workload, spec.arrangement)


def _kind(measurement: Measurement) -> tuple[str, bool]:
    return measurement.spec.workload, is_published(measurement)


def is_published(measurement: Measurement) -> bool:
    return measurement.spec.resolved.get("variant") == "as_published"


def steps_of(measurement: Measurement) -> int:
    """About so many on one card: each card's are rounded down."""
    steps = (measurement.spec.budget.job_steps or 0) * measurement.spec.world_size
    return round(steps, -2) if steps >= 1000 else steps


def quality_of(measurement: Measurement) -> Quality | None:
    return measurement.outcome.quality if isinstance(measurement.outcome, Completed) else None


def joules_of(measurement: Measurement) -> float | None:
    """Of the job's steps, at the power of the steady ones."""
    energy, job = measurement.energy, measurement.job
    return energy.watts.value * job.loop if isinstance(energy, EnergyFigures) and job is not None else None


def why_no_joules(measurement: Measurement) -> str:
    if isinstance(measurement.energy, Missing):
        return measurement.energy.reason
    return "nobody sampled it" if measurement.job is not None else measurement.why_missing()
