"""Open a volume of any format, and read boxes that extend outside it, where it is mirrored at its faces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rigdyno.base.errors import os_error_reason
from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.errors import BadVolume
from rigdyno.engines.blockwise.interfaces import Reading, Volume
from rigdyno.engines.blockwise.volumes import n5, zarr
from rigdyno.engines.blockwise.volumes.hdf5 import is_hdf5, open_hdf5
from rigdyno.engines.blockwise.volumes.messages import DTYPES, join_names
from rigdyno.engines.blockwise.volumes.tensorstore import StoreLocation, make_context, to_local_path

NO_PICKS: Mapping[str, int] = MappingProxyType({})

METADATA = "zarr.json, .zarray, .zgroup or attributes.json"

HDF5_ENDINGS = (".h5", ".hdf5", ".hdf")


def open_volume(
    location: str,
    *,
    at: Mapping[str, int] = NO_PICKS,
    threads: int = 2,
    cache_bytes: int = 0,
    dtypes: Sequence[str] = DTYPES,
) -> Volume:
    """Open OME-Zarr, zarr, N5 or HDF5.

    `location` is a path or a URL, and may continue inside a file: `IN.zarr/1`, `IN.h5/raw`, `IN.h5:raw`. `at` reads an
    axis at one index, such as {"t": 3}. `dtypes` are the types of values that are allowed.
    """
    path = to_local_path(location)
    if path is not None:
        file = _find_file(location, path)
        if file is not None:
            return _open_file(location, *file, at, dtypes)
    place = StoreLocation(
        location, (location if path is None else path).rstrip("/") or "/", make_context(threads, cache_bytes)
    )
    volume = zarr.open_zarr(place, at, dtypes) or n5.open_n5(place, at, dtypes)
    if volume is None:
        raise BadVolume(_explain_nothing(place))
    return volume


def _find_file(location: str, path: str) -> tuple[Path, str] | None:
    """Return a file and the path inside it, or None for a folder."""
    with _as_bad_volume(location):
        if Path(path).is_dir():
            return None
        ends = [len(path), *(place for place, sign in enumerate(path) if sign in "/:" and place)]
        for end in sorted(ends, reverse=True):
            if Path(path[:end]).is_file():
                return Path(path[:end]), path[end:].strip("/:")
        raise BadVolume(f"{location} isn't there: {_describe_nearest(Path(path))}")


def _describe_nearest(path: Path) -> str:
    """Describe what the nearest existing folder contains."""
    there = next((above for above in path.parents if above.is_dir()), Path())
    names = sorted(entry.name for entry in there.iterdir() if not entry.name.startswith("."))
    return f"{there} holds {join_names(names) or 'nothing'}"


def _open_file(location: str, file: Path, inside: str, at: Mapping[str, int], dtypes: Sequence[str]) -> Volume:
    with _as_bad_volume(location):
        known = is_hdf5(file)
    if known:
        return open_hdf5(location, file, inside, at, dtypes)
    if file.suffix in HDF5_ENDINGS:
        raise BadVolume(f"{file} isn't an HDF5 file, or is damaged: its first bytes aren't those of HDF5")
    raise BadVolume(
        f"{file} is a file of a kind that isn't read here: convert it to OME-Zarr (with bioformats2raw, for instance)"
    )


def _explain_nothing(place: StoreLocation) -> str:
    if place.folder is None:
        return _explain_nothing_at_url(place.location)
    arrays = zarr.find_arrays(place) + n5.find_arrays(place)
    if arrays:
        return f"{place.location} is a folder with several arrays: name one in it, {join_names(arrays)}"
    with _as_bad_volume(place.location):
        if not any(place.folder.iterdir()):
            return f"{place.location} is an empty folder"
    return f"{place.location} is a folder without {METADATA}: it is neither zarr nor N5"


def _explain_nothing_at_url(url: str) -> str:
    if any(f"{ending}/" in f"{url}/" for ending in HDF5_ENDINGS):
        return f"{url} can't be read from there: HDF5 needs a local file, so download it first"
    return f"{url}: no {METADATA} there; check the address"


@contextmanager
def _as_bad_volume(location: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadVolume(f"can't look at {location}: {os_error_reason(error)}") from error


def read_reflected(volume: Volume, box: Box) -> Reading:
    """Read a box that may extend outside the volume, where it is mirrored like NumPy's `reflect`.

    The voxel at the face isn't repeated. Each voxel is read once, however far the box extends.
    """
    axes = [_mirror_indices(*ends) for ends in zip(box.start, box.stop, volume.shape, strict=True)]
    z, y, x = ((int(places.min()), int(places.max()) + 1) for places in axes)
    needed = Box((z[0], y[0], x[0]), (z[1], y[1], x[1]))
    reading = volume.read(needed)
    if needed == box:
        return reading
    values = reading.values
    for number, (axis, start, length) in enumerate(zip(axes, needed.start, needed.shape, strict=True)):
        inside = axis - start
        if not np.array_equal(inside, np.arange(length)):
            values = np.take(values, inside, axis=1 + number)
    return Reading(values, reading.missing)


def _mirror_indices(start: int, stop: int, length: int) -> NDArray[np.int64]:
    """Return, for each index along an axis, the index inside the volume that it mirrors."""
    places = np.arange(start, stop, dtype=np.int64)
    if length == 1:
        return np.zeros_like(places)
    period = 2 * (length - 1)
    places %= period
    return np.minimum(places, period - places)
