"""Join a search for the largest batch with the measurements of its result, for each way of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rigdyno.analyse.extrapolation import seconds_for
from rigdyno.features.fit.search import MemoryLine, line_of
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.measured import Attempt, Measurement
from rigdyno.schema.record import Completed


@dataclass(frozen=True)
class FitCurve:
    """One search, and the measured sizes, the largest first."""

    name: str  # the update, and what else differs from the other searches
    option: str
    allowed_bytes: int
    sizes: tuple[Measurement, ...]

    @property
    def largest(self) -> Measurement:
        return self.sizes[0]

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(attempt for size in self.sizes for attempt in size.attempts)

    @property
    def line(self) -> MemoryLine | None:
        """Return the line of memory over the option's value, whatever the physical batch is."""
        return line_of(self.attempts)

    @property
    def physical(self) -> int | None:
        """Return the largest physical batch with the largest value."""
        value = self.value_of(self.largest)
        found = [each.physical or each.value for each in self.attempts if each.value == value]
        return max(found, default=value)

    @property
    def quickest(self) -> Measurement | None:
        """Return the fastest of the sizes that have a figure."""
        timed = [(figure.value, each) for each in self.sizes if isinstance(figure := each.throughput(), Estimate)]
        return max(timed, key=lambda pair: pair[0])[1] if timed else None

    def value_of(self, measurement: Measurement) -> int | None:
        value = measurement.spec.options.get(self.option)
        return value if isinstance(value, int) else None

    def what_ended_it(self) -> str | None:
        """Return why the smallest value that didn't fit failed; None if it was memory."""
        too_large = [each for each in self.attempts if each.fits is False]
        if not too_large:
            return None
        smallest = min(too_large, key=lambda each: each.value)
        return None if smallest.memory_bytes is not None or smallest.ran_out else smallest.why


def fit_curves(measurements: Sequence[Measurement]) -> list[FitCurve]:
    groups: dict[str, list[Measurement]] = {}
    for each in measurements:
        if len(each.spec.largest) == 1:
            groups.setdefault(each.spec.search_key(), []).append(each)
    traits = [_traits(group[0]) for group in groups.values()]
    differing = [key for key in _keys(traits) if len({each.get(key) for each in traits}) > 1]
    return [_curve(group, differing) for group in groups.values()]


def _curve(group: Sequence[Measurement], differing: Sequence[str]) -> FitCurve:
    first = group[0].spec
    [(option, allowed)] = first.largest.items()
    others = [key for key in differing if key != "update"]
    traits = _traits(group[0])
    name = ", ".join([first.update, *(f"{key} {traits[key]}" for key in others if key in traits)])
    return FitCurve(name, option, allowed, tuple(sorted(group, key=lambda each: -each.spec.share)))


def _traits(measurement: Measurement) -> dict[str, str]:
    spec = measurement.spec
    options = {key: str(value) for key, value in spec.options.items() if key not in spec.largest}
    rules = {key: str(size) for key, size in spec.largest.items()}
    return {"update": spec.update, "workload": spec.workload, "ranks": str(spec.world_size), **options, **rules}


def _keys(traits: Sequence[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for each in traits for key in each))


def epoch_seconds(measurement: Measurement) -> Estimate | None:
    """Return the time of all samples; None if there is no epoch or no rate."""
    items = measurement.facts.epoch_items
    found = seconds_for(items, measurement, of_many=True) if items else None
    return found if isinstance(found, Estimate) else None


def pace(measurement: Measurement) -> Estimate | Missing:
    """Return the time of an epoch, or the rate if there is no epoch."""
    return epoch_seconds(measurement) or measurement.throughput()


def memory_of(measurement: Measurement) -> int | None:
    """Return the largest peak of its processes, of the limited memory."""
    peaks = [record.memory_bytes for record in measurement.records if isinstance(record.outcome, Completed)]
    return max((peak for peak in peaks if peak is not None), default=None)
