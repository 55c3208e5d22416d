"""The figures of the volume suite: voxels a second beside published GPUs, efficiency by devices, where time goes."""

from __future__ import annotations

from statistics import fmean

from rigdyno.reference.volumes import unet3d
from rigdyno.schema.estimate import Missing, Number
from rigdyno.schema.figure import Axis, Figure, Panel, Series, datum, datum_of
from rigdyno.schema.measured import Measurement
from rigdyno.schema.samples import PHASES
from rigdyno.schema.view import Share
from rigdyno.suites import _volume_rows as rows
from rigdyno.suites._scaling_tables import phase_title
from rigdyno.suites._soak import verdict_of
from rigdyno.suites._volume_rows import Shown
from rigdyno.suites._volume_tables import SCHEMES


def all_of(shown: Shown) -> tuple[Figure, ...]:
    drawn = (_written(shown), _efficiencies(shown), _spent(shown))
    return tuple(figure for figure in drawn if figure is not None)


def _written(shown: Shown) -> Figure | None:
    """The published rows are what they wrote, not what they printed."""
    if not shown.inferred:
        return None
    own = tuple(datum_of(_name(each), each.throughput(), verdict=verdict_of(each)) for each in shown.inferred)
    published = tuple(datum(each.system, each.written_per_s) for each in unet3d() if each.written_per_s is not None)
    series = (
        Series(name="this rig", role="measured", data=own),
        Series(name="GPUs, as published", role="published", data=published, source=unet3d()[0].source),
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


def _name(each: Measurement) -> str:
    several = "" if each.spec.world_size == 1 else f", {each.spec.world_size} {rows.devices_word(each)}"
    return f"this rig, blocks {SCHEMES.get(rows.scheme(each), rows.scheme(each))}{several}"


def _efficiencies(shown: Shown) -> Figure | None:
    if len(shown.trained) < 2:
        return None
    own = []
    for each in shown.trained:
        share = rows.efficiency(each, shown.trained)
        entry = Number(value=1.0) if share is None else share
        if isinstance(entry, Share):
            entry = Number(value=entry.value, low=entry.low, high=entry.high)
        found = entry if isinstance(entry, Number | Missing) else Missing(reason=each.why_missing())
        own.append(datum_of(each.spec.world_size, found, verdict=verdict_of(each)))
    series = [Series(name="this rig", role="measured", data=tuple(own))]
    for system in dict.fromkeys(each.system for each in unet3d() if each.devices > 1):
        mine = [each for each in unet3d() if each.system == system]
        data = tuple(datum(each.devices, each.efficiency(unet3d())) for each in mine)
        series.append(Series(name=system, role="published", data=data, source=mine[0].source))
    return Figure(
        key="efficiency",
        kind="curve",
        title="Training: patches of all devices, against as many times those of one",
        x=Axis(quantity=rows.devices_word(shown.trained[0]), along="devices"),
        panels=(Panel(y=Axis(quantity="efficiency"), series=tuple(series)),),
        caption="Batch 1 on each device; intervals take the worst of both sizes",
    )


def _spent(shown: Shown) -> Figure | None:
    timed = [(_case(each), each.phases) for each in shown.training if each.phases is not None]
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


def _case(each: Measurement) -> str:
    return f"{rows.network(each)}, {each.spec.world_size} {rows.devices_word(each)}"
