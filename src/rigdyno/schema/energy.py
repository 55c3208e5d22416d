"""What the steady steps took in energy, by whose meters, and how much of the time these covered."""

from __future__ import annotations

from typing import Literal

import msgspec

from rigdyno.schema.channel import Extent, Scope
from rigdyno.schema.estimate import Estimate, Missing

UPDATES_OF_A_TURN = 20  # of the sensor, in a duel by joules: what it averages over weighs less than a margin then

Method = Literal["counter", "integral"]
# What a sum stands for, the widest first: all that a node takes from the wall, or at its board's input; the sum of its
# board's rails; the sum of its cards and processor packages, which is less than the node takes.
Whole = Literal["wall", "board", "rails", "chips"]
WHOLES: tuple[Whole, ...] = ("wall", "board", "rails", "chips")


class MeterEnergy(msgspec.Struct, frozen=True, kw_only=True):
    """One meter over one window."""

    title: str  # "gpu0", "VDD_IN"
    sensor: str
    scope: Scope
    extent: Extent
    method: Method
    joules: float  # of the time that was covered
    seconds: float  # that were covered
    coverage: float  # share of the window
    watts: float  # mean over the time that was covered
    peak_watts: float | None = None
    updates: int = 0  # new values inside the window
    interval_seconds: float | None = None  # between two of them
    check_watts: float | None = None  # the same mean the other way: by the integral of power, where there is a counter
    node: int = 0


class EnergyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one configuration, over the steady windows of its processes."""

    whole: Whole
    source: str  # which meters, in words
    joules: Estimate  # gross, of a process's steady window
    watts: Estimate  # mean, of all nodes together
    peak_watts: float | None
    coverage: float  # of the process that is covered least
    per_item: Estimate | Missing  # J/image
    per_step: Estimate | Missing
    idle_watts: Estimate | Missing
    net_watts: Estimate | Missing  # without what the idle rig draws
    net_per_item: Estimate | Missing
    watts_by_node: dict[int, float] = {}
    meters: tuple[MeterEnergy, ...] = ()  # of the first process
    process_per_item: tuple[float, ...] = ()  # what two runs are compared by
