"""What a telemetry channel is: consumers look channels up by what they mean, never by what they are called."""

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
# How a reading of power or energy adds up with others. "whole": all that its scope takes, or a share of it that no
# other whole holds. "rail": one of the rails of a board without a meter at its input. "part": held in another channel,
# or nobody knows; never in a sum.
Extent = Literal["whole", "rail", "part"]


# Readings of a probe's own channel of state, by number.
STATES = ("fine", "blocked", "failed", "nonsense", "gone")


class Channel(msgspec.Struct, frozen=True):
    """One column of telemetry."""

    name: str
    unit: str
    quantity: Quantity = "other"
    kind: Kind = "gauge"
    device: str = ""  # "gpu0", "package0", "board"; empty: the machine
    rail: str = ""  # as the board or the driver calls it
    scope: Scope | None = None
    extent: Extent = "part"
    interval_seconds: float | None = None  # between two values of the sensor itself; None: as often as it is read
    sensor: str = ""  # the probe that reads it
    most: float | None = None  # beyond what the sensor can mean; None: by the quantity

    @property
    def meter(self) -> tuple[Scope | None, str, str]:
        """Channels with the same meter measure the same thing, by a counter and by a gauge."""
        return self.scope, self.device, self.rail

    @property
    def title(self) -> str:
        """'gpu0', 'package0 dram', 'POM_5V_IN'."""
        if self.scope in ("board", "wall") and self.rail:
            return self.rail
        return f"{self.device} {self.rail}".strip() or self.name


# What a reading can be at all. Wider than any sensor: it finds out nonsense, not outliers.
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


def bounds_of(channel: Channel) -> tuple[float, float]:
    """Between which a sensor can mean what it says."""
    low, high = _BOUNDS.get(channel.quantity, (-math.inf, math.inf))
    return low, channel.most if channel.most is not None and channel.kind == "gauge" else high


def most_watts(channel: Channel) -> float:
    """What a counter of energy can rise by in a second."""
    return channel.most if channel.most is not None else MOST_WATTS


def measures_energy(channel: Channel) -> bool:
    return channel.quantity in ("power", "energy") and channel.scope is not None


def from_name(name: str, unit: str) -> Channel:
    """Of a file from before channels said what they are, by the names of that time."""
    if found := re.fullmatch(r"(gpu\d+)_(\w+)", name):
        known = _OF_CARDS.get(found[2])
        if known is not None:
            return msgspec.structs.replace(known, name=name, unit=unit, device=found[1], scope="card", sensor="nvml")
    if found := re.fullmatch(r"(package\S*)_energy_joules", name):
        return Channel(name, unit, "energy", "counter", found[1], "", "package", "whole", 0.001, "rapl")
    if re.fullmatch(r"cpu\d+", name):
        return Channel(name, unit, "utilisation", device=name, sensor="host")
    return msgspec.structs.replace(_OF_HOST.get(name, Channel(name, unit)), name=name, unit=unit, sensor="host")


_OF_CARDS = {
    "power_w": Channel("", "W", "power", extent="whole", interval_seconds=0.1),
    "energy_joules": Channel("", "J", "energy", "counter", extent="whole", interval_seconds=0.1),
    "utilisation": Channel("", "share", "utilisation"),
    "memory_bytes": Channel("", "B", "memory"),
    "sm_clock_mhz": Channel("", "MHz", "clock"),
    "temperature_c": Channel("", "C", "temperature"),
    "throttle_reasons": Channel("", "bits", "throttle"),
}
_OF_HOST = {
    "frequency_mhz": Channel("", "MHz", "clock", device="cpu"),
    "temperature_c": Channel("", "C", "temperature", device="cpu"),
    "worker_memory_bytes": Channel("", "B", "memory", device="worker"),
}
