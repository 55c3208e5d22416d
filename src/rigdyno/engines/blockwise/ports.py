"""What the pipeline asks of those around it; each can be exchanged for another."""

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
    missing: bool = False  # a chunk was never stored, and was read as the fill value


@dataclass(frozen=True)
class VoxelSize:
    zyx: tuple[float, float, float] = (1.0, 1.0, 1.0)
    unit: str | None = None


class Volume(Protocol):
    """What is read: one image, with its channels first."""

    location: str  # as the user wrote it, for messages
    shape: Zyx
    channels: int
    dtype: np.dtype[Any]
    chunk: Zyx
    voxel_size: VoxelSize

    def read(self, box: Box) -> Reading:
        """`box` lies inside of the volume. A chunk that can't be read raises BadRegion. Called from several threads."""

    def identity(self) -> str:
        """Changes if what was opened is another array than before: its place, shape, type and metadata."""
