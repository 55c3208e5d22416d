"""Energy over a window of time, from counters and from readings of power. Pure: rows and channels in, joules out.

A counter is read at the window's ends by interpolation. Power is integrated by trapezoids between readings, however
unevenly these come. What no reading covers isn't filled in: a gap longer than a few readings is left out, and the share
of the window that was covered is part of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.streams import Rows
from rigdyno.analyse.telemetry import Span
from rigdyno.schema.channel import Channel, bounds_of, measures_energy, most_watts
from rigdyno.schema.energy import MeterEnergy, Whole
from rigdyno.units import NS_PER_S, seconds_of_ns

GAP_INTERVALS = 3.5  # longer pauses between two readings are not bridged
ENOUGH_FOR_A_PACE = 5  # readings that tell how often a sensor has a new value

Floats = NDArray[np.float64]


class Curve(NamedTuple):
    """The sound readings of one channel, in seconds from the window's start."""

    at: Floats
    values: Floats
    gap: float  # longer pauses are not bridged


class Covered(NamedTuple):
    joules: float
    seconds: float
    peak_watts: float | None
    updates: int
    interval_seconds: float | None


def meters_of(channels: Sequence[Channel], rows: Rows, span: Span, node: int = 0) -> list[MeterEnergy]:
    """Every meter of power or energy that covered some of the window. A counter is preferred; where its power is read
    as well, both are given."""
    groups: dict[object, list[Channel]] = {}
    for channel in channels:
        if measures_energy(channel):
            groups.setdefault(channel.meter, []).append(channel)
    found = (_meter(group, rows, span, node) for group in groups.values())
    return [meter for meter in found if meter is not None]


def _meter(group: Sequence[Channel], rows: Rows, span: Span, node: int) -> MeterEnergy | None:
    ordered = sorted(group, key=lambda channel: channel.kind != "counter")
    ways = [(channel, covered) for channel in ordered if (covered := covered_by(channel, rows, span)) is not None]
    if not ways:
        return None
    channel, covered = ways[0]
    window = seconds_of_ns(span.end_ns - span.start_ns)
    others = [each.joules / each.seconds for other, each in ways[1:] if other.kind != channel.kind]
    return MeterEnergy(
        title=channel.title,
        sensor=channel.sensor,
        scope=channel.scope or "board",
        extent=channel.extent,
        method="counter" if channel.kind == "counter" else "integral",
        joules=covered.joules,
        seconds=covered.seconds,
        coverage=min(1.0, covered.seconds / window),
        watts=covered.joules / covered.seconds,
        peak_watts=covered.peak_watts,
        updates=covered.updates,
        interval_seconds=covered.interval_seconds,
        check_watts=others[0] if others else None,
        node=node,
    )


def covered_by(channel: Channel, rows: Rows, span: Span) -> Covered | None:
    """None: it covered nothing of the window."""
    curve = _curve(channel, rows, span)
    if curve is None:
        return None
    window = seconds_of_ns(span.end_ns - span.start_ns)
    parts = _counted(curve, channel, window) if channel.kind == "counter" else _integrated(curve, window)
    seconds = float(parts.lengths.sum())
    if seconds <= 0:
        return None
    updates = int(np.count_nonzero((curve.at >= 0) & (curve.at <= window)))
    if channel.interval_seconds:  # the same value read twice is one
        updates = min(updates, int(window / channel.interval_seconds))
    pauses = np.diff(curve.at)
    interval = max(float(np.median(pauses)), channel.interval_seconds or 0.0) if len(pauses) else None
    return Covered(float(parts.joules.sum()), seconds, _highest(parts), updates, interval)


class _Parts(NamedTuple):
    """Of the time between two readings, what lies in the window and is covered."""

    lengths: Floats
    joules: Floats
    highest: Floats  # watts


def _highest(parts: _Parts) -> float | None:
    counted = parts.lengths > 0
    return float(parts.highest[counted].max()) if counted.any() else None


