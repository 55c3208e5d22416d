"""What an engine claims: an epsilon at one delta, or at several points of the curve that its accounting gives.

The same accounting that says 'epsilon 4.4 at delta 1e-5' also says 'epsilon 0.7 at delta 0.2'. The second is far easier
to refute: it is about events that happen in every fifth run, not once in a hundred thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from rigdyno.engines.dp.errors import BadSetting

Curve = Callable[[float], float]

CURVE_DELTAS = (0.01, 0.05, 0.2, 0.4, 0.6)


class Point(NamedTuple):
    """P(event with the canary) <= exp(epsilon) P(event without) + delta, and the other way round."""

    epsilon: float
    delta: float


def claimed_points(claimed: float | Curve, delta: float) -> list[Point]:
    """The first is the one at `delta`; of those with an epsilon of zero only that of the least delta says anything."""
    check_probability("delta", delta)
    if not callable(claimed):
        return [_checked(claimed, delta)]
    points = [_checked(claimed(each), each) for each in (delta, *CURVE_DELTAS)]
    nothing = [point for point in points[1:] if point.epsilon == 0]
    return [points[0], *(point for point in points[1:] if point.epsilon > 0), *nothing[:1]]


def _checked(epsilon: float, delta: float) -> Point:
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < math.inf:
        raise BadSetting(f"a claimed epsilon is a finite number, not negative; at delta {delta:g} it is {epsilon!r}")
    return Point(float(epsilon), delta)


def check_probability(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise BadSetting(f"a {name} lies from 0 to below 1, not at {value}")
