"""Describe telemetry channels. Consumers look channels up by what they measure, never by their names."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

Quantity = Literal[
    "power", "energy", "utilisation", "temperature", "clock", "memory", "throttle", "fan", "state", "other"
]  # fmt: skip

Kind = Literal["gauge", "counter"]

Scope = Literal["card", "package", "board", "wall"]

# How a reading of power or energy adds up with others. "whole": all that its scope draws, or a share of it that no
# other whole includes. "rail": one of the rails of a board without a meter at its input. "part": included in another
# channel, or unknown; never part of a sum.
Extent = Literal["whole", "rail", "part"]

# States of a probe. Its state channel stores the index into this tuple.
STATES = ("fine", "blocked", "failed", "nonsense", "gone")


class Channel(msgspec.Struct, frozen=True):
    """One column of telemetry."""

    name: str
    unit: str
    quantity: Quantity = "other"
    kind: Kind = "gauge"
    device: str = ""  # "gpu0", "package0", "board"; empty: the whole machine
    rail: str = ""  # name of the rail, as given by the board or the driver
    scope: Scope | None = None
    extent: Extent = "part"
    interval_seconds: float | None = None  # update interval of the sensor; None: it updates whenever it is read
    sensor: str = ""  # the probe that reads it
    most: float | None = None  # largest plausible gauge reading, or counter increase per second; None: by quantity

    @property
    def meter(self) -> tuple[Scope | None, str, str]:
        """Identify the meter: a counter and a gauge with the same meter measure the same thing."""
        return self.scope, self.device, self.rail

    @property
    def title(self) -> str:
        """Return the name to show, e.g. 'gpu0', 'package0 dram' or 'POM_5V_IN'."""
        if self.scope in ("board", "wall") and self.rail:
            return self.rail
        return f"{self.device} {self.rail}".strip() or self.name


# Ranges of plausible readings. They are wider than those of any sensor: they detect nonsense, not outliers.
MOST_WATTS = 100_000.0

_BOUNDS: dict[Quantity, tuple[float, float]] = {
    "power": (0.0, MOST_WATTS),
    "energy": (0.0, 1e15),
    "utilisation": (0.0, 1.0),
    "temperature": (-100.0, 250.0),
    "clock": (0.0, 1e6),  # MHz
    "memory": (0.0, 1e16),
    "throttle": (0.0, 2.0**64),
    "fan": (0.0, 1e6),
}

# Channels of files that were written before channels stored what they measure, by the names of that time.
_GPU_CHANNELS = {
    "power_w": Channel("", "W", "power", extent="whole", interval_seconds=0.1),
    "energy_joules": Channel("", "J", "energy", "counter", extent="whole", interval_seconds=0.1),
    "utilisation": Channel("", "share", "utilisation"),
    "memory_bytes": Channel("", "B", "memory"),
    "sm_clock_mhz": Channel("", "MHz", "clock"),
    "temperature_c": Channel("", "C", "temperature"),
    "throttle_reasons": Channel("", "bits", "throttle"),
}

_HOST_CHANNELS = {
    "frequency_mhz": Channel("", "MHz", "clock", device="cpu"),
    "temperature_c": Channel("", "C", "temperature", device="cpu"),
    "worker_memory_bytes": Channel("", "B", "memory", device="worker"),
}


def bounds_of(channel: Channel) -> tuple[float, float]:
    """Return the range of plausible readings."""
    low, high = _BOUNDS.get(channel.quantity, (-math.inf, math.inf))
    return low, channel.most if channel.most is not None and channel.kind == "gauge" else high


def most_watts(channel: Channel) -> float:
    """Return by how many joules an energy counter can plausibly increase per second."""
    return channel.most if channel.most is not None else MOST_WATTS


def measures_energy(channel: Channel) -> bool:
    return channel.quantity in ("power", "energy") and channel.scope is not None


def from_name(name: str, unit: str) -> Channel:
    """Infer a channel from its name, for files that were written before channels stored what they measure."""
    if found := re.fullmatch(r"(gpu\d+)_(\w+)", name):
        known = _GPU_CHANNELS.get(found[2])
        if known is not None:
            return msgspec.structs.replace(known, name=name, unit=unit, device=found[1], scope="card", sensor="nvml")
    if found := re.fullmatch(r"(package\S*)_energy_joules", name):
        return Channel(name, unit, "energy", "counter", found[1], "", "package", "whole", 0.001, "rapl")
    if re.fullmatch(r"cpu\d+", name):
        return Channel(name, unit, "utilisation", device=name, sensor="host")
    return msgspec.structs.replace(_HOST_CHANNELS.get(name, Channel(name, unit)), name=name, unit=unit, sensor="host")
