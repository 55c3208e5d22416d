"""Read HDF5 through h5py, one thread at a time."""

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
from rigdyno.engines.blockwise.interfaces import Array, Reading, VoxelSize
from rigdyno.engines.blockwise.volumes.messages import (
    DTYPES,
    check_dtype,
    check_inside,
    hash_parts,
    join_names,
    missing_extra,
    shorten_error,
)
from rigdyno.engines.blockwise.volumes.metadata import (
    SPACE,
    Layout,
    axes_by_count,
    axes_by_label,
    make_layout,
    make_voxel_size,
)

POSITION_ATTRIBUTES = ("resolution", "offset")  # CREMI's attributes, in nanometres

SIGNATURE = b"\x89HDF\r\n\x1a\n"


class Hdf5Volume:
    """One dataset of a file."""

    def __init__(
        self, location: str, file: Path, dataset: Any, at: Mapping[str, int], dtypes: Sequence[str] = DTYPES
    ) -> None:
        self.location, self._dataset, self._lock = location, dataset, Lock()
        check_dtype(location, dataset.dtype.name, dtypes)
        _check_filters(location, dataset)
        labels = axes_by_label([dimension.label for dimension in dataset.dims], dataset.ndim)
        self._layout = make_layout(location, labels or axes_by_count(location, dataset.ndim), dataset.shape, at)
        self.shape, self.channels = self._layout.shape, self._layout.channels
        self.dtype: np.dtype[Any] = dataset.dtype.newbyteorder("=")
        # Without chunks, every part costs the same to read.
        self.chunk: Zyx = self._layout.select_zyx(dataset.chunks) if dataset.chunks else (1, 1, 1)
        self.voxel_size = _voxel_size(dataset, self._layout)
        self.attributes: Mapping[str, Any] = {
            name: dataset.attrs[name] for name in POSITION_ATTRIBUTES if name in dataset.attrs
        }
        # Without size and time of the file: after a damaged part was repaired, it is still the same volume.
        self._place = (str(file.resolve()), dataset.name)

    def read(self, box: Box) -> Reading:
        check_inside(self.location, box, self.shape)
        index = self._layout.index(box)
        try:
            with self._lock:
                values, missing = self._dataset[index], _has_missing_chunk(self._dataset, index)
        except (OSError, RuntimeError) as error:
            raise BadRegion(f"can't read {box} of {self.location}: {shorten_error(error)}") from error
        return Reading(self._put_channels_first(values), missing)

    def identity(self) -> str:
        return hash_parts(self._place, self._layout.lengths, self.dtype.name, dict(self._layout.picks))

    def _put_channels_first(self, values: Array) -> Array:
        ordered = values.transpose(self._layout.order)
        return np.ascontiguousarray(ordered if self._layout.has_channels else ordered[np.newaxis], self.dtype)


def is_hdf5(file: Path) -> bool:
    """Look for HDF5's signature at the beginning, or after a user block of 512 bytes, 1024, and so on."""
    with file.open("rb") as content:
        for offset in (0, *(512 << power for power in range(8))):
            content.seek(offset)
            if content.read(len(SIGNATURE)) == SIGNATURE:
                return True
    return False


def open_hdf5(
    location: str, file: Path, path: str, at: Mapping[str, int], dtypes: Sequence[str] = DTYPES
) -> Hdf5Volume:
    """Open a dataset; an empty path means the only one that could be a volume."""
    try:
        opened = _import_h5py().File(file, "r", locking="best-effort")
    except OSError as error:
        raise BadVolume(f"can't open {location}: {shorten_error(error)}") from error
    try:
        return Hdf5Volume(location, file, _find_dataset(location, opened, path), at, dtypes)
    except BaseException:
        opened.close()
        raise


def _import_h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise missing_extra("h5py") from error
    with suppress(ImportError):
        importlib.import_module("hdf5plugin")  # registers blosc, zstd and others, if it is installed
    return h5py


def _find_dataset(location: str, opened: Any, path: str) -> Any:
    found = opened.get(path) if path else opened
    if found is None:
        raise BadVolume(f"{location}: the file has no {path!r}; {_describe_content(_list_volumes(opened))}")
    if not hasattr(found, "visititems"):
        return found
    volumes = _list_volumes(found)
    if len(volumes) != 1:
        raise BadVolume(f"{location} isn't an array: {_describe_content(volumes)}")
    return found[volumes[0]]


def _list_volumes(group: Any) -> list[str]:
    names: list[str] = []
    group.visititems(lambda name, item: names.append(name) if getattr(item, "ndim", 0) >= 3 else None)
    return names


def _describe_content(volumes: list[str]) -> str:
    return f"name one of those in it, {join_names(volumes)}" if volumes else "nothing in it has 3 dimensions or more"


def _check_filters(location: str, dataset: Any) -> None:
    settings = dataset.id.get_create_plist()
    for number in range(settings.get_nfilters()):
        code, _, _, name = settings.get_filter(number)
        if not _import_h5py().h5z.filter_avail(code):
            called = name.decode(errors="replace") or "unnamed"
            raise BadVolume(
                f"{location} needs the HDF5 filter {code} ({called}), which is missing: pip install hdf5plugin"
            )


def _voxel_size(dataset: Any, layout: Layout) -> VoxelSize:
    """Read Fiji's attribute: it has z, y and x, or from some programs one number for each axis."""
    sizes = np.ravel(dataset.attrs.get("element_size_um", ())).tolist()
    if len(sizes) == len(layout.names) != len(SPACE):
        sizes = list(layout.select_zyx(sizes))
    return make_voxel_size(sizes, ["micrometer"] * len(SPACE))


def _has_missing_chunk(dataset: Any, index: tuple[int | slice, ...]) -> bool:
    if dataset.chunks is None:
        elsewhere = dataset.is_virtual or dataset.external
        return not elsewhere and dataset.id.get_storage_size() == 0
    info = dataset.id.get_chunk_info_by_coord
    return any(info(corner).byte_offset is None for corner in _chunk_corners(dataset, index))


def _chunk_corners(dataset: Any, index: tuple[int | slice, ...]) -> Iterator[tuple[int, ...]]:
    """Return the first voxels of the chunks that an index touches."""
    ranges = []
    for part, length, chunk in zip(index, dataset.shape, dataset.chunks, strict=True):
        start, stop, _ = part.indices(length) if isinstance(part, slice) else (part, part + 1, 1)
        ranges.append(range(start // chunk * chunk, stop, chunk))
    return product(*ranges)
