"""What the volume suite says: where this rig stands, how long it takes, what more devices give, what steps wait for."""

from __future__ import annotations

from rigdyno.reference.volumes import ITERATIONS, PublishedUnet, unet3d, written_share
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.view import Headline, Neighbour, Published, Share
from rigdyno.suites import _volume_rows as rows
from rigdyno.suites._volume_rows import Shown
from rigdyno.units import show_percent, show_scaled, show_seconds

WAITS = 0.05  # of a step: more is worth a word of advice


def headline(shown: Shown) -> Headline | None:
    best = shown.best
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
    """By what was written."""
    ranked = sorted(_written(), key=lambda pair: -pair[1])
    above = [pair for pair in ranked if pair[1] >= rate.value]
    below = [pair for pair in ranked if pair[1] < rate.value]
    neighbours = [*above[-1:], *below[:1]]
    place = f"{len(above) + 1} of {len(ranked) + 1} by voxels written"
    return place, tuple(
        Neighbour(name=row.system, figure=Published(value=value, unit="voxel/s", source=row.source))
        for row, value in neighbours
    )


def _written() -> list[tuple[PublishedUnet, float]]:
    return [(row, value) for row in unet3d() if (value := row.written_per_s) is not None]


def standing(shown: Shown) -> tuple[str, ...]:
    best = shown.best
    rate = None if best is None else best.throughput()
    if not isinstance(rate, Estimate) or rate.value <= 0:
        return ()
    quickest, written = max(_written(), key=lambda pair: pair[1])
    times = written / rate.value
    relation = f"{times:.3g} times as many as" if times >= 1 else f"{1 / times:.3g} times fewer than"
    return (
        f"The published {quickest.device} wrote {show_scaled(written, 'voxel/s')}, {relation} this rig: "
        f"{show_percent(written_share())} of the printed {show_scaled(quickest.voxels_per_s or 0.0, 'voxel/s')}.",
    )


def closing(shown: Shown) -> tuple[str, ...]:
    said = (_answer(shown), _slow_down(shown), _data(shown))
    return tuple(words for words in said if words is not None)


def _answer(shown: Shown) -> str | None:
    """How long both of the published jobs take here."""
    best = shown.best
    seconds = None if best is None else shown.seconds(best)
    trained = next((shown.seconds(each) for each in shown.trained if each.kinds), None)
    parts = []
    if isinstance(trained, Estimate):
        patch = rows.option(shown.trained[0], "patch")
        parts.append(f"{ITERATIONS} iterations on patches of {patch} take {_between(trained)}")
    if isinstance(seconds, Estimate):
        parts.append(f"1.9 gigavoxel of inference {_between(seconds)}")
    if not parts:
        return None
    more = " `rigdyno forecast volume` says how long the famous volumes would take." if len(parts) == 2 else ""
    return f"{' and '.join(parts)}.{more}"


def _between(seconds: Estimate) -> str:
    if seconds.interval is None:
        return show_seconds(seconds.value)
    low, high = (show_seconds(end) for end in seconds.interval)
    return f"{show_seconds(seconds.value)} ({low} to {high})" if low != high else show_seconds(seconds.value)


def _slow_down(shown: Shown) -> str | None:
    """The published times hide that more devices do more: what an iteration takes, and what it does."""
    largest = shown.trained[-1] if shown.trained else None
    if largest is None or largest.spec.world_size == 1:
        return None
    share, first = rows.efficiency(largest, shown.trained), shown.seconds(shown.trained[0])
    several = shown.seconds(largest)
    if not isinstance(share, Share) or not isinstance(first, Estimate) or not isinstance(several, Estimate):
        return None
    count, word = largest.spec.world_size, rows.devices_word(largest)
    times = several.value / first.value
    published = next(row for row in unet3d() if row.system == "Cluster:1080Ti" and row.devices == 4)
    theirs = published.efficiency(unet3d()) or 0.0
    return (
        f"{count} {word}: an iteration takes {times:.2f} times as long as on one and does {count} patches, an "
        f"efficiency of {show_percent(share.value)}; four published 1080 Ti did {published.patches_per_minute:.0f} "
        f"patch/min, {show_percent(theirs)}."
    )


def _data(shown: Shown) -> str | None:
    found = [(each, share) for each in shown.training if isinstance(share := rows.waiting(each), Share)]
    if not found:
        return None
    each, most = max(found, key=lambda pair: pair[1].value)
    words = f"Waiting for data takes {show_percent(most.value)} of a step at the most"
    if most.value <= WAITS:
        return f"{words}: the device is busy."
    return (
        f"{words} ({rows.network(each)}, {each.spec.world_size} {rows.devices_word(each)}); try more `--set workers=N`."
    )
