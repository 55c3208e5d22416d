"""Ratios of two estimates, with their intervals: speedup, efficiency, and the share of a limit.

The interval of a ratio reaches from the lowest to the highest value that the intervals of both estimates allow. It is
wider than a 95 % interval by an unknown amount, so it has no confidence.
"""

from __future__ import annotations

from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.view import RatioEntry

METHOD = "the worst of both intervals"


def ratio(above: Estimate, below: Estimate, *, n: int = 1) -> Estimate:
    """Return `above` divided by `below`; it has an interval where both have one. `n`: the processes it rests on."""
    low, high = None, None
    if above.interval is not None and below.interval is not None:
        low, high = above.interval[0] / below.interval[1], above.interval[1] / below.interval[0]
    return Estimate(value=above.value / below.value, low=low, high=high, n=n, unit="x", method=METHOD)


def speedup(rate: Estimate | Missing, one: Estimate | Missing | None, *, n: int, reason: str) -> Estimate | Missing:
    """Return how many times the rate of one device this rate is.

    `reason`: what to say if one device has no rate, or one whose interval reaches down to zero.
    """
    if isinstance(rate, Missing):
        return rate
    if not isinstance(one, Estimate) or one.ends[0] <= 0:
        return Missing(reason=reason)
    return ratio(rate, one, n=n)


def efficiency(speedup: Estimate, devices: int, of: str = "perfect scaling") -> RatioEntry:
    """Return the speedup as a share of the number of devices."""
    return share(speedup.scaled(1 / devices, "x"), of)


def share(ratio: Estimate, of: str) -> RatioEntry:
    """Return a ratio as a table shows the share of something."""
    return RatioEntry(value=ratio.value, low=ratio.low, high=ratio.high, of=of)
