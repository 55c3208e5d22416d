"""Compute the energy of a window of time, from energy counters and from readings of power.

A counter is interpolated at the ends of the window. Power is integrated by trapezoids between readings, at whatever
times these come. Gaps longer than a few readings aren't filled in; the share of the window that was covered is part of
the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.streams import Rows, TimeSpan
from rigdyno.base.units import NS_PER_S, seconds_of_ns
from rigdyno.schema.channel import Channel, bounds_of, measures_energy, most_watts
from rigdyno.schema.measured import MeterEnergy, Whole

GAP_INTERVALS = 3.5  # longer pauses between two readings are not bridged

ENOUGH_FOR_A_PACE = 5  # readings that tell how often a sensor has a new value

Floats = NDArray[np.float64]


class PowerCurve(NamedTuple):
    """The valid readings of one channel, in seconds from the start of the window."""

    at: Floats
    values: Floats
    gap: float  # longer pauses are not bridged


class Covered(NamedTuple):
    joules: float
    seconds: float
    peak_watts: float | None
    updates: int
    interval_seconds: float | None


class _Parts(NamedTuple):
    """The covered parts of the window, one for each pair of consecutive readings."""

    lengths: Floats
    joules: Floats
    highest: Floats  # watts


class NodeEnergy(NamedTuple):
    """Meters of one node whose sum is the power of a part of it."""

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
        """Return the peak of a single meter; the peaks of several needn't coincide."""
        return self.meters[0].peak_watts if len(self.meters) == 1 else None

    @property
    def source(self) -> str:
        names = " + ".join(meter.title for meter in self.meters)
        words = f"sum of rails {names}" if self.whole == "rails" else names
        return f"{words} ({', '.join(dict.fromkeys(meter.sensor for meter in self.meters))})"


def meters_of(channels: Sequence[Channel], rows: Rows, span: TimeSpan, node: int = 0) -> list[MeterEnergy]:
    """Return every meter of power or energy that covered a part of the window.

    A counter is preferred; if the same meter gives power too, that mean is added as a check.
    """
    groups: dict[object, list[Channel]] = {}
    for channel in channels:
        if measures_energy(channel):
            groups.setdefault(channel.meter, []).append(channel)
    found = (_meter(group, rows, span, node) for group in groups.values())
    return [meter for meter in found if meter is not None]


def _meter(group: Sequence[Channel], rows: Rows, span: TimeSpan, node: int) -> MeterEnergy | None:
    ordered = sorted(group, key=lambda channel: channel.kind != "counter")
    ways = [(channel, covered) for channel in ordered if (covered := measure_coverage(channel, rows, span)) is not None]
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


def measure_coverage(channel: Channel, rows: Rows, span: TimeSpan) -> Covered | None:
    """Return the energy that one channel measured in the window; None if it covered nothing of it."""
    curve = _curve(channel, rows, span)
    if curve is None:
        return None
    window = seconds_of_ns(span.end_ns - span.start_ns)
    parts = _count(curve, channel, window) if channel.kind == "counter" else _integrate(curve, window)
    seconds = float(parts.lengths.sum())
    if seconds <= 0:
        return None
    updates = int(np.count_nonzero((curve.at >= 0) & (curve.at <= window)))
    if channel.interval_seconds:  # the same value read twice counts once
        updates = min(updates, int(window / channel.interval_seconds))
    pauses = np.diff(curve.at)
    interval = max(float(np.median(pauses)), channel.interval_seconds or 0.0) if len(pauses) else None
    return Covered(float(parts.joules.sum()), seconds, _peak_watts(parts), updates, interval)


def _integrate(curve: PowerCurve, window: float) -> _Parts:
    left, right = curve.at[:-1], curve.at[1:]
    begin, end, pauses = np.maximum(left, 0.0), np.minimum(right, window), right - left
    lengths = np.where(pauses <= curve.gap, np.maximum(end - begin, 0.0), 0.0)
    slopes = np.diff(curve.values) / pauses
    at_begin, at_end = curve.values[:-1] + slopes * (begin - left), curve.values[:-1] + slopes * (end - left)
    return _Parts(lengths, lengths * (at_begin + at_end) / 2, np.maximum(at_begin, at_end))


def _count(curve: PowerCurve, channel: Channel, window: float) -> _Parts:
    """Return the energy between readings of a counter.

    A counter goes on during a gap, so gaps inside the window are bridged. A fall, or a rise that is physically
    impossible, isn't counted: the counter was reset or is broken.
    """
    left, right = curve.at[:-1], curve.at[1:]
    begin, end, pauses = np.maximum(left, 0.0), np.minimum(right, window), right - left
    rises = np.diff(curve.values)
    whole = (left >= 0) & (right <= window)
    sound = (rises >= 0) & (rises <= most_watts(channel) * pauses) & (whole | (pauses <= curve.gap))
    lengths = np.where(sound, np.maximum(end - begin, 0.0), 0.0)
    rates = np.where(sound, rises, 0.0) / pauses
    return _Parts(lengths, lengths * rates, rates)


def _peak_watts(parts: _Parts) -> float | None:
    counted = parts.lengths > 0
    return float(parts.highest[counted].max()) if counted.any() else None


def _curve(channel: Channel, rows: Rows, span: TimeSpan) -> PowerCurve | None:
    if channel.name not in (rows.dtype.names or ()) or len(rows) < 2:
        return None
    at = (rows["at_ns"] - span.start_ns) / NS_PER_S
    values = np.asarray(rows[channel.name], dtype=np.float64)
    low, high = bounds_of(channel)
    sound = np.isfinite(values) & (values >= low) & (values <= high)
    if np.count_nonzero(sound) < 2:
        return None
    at_sound = at[sound]
    ahead = np.maximum.accumulate(at_sound)  # drop readings whose clock stood still or ran backwards
    rising = np.concatenate(([True], at_sound[1:] > ahead[:-1]))
    kept, found = at_sound[rising], values[sound][rising]
    return PowerCurve(kept, found, _gap(channel, at, kept)) if len(kept) > 1 else None


def _gap(channel: Channel, at: Floats, kept: Floats) -> float:
    """Return the longest pause to bridge, from the pace of the sampler, of the sensor and of its values."""
    paces = [float(np.median(np.diff(at))), channel.interval_seconds or 0.0]
    if len(kept) >= ENOUGH_FOR_A_PACE:
        paces.append(float(np.median(np.diff(kept))))
    return GAP_INTERVALS * max(paces)


def totals_of(meters: Sequence[MeterEnergy]) -> dict[Whole, NodeEnergy]:
    """Return the totals of a node, by the part of the node that they cover.

    Nothing is counted twice: two meters at the wall, or at the input of a board, measure the same thing.
    """
    wholes = [meter for meter in meters if meter.extent == "whole"]
    rails = tuple(meter for meter in meters if meter.extent == "rail")
    chips = tuple(meter for meter in wholes if meter.scope in ("card", "package"))
    found: dict[Whole, tuple[MeterEnergy, ...]] = {
        "wall": tuple(meter for meter in wholes if meter.scope == "wall")[:1],
        "board": tuple(meter for meter in wholes if meter.scope == "board")[:1],
        "rails": rails,
        "chips": chips,
    }
    return {whole: NodeEnergy(whole, chosen) for whole, chosen in found.items() if chosen}
