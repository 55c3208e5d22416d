"""A raw volume with the labels of its voxels, read box by box: synthetic, or from zarr, N5 or HDF5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rigdyno.engines.blockwise.boxes import Box, Zyx, whole, zyx
from rigdyno.engines.blockwise.errors import BadVolume
from rigdyno.engines.blockwise.normalising import Normalisation, finite, normalisation
from rigdyno.engines.blockwise.ports import Volume
from rigdyno.engines.blockwise.volumes._messages import LABEL_DTYPES
from rigdyno.engines.blockwise.volumes.opening import open_volume
from rigdyno.engines.segmentation.synthetic import Synthetic

RAW, LABELS = "volumes/raw", "volumes/labels/neuron_ids"  # CREMI's layout

Floats = NDArray[np.float32]


class Pair(Protocol):
    """Raw values, mean 0 and deviation 1, and labels of the same places. It is sent to loader processes."""

    shape: Zyx
    notes: tuple[str, ...]
    shared_bytes: int  # of memory that it takes once for all processes

    def read(self, box: Box) -> tuple[Floats, NDArray[Any]]: ...


class InMemory:
    """Tensors, because these are shared with the processes that load from it, and not copied."""

    def __init__(self, raw: NDArray[Any], labels: NDArray[Any], notes: tuple[str, ...] = ()) -> None:
        self.shape, self.notes = zyx(raw.shape), notes
        values = raw.astype(np.float32)
        values -= values.mean()
        values /= values.std() or 1.0
        self._raw = torch.from_numpy(values)
        # By bytes: torch knows few operations on unsigned numbers, and none is needed.
        self._dtype = labels.dtype
        self._labels = torch.from_numpy(np.ascontiguousarray(labels).view(f"i{labels.itemsize}"))
        self.shared_bytes: int = self._raw.nbytes + self._labels.nbytes

    def read(self, box: Box) -> tuple[Floats, NDArray[Any]]:
        return self._raw.numpy()[box.slices()], self._labels.numpy().view(self._dtype)[box.slices()]


def synthetic(shape: Zyx, seed: int) -> InMemory:
    size = " x ".join(map(str, shape))
    return InMemory(*Synthetic(shape, seed).both, notes=(f"synthetic cells with membranes, {size} voxels",))


@dataclass(frozen=True)
class _Opened:
    raw: Volume
    labels: Volume
    offset: Zyx  # of the labels in the raw volume


class Stored:
    """Opened by each process for itself: handles and threads of readers don't survive a fork, or a pickle."""

    shared_bytes: int = 0

    def __init__(self, raw: str, labels: str) -> None:
        self._locations = raw, labels
        self._open: _Opened | None = None
        opened = self._opened()
        self.shape = opened.labels.shape
        self._figures: Normalisation = normalisation("standard", opened.raw)
        size = " x ".join(map(str, self.shape))
        self.notes: tuple[str, ...] = (f"{Path(raw).name} with labels of {opened.labels.dtype}, {size} voxels",)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def read(self, box: Box) -> tuple[Floats, NDArray[Any]]:
        opened = self._opened()
        there = box.moved(opened.offset)
        raw = finite(opened.raw.read(there).values, there, opened.raw, None)
        return self._figures.apply(raw)[0], opened.labels.read(box).values[0]

    def _opened(self) -> _Opened:
        if self._open is None:
            self._open = _opened(*self._locations)
        return self._open


def stored(data: str, labels: str = "") -> Stored:
    """`data` is a raw volume with `labels` beside it, or a file or folder in CREMI's layout."""
    if labels:
        return Stored(data, labels)
    root = data.rstrip("/")
    return Stored(f"{root}/{RAW}", f"{root}/{LABELS}")


def _opened(raw: str, labels: str) -> _Opened:
    values, names = open_volume(raw), open_volume(labels, dtypes=LABEL_DTYPES)
    for volume in (values, names):
        if volume.channels != 1:
            raise BadVolume(f"{volume.location} has {volume.channels} channels, and training takes one")
    return _Opened(values, names, _offset(values, names))


def _offset(raw: Volume, labels: Volume) -> Zyx:
    """CREMI's padded volumes have labels in the middle alone, and say where in nanometres."""
    own, other = _nanometres(labels, "offset"), _nanometres(raw, "offset")
    edges = _nanometres(labels, "resolution")
    apart = [at - from_where for at, from_where in zip(own or (0, 0, 0), other or (0, 0, 0), strict=True)]
    offset = zyx(round(at / edge) for at, edge in zip(apart, edges or (1, 1, 1), strict=True))
    known = own is not None and edges is not None
    if labels.shape == raw.shape and not known:
        return (0, 0, 0)
    if not known or whole(labels.shape).moved(offset).within(whole(raw.shape)).shape != labels.shape:
        where = f" at {_by(offset)}" if known else ", and no attribute 'offset' says where"
        raise BadVolume(
            f"the labels {labels.location} ({_by(labels.shape)}{where}) don't lie in {raw.location} ({_by(raw.shape)})"
        )
    return offset


def _nanometres(volume: Volume, name: str) -> tuple[float, ...] | None:
    """An attribute of an HDF5 dataset; None: it has none that could be meant."""
    found = getattr(volume, "attributes", {}).get(name)
    numbers = () if found is None else tuple(np.ravel(found).tolist())
    usable = len(numbers) == 3 and all(isinstance(each, int | float) for each in numbers)
    return numbers if usable and (name == "offset" or min(numbers) > 0) else None


def _by(numbers: Zyx) -> str:
    return "x".join(map(str, numbers))
