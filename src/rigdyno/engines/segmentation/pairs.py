"""Raw volumes with labels, read box by box: synthetic ones, or from zarr, N5 or HDF5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rigdyno.engines.blockwise.boxes import Box, Zyx, whole_box, zyx
from rigdyno.engines.blockwise.errors import BadVolume
from rigdyno.engines.blockwise.interfaces import Volume
from rigdyno.engines.blockwise.normalising import Normalisation, ensure_finite, find_normalisation
from rigdyno.engines.blockwise.volumes.messages import LABEL_DTYPES
from rigdyno.engines.blockwise.volumes.reading import open_volume
from rigdyno.engines.segmentation.synthetic import Synthetic

RAW, LABELS = "volumes/raw", "volumes/labels/neuron_ids"  # CREMI's layout

Floats = NDArray[np.float32]


class LabelledVolume(Protocol):
    """Raw values with mean 0 and standard deviation 1, and labels of the same voxels.

    It is pickled and sent to loader processes.
    """

    shape: Zyx
    notes: tuple[str, ...]
    shared_bytes: int  # memory that all processes share

    def read(self, box: Box) -> tuple[Floats, NDArray[Any]]: ...


class InMemory:
    """A volume in memory, as tensors, which torch shares with loader processes instead of copying them."""

    def __init__(self, raw: NDArray[Any], labels: NDArray[Any], notes: tuple[str, ...] = ()) -> None:
        self.shape, self.notes = zyx(raw.shape), notes
        values = raw.astype(np.float32)
        values -= values.mean()
        values /= values.std() or 1.0
        self._raw = torch.from_numpy(values)
        # As signed integers of the same size: torch supports little else, and no arithmetic is needed.
        self._dtype = labels.dtype
        self._labels = torch.from_numpy(np.ascontiguousarray(labels).view(f"i{labels.itemsize}"))
        self.shared_bytes: int = self._raw.nbytes + self._labels.nbytes

    def read(self, box: Box) -> tuple[Floats, NDArray[Any]]:
        return self._raw.numpy()[box.slices()], self._labels.numpy().view(self._dtype)[box.slices()]


def make_synthetic_pair(shape: Zyx, seed: int) -> InMemory:
    """Make a volume of synthetic cells with labels."""
    size = " x ".join(map(str, shape))
    return InMemory(*Synthetic(shape, seed).both, notes=(f"synthetic cells with membranes, {size} voxels",))


@dataclass(frozen=True)
class _OpenPair:
    raw: Volume
    labels: Volume
    offset: Zyx  # of the labels in the raw volume


class StoredPair:
    """A stored volume. Each process opens it itself: handles and threads don't survive a fork or a pickle."""

    shared_bytes: int = 0

    def __init__(self, raw: str, labels: str) -> None:
        self._locations = raw, labels
        self._open: _OpenPair | None = None
        opened = self._open_once()
        self.shape = opened.labels.shape
        self._figures: Normalisation = find_normalisation("standard", opened.raw)
        size = " x ".join(map(str, self.shape))
        self.notes: tuple[str, ...] = (f"{Path(raw).name} with labels of {opened.labels.dtype}, {size} voxels",)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def read(self, box: Box) -> tuple[Floats, NDArray[Any]]:
        opened = self._open_once()
        there = box.moved(opened.offset)
        raw = ensure_finite(opened.raw.read(there).values, there, opened.raw, None)
        return self._figures.apply(raw)[0], opened.labels.read(box).values[0]

    def _open_once(self) -> _OpenPair:
        if self._open is None:
            self._open = _open_pair(*self._locations)
        return self._open


def open_stored_pair(data: str, labels: str = "") -> StoredPair:
    """Open a raw volume and its labels; without `labels`, a file or folder in CREMI's layout."""
    if labels:
        return StoredPair(data, labels)
    root = data.rstrip("/")
    return StoredPair(f"{root}/{RAW}", f"{root}/{LABELS}")


def _open_pair(raw: str, labels: str) -> _OpenPair:
    values, names = open_volume(raw), open_volume(labels, dtypes=LABEL_DTYPES)
    for volume in (values, names):
        if volume.channels != 1:
            raise BadVolume(f"{volume.location} has {volume.channels} channels, and training needs one")
    return _OpenPair(values, names, _find_offset(values, names))


def _find_offset(raw: Volume, labels: Volume) -> Zyx:
    """Return the offset of the labels in the raw volume, in voxels.

    CREMI's padded volumes have labels only in the middle, and state the offset in nanometres.
    """
    own, other = _read_nanometres(labels, "offset"), _read_nanometres(raw, "offset")
    edges = _read_nanometres(labels, "resolution")
    apart = [at - from_where for at, from_where in zip(own or (0, 0, 0), other or (0, 0, 0), strict=True)]
    offset = zyx(round(at / edge) for at, edge in zip(apart, edges or (1, 1, 1), strict=True))
    known = own is not None and edges is not None
    if labels.shape == raw.shape and not known:
        return (0, 0, 0)
    if not known or whole_box(labels.shape).moved(offset).within(whole_box(raw.shape)).shape != labels.shape:
        where = f" at {_format_shape(offset)}" if known else ", and no attribute 'offset' says where"
        raise BadVolume(
            f"the labels {labels.location} ({_format_shape(labels.shape)}{where}) "
            f"aren't inside {raw.location} ({_format_shape(raw.shape)})"
        )
    return offset


def _read_nanometres(volume: Volume, name: str) -> tuple[float, ...] | None:
    """Read an attribute of an HDF5 dataset; return None if it isn't three usable numbers."""
    found = getattr(volume, "attributes", {}).get(name)
    numbers = () if found is None else tuple(np.ravel(found).tolist())
    usable = len(numbers) == 3 and all(isinstance(each, int | float) for each in numbers)
    return numbers if usable and (name == "offset" or min(numbers) > 0) else None


def _format_shape(numbers: Zyx) -> str:
    return "x".join(map(str, numbers))
