"""What a link between nodes costs a step, from its data sheet: for sizes that no measurement has reached.

A ring all-reduce over n nodes moves 2 (n - 1) / n of the gradients over each node's link. How much of that hides behind
the computing isn't known, so both ends are taken: all of it, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rigdyno.analyse.forecast import Curve
from rigdyno.schema.scaling import Expected, Link
from rigdyno.units import bus_bytes, bytes_of_gbit


def nodes_for(devices: int, devices_per_node: int) -> int:
    return math.ceil(devices / devices_per_node)


def step_seconds(devices: int, batch: int, throughput: float) -> float:
    return devices * batch / throughput


def transfer_seconds(link: Link, nodes: int) -> float:
    """No all-reduce over such links is quicker, unless it sends less than the gradients."""
    return bus_bytes(link.bytes_per_step, nodes) / bytes_of_gbit(link.gbit_s)


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """From one node, where all points lie, to several."""

    link: Link
    batch: int  # items that one device does in a step
    devices_per_node: int

    def crosses(self, devices: int) -> bool:
        return devices > self.devices_per_node

    def slowed(self, alone: Expected) -> Expected:
        """What is left of the throughput that the curve of one node gives for as many devices."""
        transfer = transfer_seconds(self.link, nodes_for(alone.devices, self.devices_per_node))
        middle, slowest, quickest = (
            step_seconds(alone.devices, self.batch, rate) for rate in (alone.value, alone.low, alone.high)
        )
        items = alone.devices * self.batch
        return Expected(
            devices=alone.devices,
            value=items / math.sqrt(max(middle, transfer) * (middle + transfer)),
            low=items / (slowest + transfer),
            high=items / max(quickest, transfer),
            confidence=None,  # from one assumption's worst to the other's best
        )


class CrossedStep(NamedTuple):
    """A step of so many nodes together, as it was measured or is predicted."""

    origin: str
    devices: int
    nodes: int
    seconds: float


def crossed_steps(curve: Curve, sizes: Sequence[int], batch: int, devices_per_node: int) -> list[CrossedStep]:
    """Of points that have crossed the link, and of what they predict."""
    rates = [("measured", point.devices, point.nodes, point.throughput) for point in curve.points]
    rates += [("forecast", size, None, curve.at(size).value) for size in sizes]
    return [
        CrossedStep(origin, size, nodes or nodes_for(size, devices_per_node), step_seconds(size, batch, rate))
        for origin, size, nodes, rate in rates
    ]
