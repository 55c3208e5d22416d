"""Fewer values for a drawing, such that no peak is lost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BUCKETS = 300  # twice as many values: more than a drawing has pixels for
_LONG_PAUSE = 4.0  # times the usual time between two samples: some are missing


class Thinned(NamedTuple):
    at: NDArray[np.float64]
    values: NDArray[np.float64]  # NaN: a gap


def thinned(at: NDArray[np.float64], values: NDArray[np.float64], buckets: int = BUCKETS) -> Thinned:
    """Of each stretch of time its lowest and its highest value, where they were. Few values stay as they are.

    A mean would hide the peaks that somebody looks for. Where samples are missing there is a gap: either they couldn't
    be read (NaN), or nobody took any for much longer than usual."""
    at, values = _with_gaps(at, values)
    if len(at) <= 2 * buckets:
        return Thinned(at, values)
    index = np.minimum(((at - at[0]) * (buckets / max(at[-1] - at[0], 1e-300))).astype(np.int64), buckets - 1)
    first_of = np.flatnonzero(np.diff(index, prepend=-1))
    kept = [
        position
        for start, end in zip(first_of, [*first_of[1:], len(at)], strict=True)
        for position in _extremes(values[start:end], int(start))
    ]
    return Thinned(at[kept], values[kept])


def _extremes(values: NDArray[np.float64], start: int) -> list[int]:
    """Positions of the lowest and the highest, in their order, and of the first gap."""
    known = np.isfinite(values)
    gap = [start + int(np.argmin(known))] if not known.all() else []
    if not known.any():
        return gap
    lowest, highest = int(np.nanargmin(values)), int(np.nanargmax(values))
    return sorted({start + lowest, start + highest, *gap})


def _with_gaps(at: NDArray[np.float64], values: NDArray[np.float64]) -> Thinned:
    """A NaN in the middle of each pause."""
    values = np.where(np.isfinite(values), values, np.nan)
    if len(at) < 3:
        return Thinned(at, values)
    steps = np.diff(at)
    pauses = np.flatnonzero(steps > _LONG_PAUSE * np.median(steps))
    middles = (at[pauses] + at[pauses + 1]) / 2
    return Thinned(np.insert(at, pauses + 1, middles), np.insert(values, pauses + 1, np.nan))
