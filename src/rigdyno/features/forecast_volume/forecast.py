"""Forecast the time of a volume on any number of devices, from a stored run of this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rigdyno.analyse.extrapolation import as_prediction
from rigdyno.analyse.scaling import ratio
from rigdyno.base.errors import BadValue, MissingExtra, RigdynoError, UsageError
from rigdyno.reference.volumes import FamousVolume, load_famous_volumes
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.layout import HEAD
from rigdyno.schema.measured import Measurement
from rigdyno.store.campaign import CampaignFolder, find_run, is_campaign, stored_folders
from rigdyno.store.folder import RunFolder
from rigdyno.store.location import root_of, utf8

if TYPE_CHECKING:
    from rigdyno.api import Run
    from rigdyno.schema.view import View

RunsAt = Callable[[Path], Sequence[tuple[str, "Run"]]]  # the runs at a path, each with its suite's name

MOST_VOXELS = 1e21

WORKLOADS = ("unet3d_inference", "infer")


@dataclass(frozen=True)
class Sharing:
    """Voxels per second by number of devices.

    Blocks are independent, so devices only compete for memory and disks. Every doubling is assumed to cost the same
    share.
    """

    name: str
    one: Estimate  # rate per device at the smallest measured number
    smallest: int = 1
    largest: int = 1  # measured number
    kept: float = 1.0  # share of the rate of each device that remains when their number doubles
    kept_low: float = 1.0
    kept_high: float = 1.0
    is_measured: bool = False  # with several devices on one volume
    joules_per_voxel: Estimate | None = None  # at the smallest number
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


def volume_view(
    arguments: Sequence[str],
    voxels: Sequence[float],
    devices: Sequence[int],
    price_per_hour: float | None,
    watts: float | None,
    out: str | None,
    runs_at: RunsAt,
) -> View:
    from rigdyno.features.forecast_volume.report import VolumeForecast, volume_forecast_view

    for flag, value in (("--price-per-hour", price_per_hour), ("--watts", watts)):
        if value is not None and not 0 < value < math.inf:
            raise BadValue(f"{flag} must be above zero, not {value:g}")
    paths = [find_run(root_of(out), name) for name in arguments]
    runs = [path for path in paths if (path / HEAD).is_file() or is_campaign(path)]
    others = [name for name, path in zip(arguments, paths, strict=True) if path not in runs]
    own, remarks = _find_sharing(runs, out, runs_at)
    asked = [*(_given_volume(number) for number in voxels), *map(_stored_volume, others)]
    forecast = VolumeForecast(
        volumes=asked or load_famous_volumes(),
        own=own,
        devices=devices or [1],
        price_per_hour=price_per_hour,
        watts=watts,
    )
    return volume_forecast_view(forecast, remarks)


def _given_volume(voxels: float) -> FamousVolume:
    if not 1 <= voxels < MOST_VOXELS:
        raise BadValue(f"--voxels must be at least 1 and below {MOST_VOXELS:g}, not {voxels:g}")
    return FamousVolume(f"{voxels:.4g} voxels", voxels, "", "stated", "", "as given")


def _stored_volume(location: str) -> FamousVolume:
    """Describe a stored volume by its metadata, without reading its voxels."""
    from rigdyno.engines.blockwise.errors import BlockwiseError
    from rigdyno.engines.blockwise.volumes.messages import DTYPES, LABEL_DTYPES
    from rigdyno.engines.blockwise.volumes.reading import open_volume

    try:
        volume = open_volume(location, dtypes=tuple({*DTYPES, *LABEL_DTYPES}))
    except (BlockwiseError, MissingExtra) as error:
        raise UsageError(f"no run, and no volume: {error}") from error
    shape = " x ".join(map(str, volume.shape))
    name = utf8(Path(location.rstrip("/")).name or location)
    return FamousVolume(name, float(math.prod(volume.shape)), _nanometres(volume), "stated", "", shape)


def _nanometres(volume: object) -> str:
    size = getattr(volume, "voxel_size", None)
    factors = {"nanometer": 1.0, "micrometer": 1e3, "millimeter": 1e6}
    if size is None or size.unit not in factors:
        return ""
    return "x".join(f"{edge * factors[size.unit]:g}" for edge in reversed(size.zyx))


def _find_sharing(runs: Sequence[Path], out: str | None, runs_at: RunsAt) -> tuple[Sharing | None, list[str]]:
    """Read the named runs, else the newest one that has a rate of inference."""
    if runs:
        return _read_sharing(runs, runs_at), []
    folders = stored_folders(root_of(out))
    for folder in reversed(folders):
        if isinstance(folder, CampaignFolder) or _has_inference(folder):
            try:
                return _read_sharing([folder.path], runs_at), []
            except RigdynoError:  # it failed, or has other suites: try an older one
                continue
    return None, ["this machine was not measured: `rigdyno run volume` takes about 4 minutes"]


def _has_inference(folder: RunFolder) -> bool:
    try:
        plan = folder.head().plan
    except RigdynoError:
        return False
    return any(cell.spec.workload in WORKLOADS for cell in plan.cells)


def _read_sharing(paths: Sequence[Path], runs_at: RunsAt) -> Sharing:
    found = [run for path in paths for _, run in runs_at(path)]
    name = ", ".join(utf8(path.name) for path in paths)
    return sharing_of(name, [each for run in found for each in run.measurements])


def sharing_of(name: str, measurements: Sequence[Measurement]) -> Sharing:
    """Return the sharing of the configuration that writes most voxels per second."""
    groups: dict[str, list[tuple[int, Estimate, Measurement]]] = {}
    for each in measurements:
        rate = each.throughput()
        if each.spec.workload in WORKLOADS and isinstance(rate, Estimate) and rate.ends[0] > 0:
            key = repr((each.spec.workload, sorted(each.spec.resolved.items()), each.spec.threads))
            groups.setdefault(key, []).append((each.spec.world_size, rate, each))
    if not groups:
        raise UsageError(f"{name} has no rate of inference; run `rigdyno run volume`, or `rigdyno infer` on your own")
    best = max(groups.values(), key=lambda found: max(rate.value for _, rate, _ in found))
    return _fit_sharing(name, sorted(best, key=lambda point: point[0]))


def _fit_sharing(name: str, points: Sequence[tuple[int, Estimate, Measurement]]) -> Sharing:
    (smallest, first, alone), (largest, last, _) = points[0], points[-1]
    one = as_prediction(first, len(alone.records)).scaled(1 / smallest, first.unit)
    runs = tuple(dict.fromkeys(run for _, _, each in points for run in each.runs))
    joules = _joules_per_voxel(alone)
    if largest == smallest:
        return Sharing(name, one, smallest, largest, joules_per_voxel=joules, runs=runs)
    doublings = math.log2(largest / smallest)
    each = last.scaled(1 / largest, last.unit)
    mean = first.scaled(1 / smallest, first.unit)
    ratio_to_mean = ratio(each, mean)
    kept, low, high = (min(1.0, end) ** (1 / doublings) for end in (ratio_to_mean.value, *ratio_to_mean.ends))
    return Sharing(name, one, smallest, largest, kept, low, high, True, joules, runs)


def _joules_per_voxel(each: Measurement) -> Estimate | None:
    """Return the energy per voxel; None if no meter was read."""
    from rigdyno.base.units import energy_unit
    from rigdyno.schema.measured import EnergyFigures

    if not isinstance(each.energy, EnergyFigures) or not isinstance(each.energy.per_item, Estimate):
        return None
    return each.energy.per_item.scaled(1 / energy_unit("voxel")[1], "J")
