"""Predicts one block of a volume (read, normalise, predict, encode), as published or with the blockwise engine.

`BlockOrder` divides a random order of all blocks among the ranks, and checks that each voxel was written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rigdyno.contracts import WorkerPlace
from rigdyno.engines.blockwise.boxes import Box, Grid, Zyx, whole_box
from rigdyno.workloads.common.torch import is_host

if TYPE_CHECKING:
    from torch import nn

    from rigdyno.engines.blockwise.network.model import Model
    from rigdyno.workloads.unet3d_inference import Unet3dInference

SEED = 20_18

PROGRAM_BYTES = 800_000_000  # memory apart from the maps, assumed if the engine chooses its blocks


class BlockOrder:
    """Divides the blocks among n ranks: all ranks know the same random order, and each takes every n-th block of it.
    After the last block the order starts again."""

    def __init__(self, volume: Zyx, block: Zyx, place: WorkerPlace) -> None:
        self.grid = Grid(volume, block)
        self._order = np.random.default_rng([SEED, place.seed]).permutation(len(self.grid))
        self._rank, self._ranks = place.rank, place.world_size
        self._steps, self._written, self._fits = 0, list[Box](), True

    @property
    def steps(self) -> int:
        """Return the steps that each rank needs until all blocks are done."""
        return -(-len(self.grid) // self._ranks)

    def next(self) -> Box | None:
        """Return this rank's next block, or None if only other ranks have one left in this pass."""
        number = self._steps % self.steps * self._ranks + self._rank
        self._steps += 1
        return self.grid[int(self._order[number])] if number < len(self.grid) else None

    def record_written(self, box: Box, fits: bool) -> None:
        self._fits &= fits
        if self._steps <= self.steps:
            self._written.append(box)

    def is_correct(self) -> bool:
        """Return whether no voxel was written twice and, after a complete pass, none of this rank's blocks is
        missing."""
        written, twice = count_covered(self._written, self.grid.shape)
        return self._fits and twice == 0 and (self._steps < self.steps or written == self._share_voxels())

    def _share_voxels(self) -> int:
        mine = self._order[self._rank :: self._ranks]
        return sum(self.grid[int(number)].voxels for number in mine)


def count_covered(boxes: Iterable[Box], shape: Zyx) -> tuple[int, int]:
    """Count the voxels that the boxes cover, and those that several boxes cover. Voxels outside the volume count as
    covered several times."""
    every_box = list(boxes)
    inside = [box.within(whole_box(shape)) for box in every_box]
    outside = sum(box.voxels for box in every_box) - sum(box.voxels for box in inside)
    edges = [
        np.unique([0, length, *(at for box in inside for at in box.spans()[axis])]) for axis, length in enumerate(shape)
    ]
    counts = np.zeros([len(each) - 1 for each in edges], np.int32)
    for box in inside:
        spans = [np.searchsorted(each, ends) for each, ends in zip(edges, box.spans(), strict=True)]
        counts[tuple(slice(first, last) for first, last in spans)] += 1
    sizes = np.einsum("i,j,k->ijk", *(np.diff(each) for each in edges))
    return int(sizes[counts > 0].sum()), int(sizes[counts > 1].sum()) + outside


@dataclass(frozen=True)
class Blocks:
    size: Zyx
    halo: Zyx
    read_voxels: int  # voxels read for a full block, with its halo
    predict: Callable[[Box], NDArray[np.uint8]]  # returns the block as channels, z, y, x


def make_published_blocks(workload: Unet3dInference, place: WorkerPlace) -> Blocks:
    """Return blocks as published: the network runs over the block with its halo, and the inner part is kept."""
    import torch

    from rigdyno.engines.blockwise.encoding import Encoding

    model, read, encoding = (
        _build_network(workload).to(place.device),
        _make_reader(workload),
        Encoding("uint8", 0.0, 1.0),
    )
    size, halo = workload.block_zyx, workload.halo_zyx
    assert size is not None, "the workload refuses this"

    @torch.inference_mode()
    def predict(box: Box) -> NDArray[np.uint8]:
        """Predict a block. At the end of the volume a full block is computed, and voxels outside aren't written."""
        needed = Box(box.start, _end_of_block(box.start, size)).grown(halo)
        prediction = model(torch.from_numpy(read(needed))[None].to(place.device))[0]
        inner = [slice(around, around + edge) for around, edge in zip(halo, box.shape, strict=True)]
        kept = (slice(None), *inner)
        return encoding.encode(prediction[kept].cpu().numpy())

    return Blocks(size, halo, Box((0, 0, 0), size).grown(halo).voxels, predict)


