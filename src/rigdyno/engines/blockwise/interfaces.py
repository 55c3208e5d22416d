"""The interface of a volume that can be read, with the types that its readers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rigdyno.engines.blockwise.boxes import Box, Zyx

Array = NDArray[Any]


@dataclass(frozen=True)
class Reading:
    values: Array  # channels, z, y, x, in the volume's own type
    missing: bool = False  # True if a chunk was never stored and was read as the fill value


@dataclass(frozen=True)
class VoxelSize:
    zyx: tuple[float, float, float] = (1.0, 1.0, 1.0)
    unit: str | None = None


class Volume(Protocol):
    """One image that can be read, with its channels first."""

    location: str  # path or URL as the user wrote it, for messages
    shape: Zyx
    channels: int
    dtype: np.dtype[Any]
    chunk: Zyx
    voxel_size: VoxelSize

    def read(self, box: Box) -> Reading:
        """Read a box that is inside the volume; raise BadRegion if a chunk can't be read.

        Several threads call this at the same time.
        """

    def identity(self) -> str:
        """Return a hash of the array's location, shape, type and metadata, to recognise it when a run is resumed."""
