"""The volume suite: a 3D U-Net trained and run over 1.9 gigavoxel, on one device and on several.

This module chooses the cells; rates and times, tables, figures and sentences have a file each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.base.errors import UsageError
from rigdyno.contracts import Machine, Suite, Wanted
from rigdyno.plan.request import Request
from rigdyno.plan.resources import threads_of
from rigdyno.reference.volumes import ITERATIONS, PATCH, WRITES
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Budget, RunSpec, Value
from rigdyno.schema.view import Presentation
from rigdyno.suites.volume import figures, tables, words
from rigdyno.suites.volume.rows import INFERENCE, TRAINING, collect_results
from rigdyno.workloads.networks import unet
from rigdyno.workloads.unet3d_inference import VOLUME

# Steps of 1 to 2 s on a current core. The network is the published one without its coarsest level, which has 25 times
# the parameters of the others: with a small patch, optimizer and gradients would be most of a step.
SMALL_TRAINING: dict[str, Value] = {"features": "12,60,300", "patch": "8x54x54"}

SMALL_ISOTROPIC: dict[str, Value] = {"network": "isotropic", "patch": "16x48x48"}

# A fifth of the published blocks along z and an eighth along y and x; the halo is the same share of each.
SMALL_PUBLISHED: dict[str, Value] = {"block": "11x69x69", "halo": "1x6x6"}

SMALL_OWN: dict[str, Value] = {"block": "10x108x108", "halo": "1x6x6"}

FULL_OWN: dict[str, Value] = {"block": "50x513x513"}

ISOTROPIC_PATCH: unet.Zyx = (40, 432, 432)

COUNTS = (1, 2, 4)  # numbers of devices, as published

# Processes of the same code differ by more than their steps show, by an amount that depends on the machine. Three
# processes show it, one long process doesn't. Two are worse than one: their interval is 13 times their difference.
SECONDS, REPEATS, MOST_REPEATS = 5.0, 3, 8

LONG_SECONDS = 14.0  # for a row with a single process


@dataclass(frozen=True, kw_only=True)
class VolumeSuite(Suite):
    """3D U-Net training, and inference of 1.9 gigavoxel"""

    def cells(self, request: Request, machine: Machine) -> Sequence[Wanted]:
        if request.soak_seconds is not None:
            raise UsageError("the volume suite has no soak; try `rigdyno run unet3d --soak 10m`", key="soak")
        if request.nodes > 1:
            raise UsageError("the volume suite runs on one node; try `rigdyno run unet3d --hosts A,B`", key="nodes")
        if request.full and request.budget_seconds is not None:
            raise UsageError("the published lengths take what they take; leave out --budget or --full", key="budget")
        return [
            _set_repeats(request, spec)
            for spec in (*_training_specs(request, machine), *_inference_specs(request, machine))
        ]

    def present(self, measurements: Sequence[Measurement]) -> Presentation:
        results = collect_results(measurements)
        return Presentation(
            title="volume: a 3D U-Net, trained and run over 1.9 gigavoxel",
            tables=tuple(table for table in tables.make_tables(results) if table.rows),
            figures=figures.make_figures(results),
            headline=words.headline(results),
            standing=words.standing(results),
            closing=words.closing(results),
        )


def _set_repeats(request: Request, spec: RunSpec) -> Wanted:
    """Set the number of processes: several for the rows of one device that are extrapolated to hours, else one."""
    if request.full:
        return Wanted(spec, request.repeat or 1, request.repeat or 1)
    usual = spec.options.get("network") != "isotropic" and spec.options.get("scheme") != "published"
    repeated = usual and spec.world_size == 1 and not request.cheap
    least = request.repeat or (REPEATS if repeated else 1)
    most = max(least, MOST_REPEATS if repeated or request.cheap else 1)
    return Wanted(replace(spec, budget=Budget(seconds=SECONDS)) if least > 1 else spec, least, most)


def _counts(request: Request, machine: Machine) -> list[int]:
    most = request.ranks or machine.most_ranks
    return sorted({*(count for count in COUNTS if count <= most), most})


def _training_specs(request: Request, machine: Machine) -> list[RunSpec]:
    """Return the published network on every number of devices, and the isotropic one on one device."""
    full, on_cpu = request.full, machine.device == "cpu"
    published = {"patch": unet.format_shape(PATCH)} if full or not on_cpu else SMALL_TRAINING
    isotropic = (
        {"network": "isotropic", "patch": unet.format_shape(ISOTROPIC_PATCH)} if full or not on_cpu else SMALL_ISOTROPIC
    )
    specs = [_spec(request, machine, TRAINING, dict(published), count) for count in _counts(request, machine)]
    return specs if request.cheap else [*specs, _spec(request, machine, TRAINING, dict(isotropic), 1)]


def _inference_specs(request: Request, machine: Machine) -> list[RunSpec]:
    full = request.full or machine.device != "cpu"
    published: dict[str, Value] = {"scheme": "published", **({} if full else SMALL_PUBLISHED)}
    own: dict[str, Value] = {"scheme": "own", **(FULL_OWN if full else SMALL_OWN)}
    counts = [1] if request.cheap else _counts(request, machine)
    return [
        _spec(request, machine, INFERENCE, published, 1),
        *(_spec(request, machine, INFERENCE, own, count) for count in counts),
    ]


def _spec(request: Request, machine: Machine, workload: str, options: dict[str, Value], devices: int) -> RunSpec:
    arrangement = request.arrangement or "ddp" if devices > 1 else "single"
    return RunSpec(
        workload=workload,
        options=options,
        arrangement=arrangement,
        launcher=catalogue.load("arrangement", arrangement).launcher,
        world_size=devices,
        device=machine.device,
        threads=threads_of(request, machine, request.ranks or machine.most_ranks),
        pinned=machine.device == "cpu",
        budget=_budget(request, machine, workload, options, devices),
    )


def _budget(request: Request, machine: Machine, workload: str, options: dict[str, Value], devices: int) -> Budget:
    """Return the budget of a single process; with --full, the whole job."""
    if not request.full:
        return Budget(seconds=LONG_SECONDS)
    steps = ITERATIONS if workload == TRAINING else -(-_count_blocks(options) // devices)
    made = catalogue.load("workload", workload)(**options)
    return Budget(seconds=steps * (made.step_seconds(machine.device) or 1.0), job_steps=steps)


def _count_blocks(options: dict[str, Value]) -> int:
    """Return the number of blocks in the whole volume."""
    block = unet.parse_numbers("block", str(options.get("block", unet.format_shape(WRITES))), 3)
    counts = [-(-length // edge) for length, edge in zip(VOLUME, block, strict=True)]
    return counts[0] * counts[1] * counts[2]
