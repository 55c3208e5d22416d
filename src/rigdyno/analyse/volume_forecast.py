"""How long a volume takes on any number of devices, from what one and several of them were seen to write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rigdyno.analyse.extrapolation import as_prediction
from rigdyno.errors import UsageError
from rigdyno.schema.estimate import Estimate, worst_ratio
from rigdyno.schema.measured import Measurement

INFERENCE, INFER = "unet3d_inference", "infer"


@dataclass(frozen=True)
class Sharing:
    """Voxels a second by number of devices. Blocks need nothing of each other: what a doubling costs is what they
    share, memory and disks, and it is taken to be the same share each time."""

    name: str
    one: Estimate  # of the smallest number that was measured, divided by it
    smallest: int = 1
    largest: int = 1  # that was measured
    kept: float = 1.0  # of the rate of each device, when their number doubles
    kept_low: float = 1.0
    kept_high: float = 1.0
    is_measured: bool = False  # else nobody has seen several share a volume
    joules_per_voxel: Estimate | None = None  # of the smallest number
    runs: tuple[str, ...] = ()

    def at(self, devices: int) -> Estimate:
        doublings = math.log2(devices / self.smallest)
        low, high = self.one.ends
        ends = (low * self.kept_low**doublings, high * self.kept_high**doublings) if doublings >= 0 else (low, high)
        factor = devices * (self.kept**doublings if doublings >= 0 else 1.0)
        known = self.one.interval is not None
        return Estimate(
            value=self.one.value * factor,
            low=devices * ends[0] if known else None,
            high=devices * ends[1] if known else None,
            n=self.one.n,
            unit="voxel/s",
            method=self.method(devices),
        )

    def method(self, devices: int) -> str:
        if devices == self.smallest:
            return self.one.method
        if self.is_measured:
            seen = f"{self.smallest} and {self.largest} devices, the worst of both"
            return f"from {seen}: every doubling costs the same share"
        return "as many times one device: nobody has measured how several share a volume"


def sharing_of(name: str, measurements: Sequence[Measurement]) -> Sharing:
    """Of one configuration on several numbers of devices: the one that writes most voxels a second on its smallest."""
    groups: dict[str, list[tuple[int, Estimate, Measurement]]] = {}
    for each in measurements:
        rate = each.throughput()
        if each.spec.workload in (INFERENCE, INFER) and isinstance(rate, Estimate) and rate.ends[0] > 0:
            key = repr((each.spec.workload, sorted(each.spec.resolved.items()), each.spec.threads))
            groups.setdefault(key, []).append((each.spec.world_size, rate, each))
    if not groups:
        raise UsageError(f"{name} has no rate of inference; run `rigdyno run volume`, or `rigdyno infer` on your own")
    best = max(groups.values(), key=lambda found: max(rate.value for _, rate, _ in found))
    return _of_points(name, sorted(best, key=lambda point: point[0]))


def _of_points(name: str, points: Sequence[tuple[int, Estimate, Measurement]]) -> Sharing:
    (smallest, first, alone), (largest, last, _) = points[0], points[-1]
    one = as_prediction(first, len(alone.records)).scaled(1 / smallest, first.unit)
    runs = tuple(dict.fromkeys(run for _, _, each in points for run in each.runs))
    joules = _joules(alone)
    if largest == smallest:
        return Sharing(name, one, smallest, largest, joules_per_voxel=joules, runs=runs)
    doublings = math.log2(largest / smallest)
    each = last.scaled(1 / largest, last.unit)
    mean = first.scaled(1 / smallest, first.unit)
    ratios = (each.value / one.value, *(worst_ratio(each, mean) or (each.value / one.value,) * 2))
    kept, low, high = (min(1.0, ratio) ** (1 / doublings) for ratio in ratios)
    return Sharing(name, one, smallest, largest, kept, low, high, True, joules, runs)


def _joules(each: Measurement) -> Estimate | None:
    """From J/megavoxel, where a meter was read."""
    from rigdyno.schema.energy import EnergyFigures
    from rigdyno.units import energy_unit

    if not isinstance(each.energy, EnergyFigures) or not isinstance(each.energy.per_item, Estimate):
        return None
    return each.energy.per_item.scaled(1 / energy_unit("voxel")[1], "J")
