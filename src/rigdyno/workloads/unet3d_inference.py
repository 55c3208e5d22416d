"""Runs the 3D U-Net over a large volume, block by block: the inference half of the volume benchmark.

A step is one block. All ranks go through the blocks in the same random order, so any number of steps is a fair sample
of the volume, and all steps together cover each voxel once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rigdyno.base.errors import BadValue, MissingExtra
from rigdyno.contracts import CannotRun, Options, Requirement, Steps, WorkerPlace, Workload
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import IMPORT_BYTES, IMPORT_SECONDS, is_host
from rigdyno.workloads.networks import unet

if TYPE_CHECKING:
    from rigdyno.engines.blockwise.boxes import Box
    from rigdyno.workloads.common.blocks import BlockOrder

Scheme = Literal["published", "own"]

VOLUME: unet.Zyx = (200, 3072, 3072)

BLOCK: unet.Zyx = (55, 575, 575)  # published output block; 65 x 675 x 675 with its halo

HALO: unet.Zyx = (5, 50, 50)

_FLOAT32_BYTES = 4

_MAPS_SHARE = 0.4  # share of the activations that training keeps: inference frees each map after its last use

_BIGGEST_BLOCK = 60e6  # voxels assumed while planning if the engine chooses the block


@dataclass(frozen=True, kw_only=True)
class Unet3dInference(Workload):
    """Runs a 3D U-Net over a synthetic volume of 1.9 gigavoxel."""

    unit: ClassVar[str] = "voxel"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("numpy"))
    small: ClassVar[Options] = {"features": "4,8", "volume": "16x60x60", "block": "6x16x16", "halo": "1x1x1"}

    scheme: Scheme = "published"  # published: fixed blocks, plain network; own: the engine of `rigdyno infer`
    network: Literal["published", "isotropic"] = "published"
    features: str = ""  # feature maps per level; empty: the network's default
    volume: str = unet.format_shape(VOLUME)
    block: str = unet.format_shape(BLOCK)  # voxels that a block writes; empty (scheme own): the engine chooses
    halo: str = unet.format_shape(HALO)  # voxels that are read around a block
    weights: str = ""  # file from `rigdyno run unet3d --save`; empty: random weights, which take as long

    def __post_init__(self) -> None:
        super().__post_init__()
        unet.parse_numbers("volume", self.volume, 3)
        if self.scheme == "published":
            self._require_divisible()

    def _require_divisible(self) -> None:
        if not self.block:
            raise BadValue("the published scheme needs a block size: set block, or scheme=own", key="set.block")
        steps = self.architecture.multiples
        if any(edge % step for edge, step in zip(self._read_shape(), steps, strict=True)):
            wanted, got = unet.format_shape(steps), unet.format_shape(self._read_shape())
            raise BadValue(f"block plus halo must be a multiple of {wanted}, not {got}", key="set.block")

    @property
    def architecture(self) -> unet.Architecture:
        return unet.find_architecture(self.network, self.features)

    @property
    def volume_zyx(self) -> unet.Zyx:
        z, y, x = unet.parse_numbers("volume", self.volume, 3)
        return z, y, x

    @property
    def block_zyx(self) -> unet.Zyx | None:
        if not self.block:
            return None
        z, y, x = unet.parse_numbers("block", self.block, 3)
        return z, y, x

    @property
    def halo_zyx(self) -> unet.Zyx:
        try:
            z, y, x = (int(part) for part in self.halo.replace("x", ",").split(","))
        except ValueError:
            raise BadValue(f"halo takes 3 whole numbers such as 5x50x50, not '{self.halo}'", key="set.halo") from None
        if min(z, y, x) < 0:
            raise BadValue(f"halo can't be negative: {self.halo}", key="set.halo")
        return z, y, x

    def _read_shape(self) -> unet.Zyx:
        block = self.block_zyx or VOLUME
        z, y, x = (edge + 2 * around for edge, around in zip(block, self.halo_zyx, strict=True))
        return z, y, x

    def refuses(self, system: System, device: str) -> str | None:
        if self.weights and not Path(self.weights).is_file():
            return f"there is no file {self.weights} to load weights from"
        _ = self.halo_zyx, self.block_zyx
        return None

    @property
    def _computed_voxels(self) -> float:
        """Return the voxels of a block with its halo."""
        return float(prod(self._read_shape())) if self.block else _BIGGEST_BLOCK

    def memory_bytes(self, system: System) -> int | None:
        maps = _MAPS_SHARE * self.architecture.kept_bytes_per_voxel() * self._computed_voxels
        weights = 2 * _FLOAT32_BYTES * self.architecture.parameters()
        return IMPORT_BYTES + weights + int(maps) if self.block else None

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 6.0

    def step_seconds(self, device: str) -> float | None:
        flop = 2 * self.architecture.products_per_voxel() * self._computed_voxels
        return min(flop / (90e9 if is_host(device) else 5e12), 500.0)

    def build(self, place: WorkerPlace) -> Steps:
        from rigdyno.engines.blockwise.errors import BlockwiseError
        from rigdyno.workloads.common.blocks import BlockOrder, make_engine_blocks, make_published_blocks

        make = make_published_blocks if self.scheme == "published" else make_engine_blocks
        try:
            blocks = make(self, place)
        except (BlockwiseError, MissingExtra) as error:
            raise CannotRun(str(error)) from error
        order = BlockOrder(self.volume_zyx, blocks.size, place)
        folder = tempfile.TemporaryDirectory(prefix="rigdyno-volume-")
        return Steps(
            kinds={"step": _make_step(order, blocks.predict, Path(folder.name))},
            items_per_step=float(prod(blocks.size)),
            per_item={"read_voxel": blocks.read_voxels / prod(blocks.size)},
            settled={
                "block": unet.format_shape(blocks.size),
                "halo": unet.format_shape(blocks.halo),
                "blocks": len(order.grid),
                "volume": self.volume,
            },
            notes=(
                "a synthetic volume, made in memory; blocks are read, predicted and written one after the other",
                *(() if self.weights else ("random weights: they take as long as trained ones",)),
            ),
            check=_make_check(order, folder),
        )


def _make_step(order: BlockOrder, predict: Callable[[Box], Any], folder: Path) -> Callable[[], float]:
    import numpy as np

    def step() -> float:
        box = order.next()
        if box is None:  # only other ranks have a block left
            return 0.0
        prediction = predict(box)
        np.save(folder / "block.npy", prediction)
        order.record_written(box, bool(prediction.shape[1:] == box.shape))
        return float(box.voxels)

    return step


def _make_check(order: BlockOrder, folder: tempfile.TemporaryDirectory[str]) -> Callable[[], bool]:
    def check() -> bool:
        folder.cleanup()
        return order.is_correct()

    return check
