"""Where there is something to see: blocks outside are never read, voxels outside are stored as 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rigdyno.engines.blockwise.boxes import Box, Zyx, whole, zyx
from rigdyno.engines.blockwise.errors import BadSetting
from rigdyno.engines.blockwise.ports import Volume


@dataclass(frozen=True)
class Mask:
    """May be coarser than the volume by whole factors: one of its voxels then stands for a box of the volume's."""

    volume: Volume
    factor: Zyx

    def remark(self) -> str:
        return f"a voxel of the mask stands for {' x '.join(map(str, self.factor))} of the volume"

    def inside(self, box: Box) -> NDArray[np.bool_]:
        """For each voxel of a box of the volume."""
        start = zyx(begin // factor for begin, factor in zip(box.start, self.factor, strict=True))
        stop = zyx(-(-end // factor) for end, factor in zip(box.stop, self.factor, strict=True))
        coarse = Box(start, stop).within(whole(self.volume.shape))
        values: NDArray[np.bool_] = (self.volume.read(coarse).values != 0).max(axis=0)
        for axis, factor in enumerate(self.factor):
            values = values.repeat(factor, axis)
        offset = zyx(-begin * factor for begin, factor in zip(start, self.factor, strict=True))
        inside: NDArray[np.bool_] = values[box.moved(offset).slices()]
        return inside


def mask_of(mask: Volume, volume: Volume) -> Mask:
    factors = [_factor(axis, mask, volume) for axis in range(3)]
    if mask.channels != 1 or None in factors:
        raise BadSetting(
            f"the mask {mask.location} is {mask.shape} with {mask.channels} channels; it must have one channel, "
            f"and be {volume.shape}, or coarser by whole factors"
        )
    return Mask(mask, zyx(factor or 1 for factor in factors))


def _factor(axis: int, mask: Volume, volume: Volume) -> int | None:
    """Several may give the same length: 16 voxels stand for 1000 by 63 to 66 each. Voxel sizes tell which it is.

    Where there are none, a power of two is what volumes are mostly made coarser by.
    """
    length, own = volume.shape[axis], mask.shape[axis]
    possible = range(-(-length // own), (length - 1) // (own - 1) + 1 if own > 1 else length + 1)
    ratio = mask.voxel_size.zyx[axis] / volume.voxel_size.zyx[axis]
    if mask.voxel_size.unit == volume.voxel_size.unit and round(ratio) in possible:
        return round(ratio)
    return next((factor for factor in possible if factor.bit_count() == 1), possible[0] if possible else None)
