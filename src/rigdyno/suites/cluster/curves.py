"""Group the measurements of the cluster suite into one curve per job, by number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rigdyno.analyse.scaling import efficiency, ratio
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.measured import JobTime, Measurement
from rigdyno.schema.record import Completed, Quality
from rigdyno.schema.spec import IDLE
from rigdyno.schema.view import Entry

NAMES = {"mnist_cnn": "PyTorch", "mnist_cnn_tensorflow": "TensorFlow"}

# Arrangements other than the library's own.
WAYS = {"horovod": "Horovod (Gloo)", "horovod_mpi": "Horovod (MPI)"}

NATIVE = {"mnist_cnn": "DistributedDataParallel", "mnist_cnn_tensorflow": "MultiWorkerMirroredStrategy"}

PARTS = ("start", "data", "training", "communication", "evaluation")


@dataclass(frozen=True)
class JobCurve:
    """The measurements of one job in one library and arrangement, by number of devices."""

    name: str
    points: tuple[Measurement, ...]
    one_card: Measurement | None = None  # the same job on one device, if it is in another curve

    @property
    def first(self) -> Measurement:
        return self.points[0]

    @property
    def whole(self) -> tuple[Measurement, ...]:
        """Return all points, including the shared one of one device."""
        return self.points if self.one_card is None else (self.one_card, *self.points)

    @property
    def single(self) -> Measurement | None:
        first = self.whole[0]
        return first if first.spec.world_size == 1 else None

    @property
    def alone(self) -> JobTime | None:
        """Return the time of the job on one device."""
        return None if self.single is None else self.single.job

    def ideal(self, cards: int) -> Estimate | None:
        """Return the time on one device divided by the number of devices."""
        return None if self.alone is None else self.alone.seconds.scaled(1 / cards, "s")

    def speedup(self, point: Measurement) -> Entry:
        if point is self.single and self.alone is not None:
            return Number(value=1, unit="x")
        found = self._ratio(point)
        if isinstance(found, Missing):
            return found
        return Number(value=found.value, low=found.low, high=found.high, unit="x")

    def efficiency(self, point: Measurement) -> Entry:
        found = self._ratio(point)
        return found if isinstance(found, Missing) else efficiency(found, point.spec.world_size, "the ideal")

    def _ratio(self, point: Measurement) -> Estimate | Missing:
        """Return the time on one card divided by the time of this point."""
        if point.job is None:
            return Missing(reason=point.why_missing())
        if self.alone is None:
            return Missing(reason="the job was not measured on one card")
        return ratio(self.alone.seconds, point.job.seconds)


@dataclass(frozen=True)
class ClusterResults:
    curves: tuple[JobCurve, ...] = ()
    idle: Measurement | None = None
    beside: tuple[Measurement, ...] = ()  # of another run, which is never mixed with the cluster's
    jobs: tuple[Measurement, ...] = field(default_factory=tuple)  # of all curves

    def by_job(self) -> list[list[JobCurve]]:
        """Group the curves that differ only in their arrangement."""
        groups: dict[str, list[JobCurve]] = {}
        for curve in self.curves:
            groups.setdefault(_job_name(curve.first, self.jobs), []).append(curve)
        return list(groups.values())

    @property
    def cards_word(self) -> str:
        return "CPU ranks" if all(each.spec.device == "cpu" for each in self.jobs) else "cards"


def curves_of(measurements: Sequence[Measurement]) -> ClusterResults:
    own = measurements[0].runs[:1] if measurements else ()
    here = [each for each in measurements if each.runs[:1] == own]
    jobs = [each for each in here if each.spec.workload in NAMES]
    groups: dict[str, list[Measurement]] = {}
    for each in jobs:
        groups.setdefault(name_of(each, jobs), []).append(each)
    ones = {_job_name(each, jobs): each for each in jobs if each.spec.world_size == 1}
    return ClusterResults(
        curves=tuple(_curve(name, found, ones.get(_job_name(found[0], jobs))) for name, found in groups.items()),
        idle=next((each for each in here if each.spec.workload == IDLE), None),
        beside=tuple(each for each in measurements if each.runs[:1] != own),
        jobs=tuple(jobs),
    )


def _curve(name: str, points: Sequence[Measurement], one: Measurement | None) -> JobCurve:
    ordered = tuple(sorted(points, key=lambda each: each.spec.world_size))
    return JobCurve(name, ordered, None if one is None or any(one is each for each in ordered) else one)


def name_of(measurement: Measurement, among: Sequence[Measurement] = ()) -> str:
    """Return the name of the job, with the arrangement unless it is the library's own."""
    name, way = _job_name(measurement, among), WAYS.get(measurement.spec.arrangement)
    return name if way is None else f"{name}, {way}"


def _job_name(measurement: Measurement, among: Sequence[Measurement]) -> str:
    """Return the library, 'as published' for the published network, and the steps if there are jobs of two lengths."""
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
    """Return the approximate steps on one device: those of each device are rounded down."""
    steps = (measurement.spec.budget.job_steps or 0) * measurement.spec.world_size
    return round(steps, -2) if steps >= 1000 else steps


def quality_of(measurement: Measurement) -> Quality | None:
    return measurement.outcome.quality if isinstance(measurement.outcome, Completed) else None
