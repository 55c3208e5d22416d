"""The rate over time, in slices of equal length: what a plot of one cell shows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.streams import Rows, items, row_seconds
from rigdyno.units import NS_PER_S

SLICES = 60  # as many as a terminal's plot has columns for, and enough to see when a rate fell


class RateOverTime(NamedTuple):
    """One entry a slice that holds a step; a slice that a long step skips has none."""

    seconds: NDArray[np.float64]  # middle of the slice's steps, since the stream began
    rates: NDArray[np.float64]  # items/s


def rate_over_time(rows: Rows, slices: int = SLICES) -> RateOverTime:
    """Sum of items over sum of seconds, slice by slice; a step belongs to the slice in which its middle lies."""
    if len(rows) == 0:
        return RateOverTime(np.empty(0), np.empty(0))
    began = rows["start_ns"][0]
    middles = ((rows["start_ns"] - began) + (rows["end_ns"] - began)) / (2 * NS_PER_S)
    whole = (rows["end_ns"][-1] - began) / NS_PER_S
    index = np.minimum((middles * (slices / whole)).astype(int), slices - 1)
    counts = np.bincount(index, minlength=slices)
    full = counts > 0
    middle = np.bincount(index, middles, slices)[full] / counts[full]
    rates = np.bincount(index, items(rows), slices)[full] / np.bincount(index, row_seconds(rows), slices)[full]
    return RateOverTime(middle, rates)
