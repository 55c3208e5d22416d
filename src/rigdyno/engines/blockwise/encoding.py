"""Convert the network's floats to the stored type, and read the mask that says where to predict.

Blocks outside the mask are never read; voxels outside the mask are stored as 0.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rigdyno.engines.blockwise.backends import Floats
from rigdyno.engines.blockwise.boxes import Box, Zyx, whole_box, zyx
from rigdyno.engines.blockwise.errors import BadSetting
from rigdyno.engines.blockwise.interfaces import Array, Volume

TYPES = ("uint8", "float16")


@dataclass
class Encoding:
    """Conversion to uint8 or float16 that counts clipped values and NaNs.

    uint8: `low` is stored as 0 and `high` as 255; values outside are clipped, NaN becomes 0.
    float16: values out of its range are clipped, NaN is kept.
    """

    dtype: str
    low: float = 0.0
    high: float = 1.0
    clipped: int = field(default=0, init=False)
    not_numbers: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in TYPES:
            raise BadSetting(f"no output type named '{self.dtype}'; there are {', '.join(TYPES)}")
        if not (self.low < self.high and np.isfinite([self.low, self.high, self.high - self.low]).all()):
            raise BadSetting(f"the output's range must go up, not from {self.low:g} to {self.high:g}")

    def encode(self, values: Floats) -> Array:
        return self._encode_float16(values) if self.dtype == "float16" else self._encode_uint8(values)

    def _encode_float16(self, values: Floats) -> Array:
        largest = float(np.finfo(np.float16).max)
        self._count(int((np.abs(values) > largest).sum()), int(np.isnan(values).sum()))
        halves: Array = np.clip(values, -largest, largest).astype(np.float16)
        return halves

    def _encode_uint8(self, values: Floats) -> Array:
        scaled = (values - np.float32(self.low)) * np.float32(255.0 / (self.high - self.low))
        nan = np.isnan(scaled)
        self._count(int(((scaled < -0.5) | (scaled > 255.5)).sum()), int(nan.sum()))
        np.rint(scaled, out=scaled)
        np.clip(scaled, 0.0, 255.0, out=scaled)
        scaled[nan] = 0.0  # converting NaN to an integer is undefined
        stored: Array = scaled.astype(np.uint8)
        return stored

    def _count(self, clipped: int, not_numbers: int) -> None:
        with self._lock:
            self.clipped += clipped
            self.not_numbers += not_numbers


@dataclass(frozen=True)
class Mask:
    """A volume whose nonzero voxels mark where to predict; it may be coarser by whole factors."""

    volume: Volume
    factor: Zyx

    def describe(self) -> str:
        return f"a voxel of the mask stands for {' x '.join(map(str, self.factor))} of the volume"

    def read(self, box: Box) -> NDArray[np.bool_]:
        """Return, for each voxel of a box of the volume, whether the mask is set."""
        start = zyx(begin // factor for begin, factor in zip(box.start, self.factor, strict=True))
        stop = zyx(-(-end // factor) for end, factor in zip(box.stop, self.factor, strict=True))
        coarse = Box(start, stop).within(whole_box(self.volume.shape))
        values: NDArray[np.bool_] = (self.volume.read(coarse).values != 0).max(axis=0)
        for axis, factor in enumerate(self.factor):
            values = values.repeat(factor, axis)
        offset = zyx(-begin * factor for begin, factor in zip(start, self.factor, strict=True))
        inside: NDArray[np.bool_] = values[box.moved(offset).slices()]
        return inside


def make_mask(mask: Volume, volume: Volume) -> Mask:
    factors = [_find_factor(axis, mask, volume) for axis in range(3)]
    if mask.channels != 1 or None in factors:
        raise BadSetting(
            f"the mask {mask.location} is {mask.shape} with {mask.channels} channels; it must have one channel, "
            f"and be {volume.shape}, or coarser by whole factors"
        )
    return Mask(mask, zyx(factor or 1 for factor in factors))


def _find_factor(axis: int, mask: Volume, volume: Volume) -> int | None:
    """Return how many voxels of the volume one voxel of the mask stands for, or None if no whole number fits.

    Several factors may fit: 16 voxels cover 1000 with 63 to 66 each. The ratio of the voxel sizes decides. Without
    voxel sizes take a power of two, which is how volumes are usually downsampled.
    """
    length, own = volume.shape[axis], mask.shape[axis]
    possible = range(-(-length // own), (length - 1) // (own - 1) + 1 if own > 1 else length + 1)
    ratio = mask.voxel_size.zyx[axis] / volume.voxel_size.zyx[axis]
    if mask.voxel_size.unit == volume.voxel_size.unit and round(ratio) in possible:
        return round(ratio)
    return next((factor for factor in possible if factor.bit_count() == 1), possible[0] if possible else None)
