"""What the rest of the engine knows of a network."""

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
    exact_halo: Zyx | None  # beyond this nothing counts; None: everything does
    least_halo: Zyx  # what a network without padding uses up
    bounded: bool  # the answer lies between 0 and 1
    block_dependent: str | None  # why the answer depends on how the volume is cut
    products_per_voxel: float  # multiply-adds, of a volume so large that its rim doesn't count

    def read_box(self, size: Zyx, halo: Zyx) -> Box:
        """What must be read for a block of this size, counted from its first voxel."""

    def products(self, size: Zyx, halo: Zyx) -> int:
        """Multiply-adds for one block."""

    def peak_bytes(self, size: Zyx, halo: Zyx) -> int:
        """The most that its maps take together, the block that was read included."""

    def run(self, block: Tensor, size: Zyx, halo: Zyx) -> Tensor:
        """`block` is what `read_box` says, with a batch of one before it."""

    def reference(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        """The same by the network as it was written, nothing folded or fused: what a backend must agree with."""

    def place(self, device: str) -> None:
        """Moves the weights."""

    def identity(self) -> str:
        """Changes with any weight and any layer."""
