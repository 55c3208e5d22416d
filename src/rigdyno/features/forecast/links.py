"""Compute the cost of a link between nodes from its data sheet, and check which points are on one curve.

A ring all-reduce over n nodes moves 2 (n - 1) / n of the gradients over each node's link. How much of it overlaps with
computing is unknown, so both limits are used: all of it or nothing. A link that no point has crossed can't be predicted
from the curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rigdyno.base.units import bus_bytes, bytes_of_gbit, show_bytes, show_number, show_percent
from rigdyno.features.forecast.curve import LEAST_POINTS, ScalingCurve, rates_by_form, sizes_and_costs, squares_by_form
from rigdyno.report.text import format_scaled
from rigdyno.schema.scaling import Expected, Link, ScalingPoint

# The least jump of the cost of an item, with the least F ratio of explained to residual squares: a larger jump needs
# less evidence. Of smooth curves with 3 % noise, one in a hundred is taken for two.
LEVELS = ((0.15, 60.0), (0.30, 10.0))

_BENDING = 3  # parameters of the curve besides the jump

# Larger caches in total, or noise, explain a few percent above perfect scaling; more is a different measurement.
SUPERLINEAR = 0.05

# Relative distance of an outlier from the other points. Published points scatter by 2 %; a bend costs up to 10 %.
OFF_THE_CURVE = 0.25


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """The step from one node, on which all points were measured, to several."""

    link: Link
    batch: int  # items that one device does in a step
    devices_per_node: int

    def crosses(self, devices: int) -> bool:
        return devices > self.devices_per_node

    def slow_down(self, alone: Expected) -> Expected:
        """Reduce the throughput that the curve of one node predicts by the time of the transfer."""
        transfer = transfer_seconds(self.link, nodes_for(alone.devices, self.devices_per_node))
        middle, slowest, quickest = (
            seconds_per_step(alone.devices, self.batch, rate) for rate in (alone.value, alone.low, alone.high)
        )
        items = alone.devices * self.batch
        return Expected(
            devices=alone.devices,
            value=items / math.sqrt(max(middle, transfer) * (middle + transfer)),
            low=items / (slowest + transfer),
            high=items / max(quickest, transfer),
            confidence=None,  # the interval spans both assumptions about overlap
        )


class CrossedStep(NamedTuple):
    """A measured or predicted step over several nodes."""

    origin: str
    devices: int
    nodes: int
    seconds: float


def nodes_for(devices: int, devices_per_node: int) -> int:
    return math.ceil(devices / devices_per_node)


def seconds_per_step(devices: int, batch: int, throughput: float) -> float:
    return devices * batch / throughput


def transfer_seconds(link: Link, nodes: int) -> float:
    """Return the least time of an all-reduce over such links."""
    return bus_bytes(link.bytes_per_step, nodes) / bytes_of_gbit(link.gbit_s)


def crossed_steps(curve: ScalingCurve, sizes: Sequence[int], batch: int, devices_per_node: int) -> list[CrossedStep]:
    """Return the measured steps, and those that the curve predicts."""
    rates = [("measured", point.devices, point.nodes, point.throughput) for point in curve.points]
    rates += [("forecast", size, None, curve.at(size).value) for size in sizes]
    return [
        CrossedStep(origin, size, nodes or nodes_for(size, devices_per_node), seconds_per_step(size, batch, rate))
        for origin, size, nodes, rate in rates
    ]


def find_jump(points: Sequence[ScalingPoint]) -> tuple[int, float] | None:
    """Return the index of the point before which the cost of an item jumps, and the factor; None for one curve."""
    if len(points) < _BENDING + 3:
        return None
    given = sizes_and_costs(points)
    sizes, costs = np.log(given)
    smooth = np.stack([np.ones_like(sizes), sizes, sizes**2], axis=1)
    without = min(_squares(smooth, costs)[0], *squares_by_form(*given))
    found = {k: _squares(np.column_stack([smooth, np.arange(len(points)) >= k]), costs) for k in range(1, len(points))}
    at, (left, steps) = min(found.items(), key=lambda item: item[1][0])
    size, ratio = float(steps[-1]), (without - left) * (len(points) - _BENDING - 1) / max(left, 1e-12)
    proven = any(abs(size) >= math.log1p(least) and ratio >= proof for least, proof in LEVELS)
    return (at, math.exp(size)) if proven else None


def _squares(columns: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    solution = np.asarray(np.linalg.lstsq(columns, values, rcond=None)[0], dtype=np.float64)
    rest = values - columns @ solution
    return float(rest @ rest), solution


def points_after_jump(points: Sequence[ScalingPoint]) -> tuple[list[ScalingPoint], str | None]:
    """Return the points after a jump, and a sentence about it."""
    found = find_jump(points)
    if found is None:
        return list(points), None
    at, factor = found
    before, behind = points[at - 1].devices, points[at].devices
    sentence = (
        f"these points are not one curve: between {before} and {behind} devices the cost of an item jumps by "
        f"{100 * (factor - 1):+.0f} %, as if another mechanism began"
    )
    kept = list(points[at:])
    if len(kept) < LEAST_POINTS:
        return kept, f"{sentence}; only {len(kept)} points lie behind it"
    return kept, f"{sentence}; only the {len(kept)} points behind it are used"


def have_crossed(points: Sequence[ScalingPoint]) -> bool:
    """Tell whether some point was measured on several nodes, or on an unknown number."""
    return any(point.nodes is None or point.nodes > 1 for point in points)


def devices_on_a_node(points: Sequence[ScalingPoint], devices_per_node: int | None) -> int | None:
    """Return the given number, else the largest that the points show; None if unknown."""
    shown = [math.ceil(point.devices / point.nodes) for point in points if point.nodes is not None]
    return devices_per_node or (max(shown) if len(shown) == len(points) else None)


def uncrossed_link(points: Sequence[ScalingPoint], devices: int, devices_per_node: int | None) -> str | None:
    """Return why these points can't predict so many devices, and which measurement would help; None if they can."""
    on_a_node = devices_on_a_node(points, devices_per_node)
    if have_crossed(points) or on_a_node is None or devices <= on_a_node:
        return None
    known = "" if devices_per_node else f" (if a node holds more than {on_a_node} devices, say --devices-per-node)"
    return (
        f"{devices} devices need several nodes, and all points were measured on one: no point has crossed that link. "
        f"Measure {2 * on_a_node} devices on 2 nodes{known}"
    )


