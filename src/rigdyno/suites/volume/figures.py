"""The figures of the volume suite: voxels per second next to published GPUs, efficiency by devices, time by phase."""

from __future__ import annotations

from statistics import fmean

from rigdyno.reference.volumes import load_unet3d
from rigdyno.report.sections import find_verdict, phase_title
from rigdyno.schema.estimate import Number
from rigdyno.schema.figure import Axis, Figure, Panel, Series, datum, datum_of
from rigdyno.schema.measured import Measurement
from rigdyno.schema.samples import PHASES
from rigdyno.schema.view import RatioEntry
from rigdyno.suites.volume import rows
from rigdyno.suites.volume.rows import VolumeResults
from rigdyno.suites.volume.tables import SCHEMES


def make_figures(results: VolumeResults) -> tuple[Figure, ...]:
    drawn = (_inference_figure(results), _efficiency_figure(results), _phase_figure(results))
    return tuple(figure for figure in drawn if figure is not None)


def _inference_figure(results: VolumeResults) -> Figure | None:
    """Draw the voxels written per second; of the published rates, only the share that was really written."""
    if not results.inferred:
        return None
    own = tuple(
        datum_of(_inference_name(each), each.throughput(), verdict=find_verdict(each)) for each in results.inferred
    )
    published = tuple(
        datum(each.system, each.written_per_s) for each in load_unet3d() if each.written_per_s is not None
    )
    series = (
        Series(name="this machine", role="measured", data=own),
        Series(name="GPUs, as published", role="published", data=published, source=load_unet3d()[0].source),
    )
    return Figure(
        key="inference",
        kind="leaderboard",
        title="Inference: voxels written a second",
        x=Axis(quantity="system", along="category"),
        panels=(Panel(y=Axis(quantity="written", unit="voxel/s"), series=series),),
        caption="The published 3D U-Net; of the published rates the share that was written",
        counted="blocks or processes",
    )


def _inference_name(each: Measurement) -> str:
    several = "" if each.spec.world_size == 1 else f", {each.spec.world_size} {rows.devices_word(each)}"
    return f"this machine, blocks {SCHEMES.get(rows.scheme(each), rows.scheme(each))}{several}"


def _efficiency_figure(results: VolumeResults) -> Figure | None:
    if len(results.trained) < 2:
        return None
    own = []
    for each in results.trained:
        share = rows.efficiency_entry(each, results.trained)
        entry = Number(value=1.0) if share is None else share
        if isinstance(entry, RatioEntry):
            entry = Number(value=entry.value, low=entry.low, high=entry.high)
        own.append(datum_of(each.spec.world_size, entry, verdict=find_verdict(each)))
    series = [Series(name="this machine", role="measured", data=tuple(own))]
    for system in dict.fromkeys(each.system for each in load_unet3d() if each.devices > 1):
        mine = [each for each in load_unet3d() if each.system == system]
        data = tuple(datum(each.devices, each.efficiency(load_unet3d())) for each in mine)
        series.append(Series(name=system, role="published", data=data, source=mine[0].source))
    return Figure(
        key="efficiency",
        kind="curve",
        title="Training: patches of all devices, against as many times those of one",
        x=Axis(quantity=rows.devices_word(results.trained[0]), along="devices"),
        panels=(Panel(y=Axis(quantity="efficiency"), series=tuple(series)),),
        caption="Batch 1 on each device; intervals take the worst of both sizes",
    )


def _phase_figure(results: VolumeResults) -> Figure | None:
    timed = [(_training_name(each), each.phases) for each in results.training if each.phases is not None]
    if not timed:
        return None
    series = []
    for name in PHASES:
        found = [(case, fmean(rank.get(name, 0.0) for rank in phases.by_rank.values())) for case, phases in timed]
        if any(seconds > 0 for _, seconds in found):
            data = tuple(datum(*each) for each in found)
            series.append(Series(name=phase_title(name), role="measured", data=data))
    return Figure(
        key="where-time-goes",
        kind="stack",
        title="Where the time of a training step goes",
        x=Axis(quantity="network and devices", along="category"),
        panels=(Panel(y=Axis(quantity="time of a step", unit="s"), series=tuple(series)),),
        caption="Means over all steps and ranks; data: waiting for patches",
    )


def _training_name(each: Measurement) -> str:
    return f"{rows.network(each)}, {each.spec.world_size} {rows.devices_word(each)}"
