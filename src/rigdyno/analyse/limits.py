"""The machine's own limits, measured in the same run: no figure can lie above them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from rigdyno.analyse.verdict import against_limit
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.units import rate_unit

MEMORY_WORKLOAD = "memory_bandwidth"
CACHES_TO_EXCEED = 4  # below this many last-level caches some of the bytes don't come from memory


def memory_limit(measurements: Iterable[Measurement]) -> Estimate | None:
    """The best of the kinds: what this machine's memory has been seen to carry. A limit that is itself INVALID is none:
    it would condemn good figures."""
    found = [
        _best(measurement.kinds[measurement.best_kind])
        for measurement in measurements
        if measurement.spec.workload == MEMORY_WORKLOAD and measurement.best_kind is not None
        if measurement.status != "INVALID"
    ]
    return max(found, key=lambda limit: limit.value, default=None)


def _best(figures: KindFigures) -> Estimate:
    """Of the best process: what memory carries on a shared machine changes by half within minutes, and the mean over
    processes is no limit."""
    mean, best = figures.throughput, max(figures.process_rates, default=figures.throughput.value)
    if best <= mean.value:
        return mean
    low, high = mean.ends
    method = f"the best of {len(figures.process_rates)} processes"
    return replace(mean, value=best, low=low, high=max(high, best), confidence=None, method=method)


def fits_the_cache(measurement: Measurement) -> bool:
    """Then the memory's limit doesn't bind it."""
    cache = measurement.records[-1].system.cpu.last_level_cache_bytes
    per_item = measurement.facts.per_item.get("byte")
    on_host = measurement.spec.device == "cpu"
    return on_host and cache is not None and per_item is not None and per_item < CACHES_TO_EXCEED * cache


def bytes_per_s(measurement: Measurement) -> Estimate | None:
    """What the measured steps move, where the workload knows what an item costs."""
    rate, per_item = measurement.throughput(), measurement.facts.per_item.get("byte")
    if per_item is None or not isinstance(rate, Estimate):
        return None
    return rate.scaled(per_item, rate_unit("byte"))


def held_against_limits(measurements: Sequence[Measurement]) -> list[Measurement]:
    """With the verdict that only the whole run can give."""
    limit = memory_limit(measurements)
    return [_held(measurement, limit) for measurement in measurements]


def _held(measurement: Measurement, limit: Estimate | None) -> Measurement:
    moved = bytes_per_s(measurement)
    if limit is None or moved is None or measurement.validity is None or fits_the_cache(measurement):
        return measurement
    return replace(measurement, validity=against_limit(measurement.validity, moved, limit))
