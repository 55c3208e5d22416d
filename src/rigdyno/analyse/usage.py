"""Usage and power over time, from each node's telemetry: what the document of the cluster drew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.streams import Rows
from rigdyno.schema.channel import Channel
from rigdyno.schema.measured import NodeUsage, Usage
from rigdyno.schema.participant import Participant
from rigdyno.schema.samples import Header
from rigdyno.units import NS_PER_S

MOST_POINTS = 240  # of a curve: more can't be told apart in a drawing
HOST = "host"

Samples = tuple[Header, Rows]
Floats = NDArray[np.float64]


def usage_of(steps: Sequence[Samples], telemetry: Sequence[Samples]) -> Usage | None:
    """None: nobody sampled it."""
    begun = _first_steps(steps)
    found = [
        (header, rows, begun[header.participant.clock])
        for header, rows in telemetry
        if header.channels and len(rows) > 1 and header.participant.clock in begun
    ]
    if not found:
        return None
    while_stepping = [rows[_inside(rows, span)] for _, rows, span in found]
    channels = [header.channels for header, _, _ in found]
    cpu = [_mean(cores(known, rows)) for known, rows in zip(channels, while_stepping, strict=True)]
    loads = [cards(known, rows) for known, rows in zip(channels, while_stepping, strict=True)]
    device = np.concatenate([load for load in loads if load is not None] or [np.array([])])
    device = device[np.isfinite(device)]
    return Usage(
        nodes=tuple(_node(header, rows, span[0]) for header, rows, span in found),
        cpu=_mean(np.array([each for each in cpu if each is not None])),
        interval_seconds=float(np.median(np.diff(found[0][1]["at_ns"])) / NS_PER_S),
        **_of_device(device),
    )


def _of_device(readings: Floats) -> dict[str, float]:
    if not len(readings):
        return {}
    low, high = np.quantile(readings, (0.05, 0.95))
    mean = float(readings.mean())
    bursts = {"burstiness": float(readings.std() / mean)} if mean > 0 else {}
    return {"device": mean, "device_low": float(low), "device_high": float(high), **bursts}


def _first_steps(steps: Sequence[Samples]) -> dict[str, tuple[int, int]]:
    """By clock: when its first rank began to step, and its last one ended."""
    spans: dict[str, tuple[int, int]] = {}
    for header, rows in steps:
        if len(rows):
            begin, end = int(rows["start_ns"][0]), int(rows["end_ns"][-1])
            known = spans.get(header.participant.clock, (begin, end))
            spans[header.participant.clock] = (min(begin, known[0]), max(end, known[1]))
    return spans


def _inside(rows: Rows, span: tuple[int, int]) -> NDArray[np.bool_]:
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
    """The mean over the cores that the ranks may use."""
    return _averaged([each for each in _loads(channels) if each.sensor == HOST], rows)


def cards(channels: Sequence[Channel], rows: Rows) -> Floats | None:
    """The mean over the node's cards; None: it has none that can be read."""
    found = [each for each in _loads(channels) if each.device.startswith("gpu")]
    return _averaged(found, rows) if found else None


def _loads(channels: Sequence[Channel]) -> list[Channel]:
    return [each for each in channels if each.quantity == "utilisation"]


def _averaged(channels: Sequence[Channel], rows: Rows) -> Floats:
    if not channels:
        return np.full(len(rows), np.nan)
    values = np.array([rows[each.name] for each in channels], dtype=np.float64)
    known = np.isfinite(values)
    counted = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    return np.where(counted > 0, sums / np.maximum(counted, 1), np.nan)


def power(channels: Sequence[Channel], rows: Rows) -> Floats | None:
    """Watts of the node by the widest of its meters; None: it has none."""
    chosen = _widest(channels)
    if not chosen:
        return None
    total: Floats = np.sum([_watts(each, rows) for each in chosen], axis=0)
    return total


def _widest(channels: Sequence[Channel]) -> list[Channel]:
    """Nothing is counted twice: a meter that has a gauge and a counter is read by the gauge, two meters of the same
    whole by the first."""
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
