"""The interface of a network that predicts blocks."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rigdyno.engines.blockwise.boxes import Box, Zyx

Floats = NDArray[np.float32]


class Model(Protocol):
    channels_in: int
    channels_out: int
    step: Zyx  # blocks begin at multiples of this
    exact_halo: Zyx | None  # voxels farther away have no influence; None if the whole block has
    least_halo: Zyx  # voxels that a network without padding loses at each side
    bounded: bool  # True if the output is between 0 and 1
    block_dependent: str | None  # why the output depends on how the volume is cut; None if it doesn't
    products_per_voxel: float  # multiply-adds, for a volume so large that its border doesn't matter

    def read_box(self, size: Zyx, halo: Zyx) -> Box:
        """Return the box that must be read for a block of this size, relative to the block's first voxel."""

    def products(self, size: Zyx, halo: Zyx) -> int:
        """Return the multiply-adds for one block."""

    def peak_bytes(self, size: Zyx, halo: Zyx) -> int:
        """Return the peak memory of all maps together, including the block that was read."""

    def run(self, block: Tensor, size: Zyx, halo: Zyx) -> Tensor:
        """Predict one block from the voxels in `read_box`, with a batch dimension of one."""

    def predict_reference(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        """Predict the same with the original network, nothing folded or fused; backends are compared with it."""

    def move_to(self, device: str) -> None:
        """Move the weights to a device."""

    def identity(self) -> str:
        """Return a hash of all weights and layers."""
