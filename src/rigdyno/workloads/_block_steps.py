"""What one block of the volume takes: read, normalise, predict, encode. By the published recipe, or by our engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rigdyno.contracts import Place
from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.workloads._torch import is_host

if TYPE_CHECKING:
    from torch import nn

    from rigdyno.engines.blockwise.network.model import Model
    from rigdyno.workloads.unet3d_inference import Unet3dInference

PROGRAM_BYTES = 800_000_000  # beside the maps, where the engine chooses its blocks


@dataclass(frozen=True)
class Blocks:
    size: Zyx
    halo: Zyx
    read_voxels: int  # of a whole block, with all that is read around it
    predict: Callable[[Box], NDArray[np.uint8]]  # channels, z, y, x of the block


def whole_blocks(workload: Unet3dInference, place: Place) -> Blocks:
    """As published: the network over the block with its halo, of which the inner part is kept."""
    import torch

    from rigdyno.engines.blockwise.encoding import Encoding

    model, read, encoding = _module(workload).to(place.device), _reader(workload), Encoding("uint8", 0.0, 1.0)
    size, halo = workload.block_zyx, workload.halo_zyx
    assert size is not None, "the workload has seen to it"

    @torch.inference_mode()
    def predict(box: Box) -> NDArray[np.uint8]:
        """At the volume's end a block is as large as all others, and what lies outside isn't written."""
        needed = Box(box.start, _stop(box.start, size)).grown(halo)
        answer = model(torch.from_numpy(read(needed))[None].to(place.device))[0]
        inner = [slice(around, around + edge) for around, edge in zip(halo, box.shape, strict=True)]
        kept = (slice(None), *inner)
        return encoding.encode(answer[kept].cpu().numpy())

    return Blocks(size, halo, Box((0, 0, 0), size).grown(halo).voxels, predict)


def engine_blocks(workload: Unet3dInference, place: Place) -> Blocks:
    """As `rigdyno infer` does: layers fused, and nothing computed that the block doesn't need."""
    from rigdyno.engines.blockwise.choosing import made
    from rigdyno.engines.blockwise.encoding import Encoding
    from rigdyno.engines.blockwise.network.loading import model_of

    model, read, encoding = model_of(_module(workload), 1).model, _reader(workload), Encoding("uint8", 0.0, 1.0)
    halo = _at_least(model, workload.halo_zyx)
    size = _given(workload, model) or _chosen(workload, model, halo, place.device)
    backend = made("torch", model, place.device)

    def predict(box: Box) -> NDArray[np.uint8]:
        needed = model.read_box(box.shape, halo).moved(box.start)
        return encoding.encode(backend.predict(read(needed), box.shape, halo))

    return Blocks(size, halo, model.read_box(size, halo).voxels, predict)


def _stop(start: Zyx, size: Zyx) -> Zyx:
    z, y, x = map(sum, zip(start, size, strict=True))
    return z, y, x


def _module(workload: Unet3dInference) -> nn.Module:
    import torch

    from rigdyno.engines.blockwise.network.loading import SEED, fill, read_weights
    from rigdyno.engines.blockwise.network.unet import UNet3d

    torch.manual_seed(SEED)
    model = UNet3d(**workload.architecture.settings)
    if workload.weights:
        fill(model, read_weights(Path(workload.weights)).tensors, Path(workload.weights))
    return model.eval()


def _reader(workload: Unet3dInference) -> Callable[[Box], Any]:
    """Of any box: what lies outside is the volume, mirrored."""
    from rigdyno.engines.blockwise.normalising import normalisation
    from rigdyno.engines.blockwise.volumes.reflect import read_reflected
    from rigdyno.engines.segmentation.synthetic import Endless, Synthetic

    piece = Synthetic((40, 120, 120))
    raw = piece.both[0]
    volume = Endless(workload.volume_zyx, piece)
    figures = normalisation(f"{raw.mean()},{raw.std()}", volume)
    return lambda box: figures.apply(read_reflected(volume, box).values)


def _at_least(model: Model, halo: Zyx) -> Zyx:
    """Whole steps of its coarsest level: no less than what is asked for, nor than what it needs."""
    wanted = map(max, halo, model.least_halo)
    z, y, x = (-(-edge // step) * step for edge, step in zip(wanted, model.step, strict=True))
    return z, y, x


def _given(workload: Unet3dInference, model: Model) -> Zyx | None:
    from rigdyno.engines.blockwise.cutting import given_cut

    if workload.block_zyx is None:
        return None
    return given_cut(model, workload.volume_zyx, workload.block_zyx, workload.halo_zyx, alike=False).block


def _chosen(workload: Unet3dInference, model: Model, halo: Zyx, device: str) -> Zyx:
    from rigdyno.engines.blockwise.cutting import Buffers, best_cut
    from rigdyno.engines.blockwise.planning import MEMORY_SHARE

    buffers = Buffers(read_voxel=5, written_voxel=3 * 9, program=PROGRAM_BYTES)
    allowed = int(MEMORY_SHARE * _free_bytes(device))
    return best_cut(model, workload.volume_zyx, halo, allowed, buffers, alike=False).block


def _free_bytes(device: str) -> int:
    if is_host(device):
        from rigdyno.engines.blockwise.free_memory import free_bytes

        return free_bytes()
    import torch

    return int(torch.cuda.mem_get_info(device)[0])
