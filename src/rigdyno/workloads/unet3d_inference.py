"""The 3D U-Net over a large volume, block by block: the inference half of the volume benchmark.

A step is one block of a random order of all blocks, the same order on every rank: any number of steps is a fair sample
of the whole volume, and all of them are the whole volume, each voxel once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rigdyno.contracts import CannotRun, Options, Place, Requirement, Steps
from rigdyno.errors import BadValue
from rigdyno.schema.system import System
from rigdyno.workloads import _unet
from rigdyno.workloads._options import one_of, text
from rigdyno.workloads._torch import IMPORT_BYTES, IMPORT_SECONDS, is_host

if TYPE_CHECKING:
    from rigdyno.engines.blockwise.boxes import Box
    from rigdyno.workloads._block_order import Order

Scheme = Literal["published", "own"]

VOLUME: _unet.Zyx = (200, 3072, 3072)
BLOCK: _unet.Zyx = (55, 575, 575)  # of the published output; with its halo it is 65 x 675 x 675
HALO: _unet.Zyx = (5, 50, 50)
_FLOAT32_BYTES = 4
_MAPS_SHARE = 0.4  # of what training keeps: maps are given back as soon as nobody needs them
_BIGGEST_BLOCK = 60e6  # voxels, where the engine chooses: to plan by


@dataclass(frozen=True, kw_only=True)
class Unet3dInference:
    """Runs a 3D U-Net over a synthetic volume of 1.9 gigavoxel."""

    unit: ClassVar[str] = "voxel"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("numpy"))
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = False
    small: ClassVar[Options] = {"features": "4,8", "volume": "16x60x60", "block": "6x16x16", "halo": "1x1x1"}

    scheme: Scheme = "published"  # its blocks with the network as it is, or the engine of `rigdyno infer`
    network: Literal["published", "isotropic"] = "published"
    features: str = ""  # maps by level; empty: the network's own
    volume: str = _unet.by(VOLUME)
    block: str = _unet.by(BLOCK)  # voxels that a block writes; empty: as the engine chooses, for its own scheme
    halo: str = _unet.by(HALO)  # voxels that are read around it
    weights: str = ""  # of `rigdyno run unet3d --save`; empty: random ones, which take as long

    def __post_init__(self) -> None:
        one_of("scheme", self.scheme, get_args(Scheme))
        one_of("network", self.network, tuple(_unet.ARCHITECTURES))
        for name in ("features", "volume", "block", "halo", "weights"):
            text(name, getattr(self, name))
        _unet.numbers("volume", self.volume, 3)
        if self.scheme == "published":
            self._require_divisible()

    def _require_divisible(self) -> None:
        if not self.block:
            raise BadValue("the published scheme has given blocks: set block, or scheme=own", key="set.block")
        steps = self.architecture.multiples
        if any(edge % step for edge, step in zip(self._read_shape(), steps, strict=True)):
            raise BadValue(
                f"block: with its halo it must be multiples of {_unet.by(steps)}, not {_unet.by(self._read_shape())}",
                key="set.block",
            )

    @property
    def architecture(self) -> _unet.Architecture:
        return _unet.architecture(self.network, self.features)

    @property
    def volume_zyx(self) -> _unet.Zyx:
        z, y, x = _unet.numbers("volume", self.volume, 3)
        return z, y, x

    @property
    def block_zyx(self) -> _unet.Zyx | None:
        if not self.block:
            return None
        z, y, x = _unet.numbers("block", self.block, 3)
        return z, y, x

    @property
    def halo_zyx(self) -> _unet.Zyx:
        try:
            z, y, x = (int(part) for part in self.halo.replace("x", ",").split(","))
        except ValueError:
            raise BadValue(f"halo takes 3 whole numbers such as 5x50x50, not '{self.halo}'", key="set.halo") from None
        if min(z, y, x) < 0:
            raise BadValue(f"halo can't be less than nothing: {self.halo}", key="set.halo")
        return z, y, x

    def _read_shape(self) -> _unet.Zyx:
        block = self.block_zyx or VOLUME
        z, y, x = (edge + 2 * around for edge, around in zip(block, self.halo_zyx, strict=True))
        return z, y, x

    def refuses(self, system: System, device: str) -> str | None:
        if self.weights and not Path(self.weights).is_file():
            return f"there is no file {self.weights} to load weights from"
        _ = self.halo_zyx, self.block_zyx
        return None

    def traps(self) -> tuple[str, ...]:
        return ()

    @property
    def _computed(self) -> float:
        """Voxels of a block with its halo."""
        return float(prod(self._read_shape())) if self.block else _BIGGEST_BLOCK

    def memory_bytes(self, system: System) -> int | None:
        maps = _MAPS_SHARE * self.architecture.kept_bytes_per_voxel() * self._computed
        weights = 2 * _FLOAT32_BYTES * self.architecture.parameters()
        return IMPORT_BYTES + weights + int(maps) if self.block else None

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 6.0

    def step_seconds(self, device: str) -> float | None:
        flop = 2 * self.architecture.products_per_voxel() * self._computed
        return min(flop / (90e9 if is_host(device) else 5e12), 500.0)

    def build(self, place: Place) -> Steps:
        from rigdyno.engines.blockwise.errors import BlockwiseError
        from rigdyno.workloads._block_order import Order
        from rigdyno.workloads._block_steps import engine_blocks, whole_blocks

        make = whole_blocks if self.scheme == "published" else engine_blocks
        try:
            blocks = make(self, place)
        except BlockwiseError as error:
            raise CannotRun(str(error)) from error
        order = Order(self.volume_zyx, blocks.size, place)
        folder = tempfile.TemporaryDirectory(prefix="rigdyno-volume-")
        return Steps(
            kinds={"step": _step(order, blocks.predict, Path(folder.name))},
            items_per_step=float(prod(blocks.size)),
            per_item={"read_voxel": blocks.read_voxels / prod(blocks.size)},
            settled={
                "block": _unet.by(blocks.size),
                "halo": _unet.by(blocks.halo),
                "blocks": len(order.grid),
                "volume": self.volume,
            },
            notes=(
                "a synthetic volume that is made in memory; blocks are read, predicted and written one after the other",
                *(() if self.weights else ("random weights: they take as long as trained ones",)),
            ),
            check=_ending(order, folder),
        )


def _step(order: Order, predict: Callable[[Box], Any], folder: Path) -> Callable[[], float]:
    import numpy as np

    def step() -> float:
        box = order.next()
        if box is None:  # the others' last ones
            return 0.0
        answer = predict(box)
        np.save(folder / "block.npy", answer)
        order.written(box, bool(answer.shape[1:] == box.shape))
        return float(box.voxels)

    return step


def _ending(order: Order, folder: tempfile.TemporaryDirectory[str]) -> Callable[[], bool]:
    def check() -> bool:
        folder.cleanup()
        return order.is_right()

    return check
