"""The sentences of the volume suite: place among published GPUs, time, effect of more devices, waiting for data."""

from __future__ import annotations

from rigdyno.base.units import show_percent, show_scaled, show_seconds
from rigdyno.reference.volumes import ITERATIONS, PublishedUnet, compute_written_share, load_unet3d
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.view import Headline, Neighbour, Published, RatioEntry
from rigdyno.suites.volume import rows
from rigdyno.suites.volume.rows import VolumeResults

WAITS = 0.05  # share of a step from which advice is given


def headline(results: VolumeResults) -> Headline | None:
    best = results.best
    if best is None:
        return None
    rate = best.throughput()
    place, neighbours = ("the published rates have no row beside it", ()) if isinstance(rate, Missing) else _place(rate)
    count = best.spec.world_size
    on = "one device" if count == 1 else f"{count} {rows.devices_word(best)}"
    return Headline(
        what=f"3D U-Net over a volume, {on}", figure=rate, status=best.status, place=place, neighbours=neighbours
    )


def _place(rate: Estimate) -> tuple[str, tuple[Neighbour, ...]]:
    """Return the rank among the published GPUs by voxels written, and the neighbours."""
    ranked = sorted(_published_rates(), key=lambda pair: -pair[1])
    above = [pair for pair in ranked if pair[1] >= rate.value]
    below = [pair for pair in ranked if pair[1] < rate.value]
    neighbours = [*above[-1:], *below[:1]]
    place = f"{len(above) + 1} of {len(ranked) + 1} by voxels written"
    return place, tuple(
        Neighbour(name=row.system, figure=Published(value=value, unit="voxel/s", source=row.source))
        for row, value in neighbours
    )


def _published_rates() -> list[tuple[PublishedUnet, float]]:
    return [(row, value) for row in load_unet3d() if (value := row.written_per_s) is not None]


def standing(results: VolumeResults) -> tuple[str, ...]:
    best = results.best
    rate = None if best is None else best.throughput()
    if not isinstance(rate, Estimate) or rate.value <= 0:
        return ()
    quickest, written = max(_published_rates(), key=lambda pair: pair[1])
    times = written / rate.value
    relation = f"{times:.3g} times as many as" if times >= 1 else f"{1 / times:.3g} times fewer than"
    return (
        f"The published {quickest.device} wrote {show_scaled(written, 'voxel/s')}, {relation} this machine: "
        f"{show_percent(compute_written_share())} of the printed "
        f"{show_scaled(quickest.voxels_per_s or 0.0, 'voxel/s')}.",
    )


def closing(results: VolumeResults) -> tuple[str, ...]:
    said = (_time_sentence(results), _scaling_sentence(results), _data_sentence(results))
    return tuple(words for words in said if words is not None)


def _time_sentence(results: VolumeResults) -> str | None:
    """Return the time of both published jobs on this machine."""
    best = results.best
    seconds = None if best is None else results.seconds(best)
    trained = next((results.seconds(each) for each in results.trained if each.kinds), None)
    parts = []
    if isinstance(trained, Estimate):
        patch = rows.option(results.trained[0], "patch")
        parts.append(f"{ITERATIONS} iterations on patches of {patch} take {_format_time(trained)}")
    if isinstance(seconds, Estimate):
        parts.append(f"1.9 gigavoxel of inference {_format_time(seconds)}")
    if not parts:
        return None
    more = " `rigdyno forecast-volume` says how long the famous volumes would take." if len(parts) == 2 else ""
    return f"{' and '.join(parts)}.{more}"


def _format_time(seconds: Estimate) -> str:
    if seconds.interval is None:
        return show_seconds(seconds.value)
    low, high = (show_seconds(end) for end in seconds.interval)
    return f"{show_seconds(seconds.value)} ({low} to {high})" if low != high else show_seconds(seconds.value)


def _scaling_sentence(results: VolumeResults) -> str | None:
    """Compare the time of an iteration with its work: the published times hide that more devices do more."""
    largest = results.trained[-1] if results.trained else None
    if largest is None or largest.spec.world_size == 1:
        return None
    share, first = rows.efficiency_entry(largest, results.trained), results.seconds(results.trained[0])
    several = results.seconds(largest)
    if not isinstance(share, RatioEntry) or not isinstance(first, Estimate) or not isinstance(several, Estimate):
        return None
    count, word = largest.spec.world_size, rows.devices_word(largest)
    times = several.value / first.value
    published = next(row for row in load_unet3d() if row.system == "Cluster:1080Ti" and row.devices == 4)
    theirs = published.efficiency(load_unet3d()) or 0.0
    return (
        f"{count} {word}: an iteration takes {times:.2f} times as long as on one and does {count} patches, an "
        f"efficiency of {show_percent(share.value)}; four published 1080 Ti did {published.patches_per_minute:.0f} "
        f"patch/min, {show_percent(theirs)}."
    )


def _data_sentence(results: VolumeResults) -> str | None:
    found = [(each, share) for each in results.training if isinstance(share := rows.waiting_share(each), RatioEntry)]
    if not found:
        return None
    each, most = max(found, key=lambda pair: pair[1].value)
    words = f"Waiting for data takes {show_percent(most.value)} of a step at the most"
    if most.value <= WAITS:
        return f"{words}: the device is busy."
    return (
        f"{words} ({rows.network(each)}, {each.spec.world_size} {rows.devices_word(each)}); try more `--set workers=N`."
    )
