"""Figures that the volume suite's tables, figures and sentences share: times of published jobs, rates, efficiency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from rigdyno.analyse.extrapolation import ProcessSpread, seconds_for, spread_between
from rigdyno.analyse.scaling import efficiency, speedup
from rigdyno.reference.volumes import ITERATIONS, PATCH, VOXELS
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import Completed, Quality
from rigdyno.schema.view import Entry, RatioEntry
from rigdyno.workloads.networks.unet import format_shape, parse_numbers

TRAINING, INFERENCE = "unet3d", "unet3d_inference"

SECONDS_PER_MINUTE, SECONDS_PER_HOUR = 60, 3600


@dataclass(frozen=True)
class VolumeResults:
    trained: tuple[Measurement, ...]  # the published network, by number of devices
    others: tuple[Measurement, ...]  # other networks
    inferred: tuple[Measurement, ...]  # the published scheme first, then by number of devices

    @property
    def training(self) -> tuple[Measurement, ...]:
        return (*self.trained, *self.others)

    @property
    def pairs(self) -> list[tuple[Measurement | None, Measurement | None]]:
        """Return, per number of devices, the training of the published network and the inference by our scheme."""
        trained = {each.spec.world_size: each for each in self.trained}
        inferred = {each.spec.world_size: each for each in self.inferred if scheme(each) == "own"}
        return [(trained.get(count), inferred.get(count)) for count in sorted({*trained, *inferred})]

    @cached_property
    def _spread(self) -> ProcessSpread | None:
        return spread_between((*self.training, *self.inferred))

    def seconds(self, each: Measurement) -> Estimate | Missing:
        """Return the time of 1001 iterations, or of the whole volume."""
        return seconds_for(_items_of_job(each), each, self._spread)

    @property
    def best(self) -> Measurement | None:
        """Return the inference that writes most voxels per second."""
        rated = [(rate.value, each) for each in self.inferred if isinstance(rate := each.throughput(), Estimate)]
        return max(rated, key=lambda pair: pair[0])[1] if rated else None


def collect_results(measurements: Sequence[Measurement]) -> VolumeResults:
    trained = sorted((each for each in measurements if each.spec.workload == TRAINING), key=_devices)
    inferred = sorted((each for each in measurements if each.spec.workload == INFERENCE), key=_devices)
    return VolumeResults(
        trained=tuple(each for each in trained if network(each) == "published"),
        others=tuple(each for each in trained if network(each) != "published"),
        inferred=tuple(sorted(inferred, key=lambda each: scheme(each) != "published")),
    )


def _devices(each: Measurement) -> int:
    return each.spec.world_size


def network(each: Measurement) -> str:
    return str(each.spec.resolved.get("network", "published"))


def scheme(each: Measurement) -> str:
    return str(each.spec.resolved.get("scheme", "published"))


def option(each: Measurement, name: str) -> str:
    """Return the value that the workload settled on, else the requested one."""
    return str(each.facts.settled.get(name, each.spec.resolved.get(name, "")))


def is_full(each: Measurement) -> bool:
    """Tell whether it has the published sizes."""
    if each.spec.resolved.get("features"):
        return False
    return each.spec.workload == INFERENCE or option(each, "patch") == format_shape(PATCH)


def is_extrapolated(each: Measurement) -> bool:
    return each.job is None


def patch_voxels(each: Measurement) -> int:
    text = option(each, "patch")
    return prod(parse_numbers("patch", text, 3)) if text else 0


def devices_word(each: Measurement) -> str:
    return "CPU ranks" if each.spec.device == "cpu" else "devices"


def _items_of_job(each: Measurement) -> float:
    if each.spec.workload == INFERENCE:
        return float(VOXELS)
    batch = int(each.spec.resolved.get("batch_size", 1))
    return float(ITERATIONS * batch * each.spec.world_size)


def iterations_per_minute(each: Measurement) -> Estimate | Missing:
    batch = int(each.spec.resolved.get("batch_size", 1))
    return _scale(each.throughput(), SECONDS_PER_MINUTE / (batch * each.spec.world_size), "it/min")


def patches_per_minute(each: Measurement) -> Estimate | Missing:
    return _scale(each.throughput(), SECONDS_PER_MINUTE, "patch/min")


def voxels_trained(each: Measurement) -> Estimate | Missing:
    return _scale(each.throughput(), patch_voxels(each), "voxel/s")


def voxels_passed(each: Measurement) -> Estimate | Missing:
    """Return the voxels per second that pass the network, including the halos of blocks."""
    factor = each.facts.per_item.get("read_voxel")
    if factor is None:
        return Missing(reason=each.why_missing() if not each.kinds else "nobody counted what was read")
    return _scale(each.throughput(), factor, "voxel/s")


def megavoxels(rate: Estimate | Missing) -> Estimate | Missing:
    return _scale(rate, 1e-6, "megavoxel/s")


def in_hours(seconds: Estimate | Missing) -> Estimate | Missing:
    return _scale(seconds, 1 / SECONDS_PER_HOUR, "h")


def _scale(rate: Estimate | Missing, factor: float, unit: str) -> Estimate | Missing:
    return rate if isinstance(rate, Missing) else rate.scaled(factor, unit)


def efficiency_entry(each: Measurement, among: Sequence[Measurement]) -> RatioEntry | Missing | None:
    """Return the efficiency over one device of the same configuration; None for one device itself."""
    if each.spec.world_size == 1:
        return None
    alone = next(
        (one.throughput() for one in among if one.spec.world_size == 1 and _same_configuration(one, each)), None
    )
    times = speedup(each.throughput(), alone, n=len(each.records), reason="one device alone was not measured")
    return times if isinstance(times, Missing) else efficiency(times, each.spec.world_size)


def _same_configuration(one: Measurement, other: Measurement) -> bool:
    return one.spec.workload == other.spec.workload and one.spec.resolved == other.spec.resolved


def waiting_share(each: Measurement) -> Entry:
    """Return the share of a step spent waiting for data, of the rank that waits longest."""
    if each.phases is None:
        return Missing(reason=each.why_missing() if not each.kinds else "the phases were not timed")
    shares = [rank.get("data", 0.0) / total for rank in each.phases.by_rank.values() if (total := sum(rank.values()))]
    return RatioEntry(value=max(shares), of="step") if shares else Missing(reason="the phases were not timed")


def quality_of(each: Measurement) -> Quality | None:
    return each.outcome.quality if isinstance(each.outcome, Completed) else None
