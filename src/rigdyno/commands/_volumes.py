"""`rigdyno forecast volume`: which volumes, from which run of this rig, on how many devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rigdyno.commands._shared import root_of, suites_at
from rigdyno.errors import BadValue, RigdynoError, UsageError
from rigdyno.reference.volumes import FamousVolume, famous_volumes
from rigdyno.schema.layout import HEAD
from rigdyno.store.campaign import CampaignFolder, is_campaign, located, stored_folders
from rigdyno.store.folder import RunFolder
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.analyse.volume_forecast import Sharing
    from rigdyno.schema.view import View

MOST_VOXELS = 1e21
WORKLOADS = ("unet3d_inference", "infer")


def volume_view(
    arguments: Sequence[str],
    voxels: Sequence[float],
    devices: Sequence[int],
    price_per_hour: float | None,
    watts: float | None,
    out: str | None,
) -> View:
    from rigdyno.report.volume_forecast import VolumeForecast, volume_forecast_view

    for flag, value in (("--price-per-hour", price_per_hour), ("--watts", watts)):
        if value is not None and not 0 < value < math.inf:
            raise BadValue(f"{flag} must be above zero, not {value:g}")
    paths = [located(root_of(out), name) for name in arguments]
    runs = [path for path in paths if (path / HEAD).is_file() or is_campaign(path)]
    others = [name for name, path in zip(arguments, paths, strict=True) if path not in runs]
    own, remarks = _measured(runs, out)
    asked = [*(_given(number) for number in voxels), *map(_stored, others)]
    forecast = VolumeForecast(
        volumes=asked or famous_volumes(),
        own=own,
        devices=devices or [1],
        price_per_hour=price_per_hour,
        watts=watts,
    )
    return volume_forecast_view(forecast, remarks)


def _given(voxels: float) -> FamousVolume:
    if not 1 <= voxels < MOST_VOXELS:
        raise BadValue(f"--voxels must be at least 1 and below {MOST_VOXELS:g}, not {voxels:g}")
    return FamousVolume(f"{voxels:.4g} voxels", voxels, "", "stated", "", "as given")


def _stored(location: str) -> FamousVolume:
    """By its metadata: nothing of it is read."""
    from rigdyno.engines.blockwise.errors import BlockwiseError
    from rigdyno.engines.blockwise.volumes._messages import DTYPES, LABEL_DTYPES
    from rigdyno.engines.blockwise.volumes.opening import open_volume

    try:
        volume = open_volume(location, dtypes=tuple({*DTYPES, *LABEL_DTYPES}))
    except BlockwiseError as error:
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


def _measured(runs: Sequence[Path], out: str | None) -> tuple[Sharing | None, list[str]]:
    """Of the runs that were named; else of the newest that has a rate of inference."""
    if runs:
        return _sharing(runs), []
    folders = stored_folders(root_of(out))
    for folder in reversed(folders):
        if isinstance(folder, CampaignFolder) or _infers(folder):
            try:
                return _sharing([folder.path]), []
            except RigdynoError:  # it failed, or has other suites: an older one may do
                continue
    return None, ["this rig was not measured: `rigdyno run volume` takes about 4 minutes"]


def _infers(folder: RunFolder) -> bool:
    try:
        plan = folder.head().plan
    except RigdynoError:
        return False
    return any(cell.spec.workload in WORKLOADS for cell in plan.cells)


def _sharing(paths: Sequence[Path]) -> Sharing:
    from rigdyno.analyse.volume_forecast import sharing_of

    found = [run for path in paths for _, run in suites_at(path)]
    name = ", ".join(utf8(path.name) for path in paths)
    return sharing_of(name, [each for run in found for each in run.measurements])