def _integrated(curve: Curve, window: float) -> _Parts:
    left, right = curve.at[:-1], curve.at[1:]
    begin, end, pauses = np.maximum(left, 0.0), np.minimum(right, window), right - left
    lengths = np.where(pauses <= curve.gap, np.maximum(end - begin, 0.0), 0.0)
    slopes = np.diff(curve.values) / pauses
    at_begin, at_end = curve.values[:-1] + slopes * (begin - left), curve.values[:-1] + slopes * (end - left)
    return _Parts(lengths, lengths * (at_begin + at_end) / 2, np.maximum(at_begin, at_end))


def _counted(curve: Curve, channel: Channel, window: float) -> _Parts:
    """What a counter rose by while nobody looked it has counted all the same: a gap is bridged unless the window ends
    in it. A fall, or a rise that nothing can draw, is no energy: it began anew, or is broken."""
    left, right = curve.at[:-1], curve.at[1:]
    begin, end, pauses = np.maximum(left, 0.0), np.minimum(right, window), right - left
    rises = np.diff(curve.values)
    whole = (left >= 0) & (right <= window)
    sound = (rises >= 0) & (rises <= most_watts(channel) * pauses) & (whole | (pauses <= curve.gap))
    lengths = np.where(sound, np.maximum(end - begin, 0.0), 0.0)
    rates = np.where(sound, rises, 0.0) / pauses
    return _Parts(lengths, lengths * rates, rates)


def _curve(channel: Channel, rows: Rows, span: Span) -> Curve | None:
    if channel.name not in (rows.dtype.names or ()) or len(rows) < 2:
        return None
    at = (rows["at_ns"] - span.start_ns) / NS_PER_S
    values = np.asarray(rows[channel.name], dtype=np.float64)
    low, high = bounds_of(channel)
    sound = np.isfinite(values) & (values >= low) & (values <= high)
    if np.count_nonzero(sound) < 2:
        return None
    at_sound = at[sound]
    ahead = np.maximum.accumulate(at_sound)  # a clock that stands still or runs back dates nothing
    rising = np.concatenate(([True], at_sound[1:] > ahead[:-1]))
    kept, found = at_sound[rising], values[sound][rising]
    return Curve(kept, found, _gap(channel, at, kept)) if len(kept) > 1 else None


def _gap(channel: Channel, at: Floats, kept: Floats) -> float:
    """By the pace of the sampler, of the sensor as it says, and of the values that came."""
    paces = [float(np.median(np.diff(at))), channel.interval_seconds or 0.0]
    if len(kept) >= ENOUGH_FOR_A_PACE:
        paces.append(float(np.median(np.diff(kept))))
    return GAP_INTERVALS * max(paces)


class Total(NamedTuple):
    """Meters of one node that add up."""

    whole: Whole
    meters: tuple[MeterEnergy, ...]

    @property
    def watts(self) -> float:
        return sum(meter.watts for meter in self.meters)

    @property
    def joules(self) -> float:
        return sum(meter.joules for meter in self.meters)

    @property
    def coverage(self) -> float:
        return min(meter.coverage for meter in self.meters)

    @property
    def peak_watts(self) -> float | None:
        """Of one meter: those of several need not be at the same time."""
        return self.meters[0].peak_watts if len(self.meters) == 1 else None

    @property
    def source(self) -> str:
        names = " + ".join(meter.title for meter in self.meters)
        words = f"sum of rails {names}" if self.whole == "rails" else names
        return f"{words} ({', '.join(dict.fromkeys(meter.sensor for meter in self.meters))})"


def totals_of(meters: Sequence[MeterEnergy]) -> dict[Whole, Total]:
    """What may be said of a whole node, by how much of it that is. Nothing is counted twice: two meters at the wall, or
    at a board's input, measure the same thing."""
    wholes = [meter for meter in meters if meter.extent == "whole"]
    rails = tuple(meter for meter in meters if meter.extent == "rail")
    chips = tuple(meter for meter in wholes if meter.scope in ("card", "package"))
    found: dict[Whole, tuple[MeterEnergy, ...]] = {
        "wall": tuple(meter for meter in wholes if meter.scope == "wall")[:1],
        "board": tuple(meter for meter in wholes if meter.scope == "board")[:1],
        "rails": rails,
        "chips": chips,
    }
    return {whole: Total(whole, chosen) for whole, chosen in found.items() if chosen}
