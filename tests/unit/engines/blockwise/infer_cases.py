"""Exported networks, runs whose floats are kept, and predictions of a whole volume to compare them with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from rigdyno.engines.blockwise import Inference, Job
from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.engines.blockwise.interfaces import Reading, VoxelSize
from rigdyno.engines.blockwise.volumes.ome_zarr_output import OmeZarrOutput


@contextmanager
def single_thread() -> Iterator[None]:
    """Use one thread in a fixture of wider scope; the fixture `one_thread` is for single tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def export_network(file: Path, module: nn.Module, channels: int = 1, edge: int = 36) -> str:
    """Export a module to a file, which is read in milliseconds, while tracing takes a second."""
    example = torch.zeros(1, channels, edge, edge, edge)
    torch.export.save(torch.export.export(module.eval(), (example,)), file)
    return str(file)


class FakeVolume:
    """A volume in memory, or of any size: `values` are channels, z, y, x, or a function of a box."""

    def __init__(self, values, shape=None, dtype=None):
        self.location, self.chunk, self.voxel_size = "fake.zarr", (16, 16, 16), VoxelSize()
        self._values = values
        self.shape = tuple(shape or values.shape[1:])
        self.channels = 1 if callable(values) else values.shape[0]
        self.dtype = np.dtype(dtype or values.dtype)
        self.read_boxes = []

    def read(self, box: Box) -> Reading:
        assert box.within(whole_box(self.shape)) == box
        self.read_boxes.append(box)
        return Reading(self._values(box) if callable(self._values) else self._values[(slice(None), *box.slices())])

    def identity(self) -> str:
        return "fake"


def pad_mirrored(values: np.ndarray, halo, end) -> np.ndarray:
    """Pad values by `halo`, after rounding their lengths up to `end`; NumPy repeats the mirroring if necessary."""
    pads = [
        (0, 0),
        *((own, own + last - length) for own, last, length in zip(halo, end, values.shape[1:], strict=True)),
    ]
    for axis, length in enumerate(values.shape):
        mode = "edge" if length == 1 else "reflect"  # NumPy's `reflect` of a single voxel
        only = [pad if axis == own else (0, 0) for own, pad in enumerate(pads)]
        values = np.pad(values, only, mode)
    return values


def predict_whole(module: nn.Module, values: np.ndarray, halo, step) -> np.ndarray:
    """Predict the whole volume in one piece, padded by the halo, and crop the result."""
    shape = values.shape[1:]
    end = [-(-length // own) * own for length, own in zip(shape, step, strict=True)]
    block = torch.from_numpy(pad_mirrored(values.astype(np.float32), halo, end))[None]
    with torch.no_grad():
        answer = module(block)[0].numpy()
    lost = [(a - b) // 2 for a, b in zip(block.shape[2:], answer.shape[1:], strict=True)]
    z, y, x = (slice(own - less, own - less + n) for own, less, n in zip(halo, lost, shape, strict=True))
    return answer[:, z, y, x]


@dataclass
class Kept:
    """The values of a run before rounding, and how often each voxel was written."""

    values: np.ndarray
    times: np.ndarray
    done: object


def run_keeping_floats(monkeypatch, job: Job) -> Kept:
    inference = Inference(job)
    shape, channels = inference.volume.shape, inference.loaded.model.channels_out
    kept = Kept(np.full((channels, *shape), np.nan, np.float32), np.zeros(shape, int), None)

    def write(self, box: Box, values: np.ndarray) -> None:
        assert values.dtype == np.float32
        kept.values[(slice(None), *box.slices())] = values
        kept.times[box.slices()] += 1

    monkeypatch.setattr(inference.encoding, "encode", lambda values: values.copy())
    monkeypatch.setattr(OmeZarrOutput, "write", write)
    kept.done = inference.run()
    return kept


def read_stored(folder: str | Path) -> np.ndarray:
    output = OmeZarrOutput.open(str(folder))
    return output.read(whole_box(output.shape))