def doubts(points: Sequence[ScalingPoint], expected: Sequence[Expected]) -> list[str]:
    """Return sentences about implausible points and wide intervals."""
    return [*_superlinear_doubts(points), *_outlier_doubts(points), *_width_doubts(expected)]


def _superlinear_doubts(points: Sequence[ScalingPoint]) -> list[str]:
    first = points[0]
    alone = first.throughput / first.devices
    beyond = [(point, point.throughput / point.devices / alone) for point in points[1:]]
    if len(beyond) > 1 and all(share > 1 + SUPERLINEAR for _, share in beyond):
        return [
            f"all others do more than perfect scaling from {first.devices} would give, up to "
            f"{show_percent(max(share for _, share in beyond))}. Is {show_number(first.throughput)} right?"
        ]
    return [
        f"{point.devices} devices do {show_percent(share)} of what perfect scaling from {first.devices} would give. "
        f"Is {show_number(point.throughput)} right, and of the same job?"
        for point, share in beyond
        if share > 1 + SUPERLINEAR
    ]


def _outlier_doubts(points: Sequence[ScalingPoint]) -> list[str]:
    """Report a point that is on no curve through the others; three points are too few for that."""
    if len(points) <= LEAST_POINTS:
        return []
    # An outlier distorts the fit of the others: it is the point without which these agree best.
    without = [[*points[:number], *points[number + 1 :]] for number in range(len(points))]
    point, others = min(zip(points, without, strict=True), key=lambda each: _unexplained_squares(each[1]))
    usual = min(rates_by_form(others, point.devices), key=lambda rate: abs(math.log(point.throughput / rate)))
    if abs(math.log(point.throughput / usual)) <= math.log1p(OFF_THE_CURVE):
        return []
    return [
        f"the point of {point.devices} devices fits no curve through the others: {show_number(point.throughput)}, "
        f"where these say about {show_number(usual)}"
    ]


def _unexplained_squares(points: Sequence[ScalingPoint]) -> float:
    """Return the residual squares of the best form."""
    return min(squares_by_form(*sizes_and_costs(points)))


def _width_doubts(expected: Sequence[Expected]) -> list[str]:
    wide = [each for each in expected if each.high - each.low > each.value]
    if not wide:
        return []
    sizes = ", ".join(str(each.devices) for each in wide)
    return [f"for {sizes} devices the interval is wider than the figure itself: these points don't tell"]


def rests_on_link(crossing: Crossing, sizes: Sequence[int]) -> list[str]:
    crossed = [size for size in sizes if crossing.crosses(size)]
    if not crossed:
        return []
    link, on_a_node = crossing.link, crossing.devices_per_node
    return [
        f"{', '.join(map(str, crossed))} devices rest on the given link ({show_bytes(link.bytes_per_step)} a step at "
        f"{link.gbit_s:g} Gbit/s between nodes of {on_a_node}), not on a measured crossing: a measurement of "
        f"{2 * on_a_node} devices on 2 nodes would do better."
    ]


def link_contradictions(link: Link, steps: Iterable[CrossedStep]) -> list[str]:
    """Report the first step that is shorter than its transfer; further ones follow from it."""
    for step in steps:
        transfer = transfer_seconds(link, step.nodes)
        if transfer > step.seconds:
            return [
                f"the given link and these figures can't both be right: between {step.nodes} nodes the transfer alone "
                f"takes {format_scaled(transfer, 's')} a step, but a whole step of {step.devices} devices "
                f"{format_scaled(step.seconds, 's')} ({step.origin})"
            ]
    return []
