"""Finds out what lies at a location, and opens it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from rigdyno.engines.blockwise.errors import BadVolume
from rigdyno.engines.blockwise.ports import Volume
from rigdyno.engines.blockwise.volumes import n5, zarr
from rigdyno.engines.blockwise.volumes._kvstore import Place, context, local_path
from rigdyno.engines.blockwise.volumes._messages import DTYPES, listed
from rigdyno.engines.blockwise.volumes.hdf5 import is_hdf5, open_hdf5

NOTHING: Mapping[str, int] = MappingProxyType({})
METADATA = "zarr.json, .zarray, .zgroup or attributes.json"
HDF5_ENDINGS = (".h5", ".hdf5", ".hdf")


def open_volume(
    location: str,
    *,
    at: Mapping[str, int] = NOTHING,
    threads: int = 2,
    cache_bytes: int = 0,
    dtypes: Sequence[str] = DTYPES,
) -> Volume:
    """OME-Zarr, zarr, N5 or HDF5; `at` takes an axis at one index, {"t": 3}; `dtypes`: what it may hold.

    A location is a path or a URL, and may go on inside: `IN.zarr/1`, `IN.h5/raw`, `IN.h5:raw`.
    """
    path = local_path(location)
    if path is not None:
        file = _file_of(location, path)
        if file is not None:
            return _in_file(location, *file, at, dtypes)
    place = Place(location, (location if path is None else path).rstrip("/") or "/", context(threads, cache_bytes))
    volume = zarr.open_zarr(place, at, dtypes) or n5.open_n5(place, at, dtypes)
    if volume is None:
        raise BadVolume(_nothing(place))
    return volume


def _file_of(location: str, path: str) -> tuple[Path, str] | None:
    """A file, with the path inside of it; None for a folder."""
    with _looking_at(location):
        if Path(path).is_dir():
            return None
        ends = [len(path), *(place for place, sign in enumerate(path) if sign in "/:" and place)]
        for end in sorted(ends, reverse=True):
            if Path(path[:end]).is_file():
                return Path(path[:end]), path[end:].strip("/:")
        raise BadVolume(f"{location} isn't there: {_nearest(Path(path))}")


def _nearest(path: Path) -> str:
    """What there is instead."""
    there = next((above for above in path.parents if above.is_dir()), Path())
    names = sorted(entry.name for entry in there.iterdir() if not entry.name.startswith("."))
    return f"{there} holds {listed(names) or 'nothing'}"


def _in_file(location: str, file: Path, inside: str, at: Mapping[str, int], dtypes: Sequence[str]) -> Volume:
    with _looking_at(location):
        known = is_hdf5(file)
    if known:
        return open_hdf5(location, file, inside, at, dtypes)
    if file.suffix in HDF5_ENDINGS:
        raise BadVolume(f"{file} is no HDF5 file, or a damaged one: its first bytes aren't those of HDF5")
    raise BadVolume(
        f"{file} is a file of a kind that isn't read here: convert it to OME-Zarr (with bioformats2raw, for instance)"
    )


def _nothing(place: Place) -> str:
    if place.folder is None:
        return _nothing_behind(place.location)
    arrays = zarr.arrays_below(place) + n5.arrays_below(place)
    if arrays:
        return f"{place.location} is a folder with several arrays: name one in it, {listed(arrays)}"
    with _looking_at(place.location):
        if not any(place.folder.iterdir()):
            return f"{place.location} is an empty folder"
    return f"{place.location} is a folder without {METADATA}: no zarr, and no N5"


def _nothing_behind(url: str) -> str:
    if any(f"{ending}/" in f"{url}/" for ending in HDF5_ENDINGS):
        return f"{url} can't be read from there: HDF5 needs a local file, so download it first"
    return f"{url}: no {METADATA} there; check the address"


@contextmanager
def _looking_at(location: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadVolume(f"can't look at {location}: {(error.strerror or str(error)).lower()}") from error
