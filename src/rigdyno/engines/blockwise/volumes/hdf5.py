"""HDF5 through h5py, one thread at a time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.engines.blockwise.errors import BadRegion, BadVolume
from rigdyno.engines.blockwise.ports import Array, Reading, VoxelSize
from rigdyno.engines.blockwise.volumes._axes import SPACE, Layout, by_label, by_number, layout
from rigdyno.engines.blockwise.volumes._messages import (
    DTYPES,
    check_dtype,
    check_inside,
    identity_of,
    listed,
    missing_extra,
    one_line,
)
from rigdyno.engines.blockwise.volumes._voxel_size import voxel_size

PLACED = ("resolution", "offset")  # CREMI's attributes of where a volume lies, in nanometres
SIGNATURE = b"\x89HDF\r\n\x1a\n"


class Hdf5Volume:
    """One dataset of a file."""

    def __init__(
        self, location: str, file: Path, dataset: Any, at: Mapping[str, int], dtypes: Sequence[str] = DTYPES
    ) -> None:
        self.location, self._dataset, self._lock = location, dataset, Lock()
        check_dtype(location, dataset.dtype.name, dtypes)
        _check_filters(location, dataset)
        labels = by_label([dimension.label for dimension in dataset.dims], dataset.ndim)
        self._layout = layout(location, labels or by_number(location, dataset.ndim), dataset.shape, at)
        self.shape, self.channels = self._layout.shape, self._layout.channels
        self.dtype: np.dtype[Any] = dataset.dtype.newbyteorder("=")
        # What isn't in chunks is read from anywhere at the same price.
        self.chunk: Zyx = self._layout.spatial(dataset.chunks) if dataset.chunks else (1, 1, 1)
        self.voxel_size = _voxel_size(dataset, self._layout)
        self.attributes: Mapping[str, Any] = {name: dataset.attrs[name] for name in PLACED if name in dataset.attrs}
        # Not its size and time: a file whose damaged part was mended is still the same volume.
        self._place = (str(file.resolve()), dataset.name)

    def read(self, box: Box) -> Reading:
        check_inside(self.location, box, self.shape)
        index = self._layout.index(box)
        try:
            with self._lock:
                values, missing = self._dataset[index], _has_missing_chunk(self._dataset, index)
        except (OSError, RuntimeError) as error:
            raise BadRegion(f"can't read {box} of {self.location}: {one_line(error)}") from error
        return Reading(self._channels_first(values), missing)

    def identity(self) -> str:
        return identity_of(self._place, self._layout.lengths, self.dtype.name, dict(self._layout.picks))

    def _channels_first(self, values: Array) -> Array:
        ordered = values.transpose(self._layout.order)
        return np.ascontiguousarray(ordered if self._layout.has_channels else ordered[np.newaxis], self.dtype)


def is_hdf5(file: Path) -> bool:
    """By its first bytes; a user block before them may have 512 bytes, 1024, and so on."""
    with file.open("rb") as content:
        for offset in (0, *(512 << power for power in range(8))):
            content.seek(offset)
            if content.read(len(SIGNATURE)) == SIGNATURE:
                return True
    return False


def open_hdf5(
    location: str, file: Path, path: str, at: Mapping[str, int], dtypes: Sequence[str] = DTYPES
) -> Hdf5Volume:
    """An empty path takes the only dataset that could be a volume."""
    try:
        opened = _h5py().File(file, "r", locking="best-effort")
    except OSError as error:
        raise BadVolume(f"can't open {location}: {one_line(error)}") from error
    try:
        return Hdf5Volume(location, file, _dataset(location, opened, path), at, dtypes)
    except BaseException:
        opened.close()
        raise


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise missing_extra("h5py") from error
    with suppress(ImportError):
        importlib.import_module("hdf5plugin")  # brings blosc, zstd and others along, where it is installed
    return h5py


def _dataset(location: str, opened: Any, path: str) -> Any:
    found = opened.get(path) if path else opened
    if found is None:
        raise BadVolume(f"{location}: the file has no {path!r}; {_holds(_volumes_in(opened))}")
    if not hasattr(found, "visititems"):
        return found
    volumes = _volumes_in(found)
    if len(volumes) != 1:
        raise BadVolume(f"{location} is no array: {_holds(volumes)}")
    return found[volumes[0]]


def _volumes_in(group: Any) -> list[str]:
    names: list[str] = []
    group.visititems(lambda name, item: names.append(name) if getattr(item, "ndim", 0) >= 3 else None)
    return names


def _holds(volumes: list[str]) -> str:
    return f"name one of those in it, {listed(volumes)}" if volumes else "nothing in it has 3 dimensions or more"


def _check_filters(location: str, dataset: Any) -> None:
    settings = dataset.id.get_create_plist()
    for number in range(settings.get_nfilters()):
        code, _, _, name = settings.get_filter(number)
        if not _h5py().h5z.filter_avail(code):
            called = name.decode(errors="replace") or "unnamed"
            raise BadVolume(
                f"{location} needs the HDF5 filter {code} ({called}), which is missing: pip install hdf5plugin"
            )


def _voxel_size(dataset: Any, placed: Layout) -> VoxelSize:
    """Fiji's attribute has z, y and x; some write one number for each axis."""
    sizes = np.ravel(dataset.attrs.get("element_size_um", ())).tolist()
    if len(sizes) == len(placed.names) != len(SPACE):
        sizes = list(placed.spatial(sizes))
    return voxel_size(sizes, ["micrometer"] * len(SPACE))


def _has_missing_chunk(dataset: Any, index: tuple[int | slice, ...]) -> bool:
    if dataset.chunks is None:
        elsewhere = dataset.is_virtual or dataset.external
        return not elsewhere and dataset.id.get_storage_size() == 0
    info = dataset.id.get_chunk_info_by_coord
    return any(info(corner).byte_offset is None for corner in _corners(dataset, index))


def _corners(dataset: Any, index: tuple[int | slice, ...]) -> Iterator[tuple[int, ...]]:
    """Where the chunks begin that an index touches."""
    ranges = []
    for part, length, chunk in zip(index, dataset.shape, dataset.chunks, strict=True):
        start, stop, _ = part.indices(length) if isinstance(part, slice) else (part, part + 1, 1)
        ranges.append(range(start // chunk * chunk, stop, chunk))
    return product(*ranges)
