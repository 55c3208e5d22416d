"""The volume suite: a 3D U-Net trained and run over 1.9 gigavoxel, on one device and on several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.contracts import SuiteRequest, Wanted
from rigdyno.errors import UsageError
from rigdyno.reference.volumes import ITERATIONS, PATCH, WRITES
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Budget, RunSpec, Value
from rigdyno.schema.view import Presentation
from rigdyno.suites import _volume_figures as figures
from rigdyno.suites import _volume_tables as tables
from rigdyno.suites import _volume_words as words
from rigdyno.suites._volume_rows import INFERENCE, TRAINING, shown_of
from rigdyno.suites.scaling import threads_of
from rigdyno.workloads import _unet
from rigdyno.workloads.unet3d_inference import VOLUME

# Steps of one to two seconds on a core of today. The network of the published one without its coarsest level: that has
# 25 times the parameters of the others, and would make optimizer and gradients most of a step with a small patch.
SMALL_TRAINING: dict[str, Value] = {"features": "12,60,300", "patch": "8x54x54"}
SMALL_ISOTROPIC: dict[str, Value] = {"network": "isotropic", "patch": "16x48x48"}
# A fifth of the published blocks along z, an eighth along y and x: the same share of each is halo.
SMALL_PUBLISHED: dict[str, Value] = {"block": "11x69x69", "halo": "1x6x6"}
SMALL_OWN: dict[str, Value] = {"block": "10x108x108", "halo": "1x6x6"}
FULL_OWN: dict[str, Value] = {"block": "50x513x513"}
ISOTROPIC_PATCH: _unet.Zyx = (40, 432, 432)
COUNTS = (1, 2, 4)  # of devices, as published
# Processes of the same code differ by more than their steps tell, and by how much differs from rig to rig: three of a
# row show it, where a long one can't. Two would be worse than one: their interval is thirteen times their difference.
SECONDS, REPEATS, MOST_REPEATS = 5.0, 3, 8
LONG_SECONDS = 14.0  # of a row with a single process


@dataclass(frozen=True, kw_only=True)
class Volume:
    """3D U-Net training, and inference of 1.9 gigavoxel"""

    excerpt: ClassVar[bool] = False

    def cells(self, request: SuiteRequest) -> Sequence[Wanted]:
        if request.soak_seconds is not None:
            raise UsageError("the volume suite has no soak; try `rigdyno run unet3d --soak 10m`", key="soak")
        if request.nodes > 1:
            raise UsageError("the volume suite runs on one node; try `rigdyno run unet3d --hosts A,B`", key="nodes")
        if request.full and request.budget_seconds is not None:
            raise UsageError("the published lengths take what they take; leave out --budget or --full", key="budget")
        return [_wanted(request, spec) for spec in (*_trained(request), *_inferred(request))]

    def present(self, measurements: Sequence[Measurement]) -> Presentation:
        shown = shown_of(measurements)
        return Presentation(
            title="volume: a 3D U-Net, trained and run over 1.9 gigavoxel",
            tables=tuple(table for table in tables.all_of(shown) if table.rows),
            figures=figures.all_of(shown),
            headline=words.headline(shown),
            standing=words.standing(shown),
            closing=words.closing(shown),
        )


def _wanted(request: SuiteRequest, spec: RunSpec) -> Wanted:
    """Of what is extrapolated to hours, on one device, several processes; of the others one each."""
    if request.full:
        return Wanted(spec, request.repeat or 1, request.repeat or 1)
    usual = spec.options.get("network") != "isotropic" and spec.options.get("scheme") != "published"
    repeated = usual and spec.world_size == 1 and not request.cheap
    least = request.repeat or (REPEATS if repeated else 1)
    most = max(least, MOST_REPEATS if repeated or request.cheap else 1)
    return Wanted(replace(spec, budget=Budget(seconds=SECONDS)) if least > 1 else spec, least, most)


def _counts(request: SuiteRequest) -> list[int]:
    most = request.ranks or request.most_ranks
    return sorted({*(count for count in COUNTS if count <= most), most})


def _trained(request: SuiteRequest) -> list[RunSpec]:
    """The published network on every number of devices, the other one on the first."""
    full, on_cpu = request.full, request.device == "cpu"
    published = {"patch": _unet.by(PATCH)} if full or not on_cpu else SMALL_TRAINING
    isotropic = {"network": "isotropic", "patch": _unet.by(ISOTROPIC_PATCH)} if full or not on_cpu else SMALL_ISOTROPIC
    specs = [_spec(request, TRAINING, dict(published), count) for count in _counts(request)]
    return specs if request.cheap else [*specs, _spec(request, TRAINING, dict(isotropic), 1)]


def _inferred(request: SuiteRequest) -> list[RunSpec]:
    full = request.full or request.device != "cpu"
    published: dict[str, Value] = {"scheme": "published", **({} if full else SMALL_PUBLISHED)}
    own: dict[str, Value] = {"scheme": "own", **(FULL_OWN if full else SMALL_OWN)}
    counts = [1] if request.cheap else _counts(request)
    return [
        _spec(request, INFERENCE, published, 1),
        *(_spec(request, INFERENCE, own, count) for count in counts),
    ]


def _spec(request: SuiteRequest, workload: str, options: dict[str, Value], devices: int) -> RunSpec:
    arrangement = request.arrangement or "ddp" if devices > 1 else "single"
    return RunSpec(
        workload=workload,
        options=options,
        arrangement=arrangement,
        launcher=catalogue.load("arrangement", arrangement).launcher,
        world_size=devices,
        device=request.device,
        threads=threads_of(request, request.ranks or request.most_ranks),
        pinned=request.device == "cpu",
        budget=_budget(request, workload, options, devices),
    )


def _budget(request: SuiteRequest, workload: str, options: dict[str, Value], devices: int) -> Budget:
    """Of a single process; with --full the whole job."""
    if not request.full:
        return Budget(seconds=LONG_SECONDS)
    steps = ITERATIONS if workload == TRAINING else -(-_blocks(options) // devices)
    made = catalogue.load("workload", workload)(**options)
    return Budget(seconds=steps * (made.step_seconds(request.device) or 1.0), job_steps=steps)


def _blocks(options: dict[str, Value]) -> int:
    """Of the whole volume."""
    block = _unet.numbers("block", str(options.get("block", _unet.by(WRITES))), 3)
    counts = [-(-length // edge) for length, edge in zip(VOLUME, block, strict=True)]
    return counts[0] * counts[1] * counts[2]
