"""The machine's own limits, measured in the same run: no figure can lie above them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from rigdyno.analyse.verdict import against_limit
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement

MEMORY_WORKLOAD = "memory_bandwidth"


def memory_limit(measurements: Iterable[Measurement]) -> Estimate | None:
    """The best of the kinds: what this machine's memory has been seen to carry."""
    for measurement in measurements:
        if measurement.spec.workload == MEMORY_WORKLOAD and measurement.best_kind is not None:
            return measurement.kinds[measurement.best_kind].throughput.scaled(1.0, "B/s")
    return None


def bytes_per_s(measurement: Measurement) -> Estimate | None:
    """What the measured steps move, where the workload knows what an item costs."""
    rate, per_item = measurement.throughput(), measurement.facts.per_item.get("byte")
    if per_item is None or not isinstance(rate, Estimate):
        return None
    return rate.scaled(per_item, "B/s")


def held_against_limits(measurements: Sequence[Measurement]) -> list[Measurement]:
    """With the verdict that only the whole run can give."""
    limit = memory_limit(measurements)
    return [_held(measurement, limit) for measurement in measurements]


def _held(measurement: Measurement, limit: Estimate | None) -> Measurement:
    moved = bytes_per_s(measurement)
    if limit is None or moved is None or measurement.validity is None:
        return measurement
    return replace(measurement, validity=against_limit(measurement.validity, moved, limit))
