"""Compute usage and power over time from the telemetry of each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.streams import Rows
from rigdyno.base.units import NS_PER_S
from rigdyno.schema.channel import Channel
from rigdyno.schema.measured import NodeUsage, Usage
from rigdyno.schema.samples import Header
from rigdyno.schema.spec import Participant

MOST_POINTS = 240  # per curve: more can't be told apart in a figure

HOST = "host"

Samples = tuple[Header, Rows]

Floats = NDArray[np.float64]


def usage_of(steps: Sequence[Samples], telemetry: Sequence[Samples]) -> Usage | None:
    """Return usage and power while the ranks stepped; None if nothing was sampled."""
    begun = _step_spans(steps)
    found = [
        (header, rows, begun[header.participant.clock])
        for header, rows in telemetry
        if header.channels and len(rows) > 1 and header.participant.clock in begun
    ]
    if not found:
        return None
    while_stepping = [rows[_within(rows, span)] for _, rows, span in found]
    channels = [header.channels for header, _, _ in found]
    cpu = [_mean(cores(known, rows)) for known, rows in zip(channels, while_stepping, strict=True)]
    loads = [cards(known, rows) for known, rows in zip(channels, while_stepping, strict=True)]
    device = np.concatenate([load for load in loads if load is not None] or [np.array([])])
    device = device[np.isfinite(device)]
    return Usage(
        nodes=tuple(_node(header, rows, span[0]) for header, rows, span in found),
        cpu=_mean(np.array([each for each in cpu if each is not None])),
        interval_seconds=float(np.median(np.diff(found[0][1]["at_ns"])) / NS_PER_S),
        **_device_statistics(device),
    )


def _device_statistics(readings: Floats) -> dict[str, float]:
    if not len(readings):
        return {}
    low, high = np.quantile(readings, (0.05, 0.95))
    mean = float(readings.mean())
    bursts = {"burstiness": float(readings.std() / mean)} if mean > 0 else {}
    return {"device": mean, "device_low": float(low), "device_high": float(high), **bursts}


def _step_spans(steps: Sequence[Samples]) -> dict[str, tuple[int, int]]:
    """Return, by clock, when the first rank began to step and the last one ended."""
    spans: dict[str, tuple[int, int]] = {}
    for header, rows in steps:
        if len(rows):
            begin, end = int(rows["start_ns"][0]), int(rows["end_ns"][-1])
            known = spans.get(header.participant.clock, (begin, end))
            spans[header.participant.clock] = (min(begin, known[0]), max(end, known[1]))
    return spans


def _within(rows: Rows, span: tuple[int, int]) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (rows["at_ns"] >= span[0]) & (rows["at_ns"] <= span[1])
    return inside


def _node(header: Header, rows: Rows, begin_ns: int) -> NodeUsage:
    thinned = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_POINTS)).astype(int))
    who: Participant = header.participant
    device, watts = cards(header.channels, rows), power(header.channels, rows)
    return NodeUsage(
        node=who.node,
        seconds=tuple(np.round((rows["at_ns"][thinned] - begin_ns) / NS_PER_S, 2).tolist()),
        cpu=_values(cores(header.channels, rows), thinned),
        device=() if device is None else _values(device, thinned),
        watts=() if watts is None else _values(watts, thinned),
    )


def _values(curve: Floats, chosen: NDArray[np.int_]) -> tuple[float | None, ...]:
    return tuple(float(value) if np.isfinite(value) else None for value in curve[chosen])


def cores(channels: Sequence[Channel], rows: Rows) -> Floats:
    """Return the mean load of the cores that the ranks may use."""
    return _average([each for each in _loads(channels) if each.sensor == HOST], rows)


def cards(channels: Sequence[Channel], rows: Rows) -> Floats | None:
    """Return the mean load of the node's GPUs; None if it has none that can be read."""
    found = [each for each in _loads(channels) if each.device.startswith("gpu")]
    return _average(found, rows) if found else None


def _loads(channels: Sequence[Channel]) -> list[Channel]:
    return [each for each in channels if each.quantity == "utilisation"]


def _average(channels: Sequence[Channel], rows: Rows) -> Floats:
    if not channels:
        return np.full(len(rows), np.nan)
    values = np.array([rows[each.name] for each in channels], dtype=np.float64)
    known = np.isfinite(values)
    counted = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    return np.where(counted > 0, sums / np.maximum(counted, 1), np.nan)


def power(channels: Sequence[Channel], rows: Rows) -> Floats | None:
    """Return the watts of the node by the meter that covers most of it; None if it has no meter."""
    chosen = _widest(channels)
    if not chosen:
        return None
    total: Floats = np.sum([_watts(each, rows) for each in chosen], axis=0)
    return total


def _widest(channels: Sequence[Channel]) -> list[Channel]:
    """Return the channels that cover most of the node without counting anything twice.

    A meter with a gauge and a counter is read by the gauge; of two meters of the same part, the first is used.
    """
    metered = [each for each in channels if each.quantity in ("power", "energy") and each.scope is not None]
    by_meter: dict[object, Channel] = {}
    for each in sorted(metered, key=lambda channel: channel.kind == "counter"):
        by_meter.setdefault(each.meter, each)
    found = list(by_meter.values())
    wholes: Mapping[str, list[Channel]] = {
        scope: [each for each in found if each.extent == "whole" and each.scope == scope]
        for scope in ("wall", "board", "card", "package")
    }
    rails = [each for each in found if each.extent == "rail"]
    return wholes["wall"][:1] or wholes["board"][:1] or rails or [*wholes["card"], *wholes["package"]]


def _watts(channel: Channel, rows: Rows) -> Floats:
    values = np.asarray(rows[channel.name], dtype=np.float64)
    if channel.kind == "gauge":
        return values
    seconds = np.diff(rows["at_ns"]) / NS_PER_S
    rises = np.where(seconds > 0, np.diff(values) / np.where(seconds > 0, seconds, 1.0), np.nan)
    return np.concatenate(([np.nan], np.where(rises >= 0, rises, np.nan)))


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