def make_engine_blocks(workload: Unet3dInference, place: WorkerPlace) -> Blocks:
    """Return blocks as in `rigdyno infer`: layers are fused, and nothing is computed that the block doesn't need."""
    from rigdyno.engines.blockwise.backend_choice import make_backend
    from rigdyno.engines.blockwise.encoding import Encoding
    from rigdyno.engines.blockwise.network.loading import make_model

    model, read = make_model(_build_network(workload), 1).model, _make_reader(workload)
    encoding = Encoding("uint8", 0.0, 1.0)
    halo = _round_up_halo(model, workload.halo_zyx)
    size = _given_block(workload, model) or _choose_block(workload, model, halo, place.device)
    backend = make_backend("torch", model, place.device)

    def predict(box: Box) -> NDArray[np.uint8]:
        needed = model.read_box(box.shape, halo).moved(box.start)
        return encoding.encode(backend.predict(read(needed), box.shape, halo))

    return Blocks(size, halo, model.read_box(size, halo).voxels, predict)


def _end_of_block(start: Zyx, size: Zyx) -> Zyx:
    z, y, x = map(sum, zip(start, size, strict=True))
    return z, y, x


def _build_network(workload: Unet3dInference) -> nn.Module:
    import torch

    from rigdyno.engines.blockwise.network.loading import SEED, load_weights_into, read_weights
    from rigdyno.engines.blockwise.network.unet import UNet3d

    torch.manual_seed(SEED)
    model = UNet3d(**workload.architecture.settings)
    if workload.weights:
        load_weights_into(model, read_weights(Path(workload.weights)).tensors, Path(workload.weights))
    return model.eval()


def _make_reader(workload: Unet3dInference) -> Callable[[Box], Any]:
    """Return a function that reads any box; outside, the volume is mirrored."""
    from rigdyno.engines.blockwise.normalising import find_normalisation
    from rigdyno.engines.blockwise.volumes.reading import read_reflected
    from rigdyno.engines.segmentation.synthetic import Endless, Synthetic

    piece = Synthetic((40, 120, 120))
    raw = piece.both[0]
    volume = Endless(workload.volume_zyx, piece)
    figures = find_normalisation(f"{raw.mean()},{raw.std()}", volume)
    return lambda box: figures.apply(read_reflected(volume, box).values)


def _round_up_halo(model: Model, halo: Zyx) -> Zyx:
    """Round the halo up to steps of the coarsest level, and to at least what the model needs."""
    wanted = map(max, halo, model.least_halo)
    z, y, x = (-(-edge // step) * step for edge, step in zip(wanted, model.step, strict=True))
    return z, y, x


def _given_block(workload: Unet3dInference, model: Model) -> Zyx | None:
    from rigdyno.engines.blockwise.blocks import make_given_cut

    if workload.block_zyx is None:
        return None
    return make_given_cut(model, workload.volume_zyx, workload.block_zyx, workload.halo_zyx, alike=False).block


def _choose_block(workload: Unet3dInference, model: Model, halo: Zyx, device: str) -> Zyx:
    from rigdyno.engines.blockwise.blocks import Buffers, find_best_cut
    from rigdyno.engines.blockwise.planning import MEMORY_SHARE

    buffers = Buffers(read_voxel=5, written_voxel=3 * 9, program=PROGRAM_BYTES)
    allowed = int(MEMORY_SHARE * _free_bytes(device))
    return find_best_cut(model, workload.volume_zyx, halo, allowed, buffers, alike=False).block


def _free_bytes(device: str) -> int:
    if is_host(device):
        from rigdyno.base.free_memory import free_bytes

        return free_bytes()
    import torch

    return int(torch.cuda.mem_get_info(device)[0])
