"""Which points lie on one curve, and how far it may be drawn: a link that nobody crossed can't be predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.forecast import LEAST_POINTS, by_form, sizes_and_costs, squares_by_form
from rigdyno.schema.scaling import Expected, Point
from rigdyno.units import show_number, show_percent

# The least jump of the cost of an item, and the least ratio of the squares that it explains to those that it leaves,
# each by its degrees of freedom: a larger jump needs less of a proof. Of smooth curves with 3 % noise, one in a hundred
# is taken for two.
LEVELS = ((0.15, 60.0), (0.30, 10.0))
_BENDING = 3  # parameters of the curve beside the jump

# Caches that fit at last, or noise, make a few percent; more than a device's own share is another measurement.
SUPERLINEAR = 0.05
# By which a point lies off what the others say. Published points scatter by 2 %; a bend behind the others costs 10 %.
OFF_THE_CURVE = 0.25


def jump(points: Sequence[Point]) -> tuple[int, float] | None:
    """Before which point the cost of an item jumps, and by which factor; None where one curve will do."""
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


def not_one_curve(points: Sequence[Point]) -> tuple[list[Point], str | None]:
    """The points behind the last jump, and what to say about it."""
    found = jump(points)
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


def have_crossed(points: Sequence[Point]) -> bool:
    """Whether some point lies on several nodes; where nobody says how many there were, one may."""
    return any(point.nodes is None or point.nodes > 1 for point in points)


def devices_on_a_node(points: Sequence[Point], devices_per_node: int | None) -> int | None:
    """What was said, else the most that the points show; None where neither tells."""
    shown = [math.ceil(point.devices / point.nodes) for point in points if point.nodes is not None]
    return devices_per_node or (max(shown) if len(shown) == len(points) else None)


def uncrossed_link(points: Sequence[Point], devices: int, devices_per_node: int | None) -> str | None:
    """Why so many devices can't be predicted from these points, and which measurement would allow it."""
    on_a_node = devices_on_a_node(points, devices_per_node)
    if have_crossed(points) or on_a_node is None or devices <= on_a_node:
        return None
    known = "" if devices_per_node else f" (if a node holds more than {on_a_node} devices, say --devices-per-node)"
    return (
        f"{devices} devices need several nodes, and all points were measured on one: no point has crossed that link. "
        f"Measure {2 * on_a_node} devices on 2 nodes{known}"
    )


def doubts(points: Sequence[Point], expected: Sequence[Expected]) -> list[str]:
    """What one should know of the points before one reads what follows from them."""
    return [*_superlinear(points), *_off_the_curve(points), *_too_wide(expected)]


def _superlinear(points: Sequence[Point]) -> list[str]:
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


def _off_the_curve(points: Sequence[Point]) -> list[str]:
    """A point that the others don't explain. Of three points, any two would explain anything."""
    if len(points) <= LEAST_POINTS:
        return []
    # One that is off spoils what its neighbours are held against: it is the one without which the others agree best.
    without = [[*points[:number], *points[number + 1 :]] for number in range(len(points))]
    point, others = min(zip(points, without, strict=True), key=lambda each: _left_over(each[1]))
    usual = min(by_form(others, point.devices), key=lambda rate: abs(math.log(point.throughput / rate)))
    if abs(math.log(point.throughput / usual)) <= math.log1p(OFF_THE_CURVE):
        return []
    return [
        f"the point of {point.devices} devices fits no curve through the others: {show_number(point.throughput)}, "
        f"where these say about {show_number(usual)}"
    ]


def _left_over(points: Sequence[Point]) -> float:
    """What the best form doesn't explain."""
    return min(squares_by_form(*sizes_and_costs(points)))


def _too_wide(expected: Sequence[Expected]) -> list[str]:
    wide = [each for each in expected if each.high - each.low > each.value]
    if not wide:
        return []
    sizes = ", ".join(str(each.devices) for each in wide)
    return [f"for {sizes} devices the interval is wider than the figure itself: these points don't tell"]
