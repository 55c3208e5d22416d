"""Boxes that reach outside of the volume: what lies there is the volume, mirrored at its faces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.ports import Reading, Volume


def read_reflected(volume: Volume, box: Box) -> Reading:
    """As NumPy's `reflect`, which doesn't repeat the voxel at the face; each voxel is read once, for any reach."""
    axes = [_mirrored(*ends) for ends in zip(box.start, box.stop, volume.shape, strict=True)]
    z, y, x = ((int(places.min()), int(places.max()) + 1) for places in axes)
    needed = Box((z[0], y[0], x[0]), (z[1], y[1], x[1]))
    reading = volume.read(needed)
    if needed == box:
        return reading
    values = reading.values
    for number, (axis, start, length) in enumerate(zip(axes, needed.start, needed.shape, strict=True)):
        inside = axis - start
        if not np.array_equal(inside, np.arange(length)):
            values = np.take(values, inside, axis=1 + number)
    return Reading(values, reading.missing)


def _mirrored(start: int, stop: int, length: int) -> NDArray[np.int64]:
    """For each place along an axis the one inside of the volume that it shows."""
    places = np.arange(start, stop, dtype=np.int64)
    if length == 1:
        return np.zeros_like(places)
    period = 2 * (length - 1)
    places %= period
    return np.minimum(places, period - places)
