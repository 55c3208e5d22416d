"""OME-Zarr 0.5 (zarr 3), one file for each block: there when it is complete, and not before.

OUT/zarr.json          the image: axes, voxel size, what made it; written last, so that its presence means a sound start
OUT/0/zarr.json        the array
OUT/0/c/0/<z>/<y>/<x>  a block with all its channels: a shard of chunks of 64 x 64 x 64
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from rigdyno.engines.blockwise.boxes import Box, Zyx, whole
from rigdyno.engines.blockwise.errors import BadOutput, BadSetting
from rigdyno.engines.blockwise.ports import Array, VoxelSize
from rigdyno.engines.blockwise.volumes import _ome_zarr_documents as documents
from rigdyno.engines.blockwise.volumes._files import (
    LITTER,
    disk_errors,
    make_folder,
    remove_abandoned,
    replace_file,
)
from rigdyno.engines.blockwise.volumes._kvstore import context, tensorstore
from rigdyno.engines.blockwise.volumes._messages import check_inside, listed, one_line

ARRAY = "0"
METADATA = "zarr.json"
BESIDE = ".rigdyno"  # where a run keeps its plan and its journal, from before there is an image
_NOT_OURS = (KeyError, TypeError, ValueError, IndexError)


class OmeZarrOutput:
    """`create` begins one, `open` goes on with one; blocks lie on a grid from the volume's first voxel."""

    def __init__(self, location: str, image: documents.Stored, threads: int) -> None:
        self.location, self.folder = location, _folder(location)
        self.shape, self.channels, self.block = image.shape, image.channels, image.block
        self.dtype: np.dtype[Any] = np.dtype(image.dtype)
        self.attributes: Mapping[str, Any] = image.attributes
        self._folders = Lock()
        with disk_errors(location, "open"):
            self._store = _opened(self.folder / ARRAY, threads)

    @classmethod
    def create(
        cls,
        location: str,
        *,
        shape: Zyx,
        channels: int,
        dtype: str,
        block: Zyx,
        voxel_size: VoxelSize,
        name: str,
        attributes: Mapping[str, Any],
        threads: int = 2,
    ) -> OmeZarrOutput:
        image = documents.Stored(shape, channels, dtype, block, dict(attributes))
        image.check()
        folder = _folder(location)
        with disk_errors(location, "create"):
            _check_free(location, folder)
            (folder / METADATA).unlink(missing_ok=True)
            make_folder(folder / ARRAY)
            replace_file(folder / ARRAY / METADATA, documents.array(image))
            output = cls(location, image, threads)  # tensorstore accepts the array, or nothing is announced
            replace_file(folder / METADATA, documents.group(image, voxel_size, name))
        return output

    @classmethod
    def open(cls, location: str, *, threads: int = 2) -> OmeZarrOutput:
        folder = _folder(location)
        with disk_errors(location, "open"):
            if not (folder / METADATA).is_file():
                raise BadOutput(f"{location} holds no output to go on with: there is no {METADATA}")
            try:
                image = _stored(folder)
            except _NOT_OURS as error:
                raise BadOutput(
                    f"{location} is no output of rigdyno, or a damaged one ({one_line(error)}): take another name"
                ) from error
        return cls(location, image, threads)

    def write(self, box: Box, values: Array) -> None:
        """Returns when the block's file is complete, and would outlive a power cut."""
        self._check(box, values)
        with disk_errors(self.location, f"write {box} of"):
            self._clear(self.shard(box))
            self._at(box).write(values, can_reference_source_data_indefinitely=True).result()

    def read(self, box: Box) -> Array:
        """What was never written is zero."""
        check_inside(self.location, box, self.shape)
        with disk_errors(self.location, f"read {box} of"):
            values: Array = self._at(box).read(order="C").result()
        return values

    def shard(self, box: Box) -> Path:
        """The file of a block."""
        place = [str(start // length) for start, length in zip(box.start, self.block, strict=True)]
        return self.folder.joinpath(ARRAY, "c", "0", *place)

    def remove_litter(self) -> int:
        """What killed writers left half done, and not what others are writing now. Returns how many files it was."""
        with disk_errors(self.location, "clean up"):
            return sum(remove_abandoned(file) for file in list(self.folder.rglob(f"*{LITTER}")))

    def _at(self, box: Box) -> Any:
        where = (slice(None), *box.slices())
        return self._store[where]

    def _check(self, box: Box, values: Array) -> None:
        """Anything but a whole block would be read, changed and written anew, and two such writes could meet."""
        on_grid = all(start % length == 0 for start, length in zip(box.start, self.block, strict=True))
        whole_block = Box((0, 0, 0), self.block).moved(box.start).within(whole(self.shape))
        if not on_grid or box.voxels == 0 or box != whole_block:
            raise BadSetting(
                f"{box} is no block of {self.location}: blocks are {_times(self.block)} in {whole(self.shape)}"
            )
        if values.shape != (self.channels, *box.shape) or values.dtype != self.dtype:
            wanted = f"{_times((self.channels, *box.shape))} {self.dtype}"
            raise BadSetting(
                f"block {box} of {self.location} takes {wanted}, not {_times(values.shape)} {values.dtype}"
            )

    def _clear(self, shard: Path) -> None:
        # tensorstore reads a shard at the volume's end before it replaces it, and a damaged one would stop it.
        shard.unlink(missing_ok=True)
        with self._folders:
            make_folder(shard.parent)


def _opened(array: Path, threads: int) -> Any:
    spec = {
        "driver": "zarr3",
        # Locked by the system, a half-written file can be told from one that nobody writes any more.
        "kvstore": {
            "driver": "file",
            "path": f"{array.resolve()}/",
            "file_io_locking": {"mode": "os"},
            "file_io_sync": True,
        },
        # Otherwise a block of zeros has no file, and can't be told from one that was never written.
        "store_data_equal_to_fill_value": True,
    }
    return tensorstore().open(spec, open=True, read=True, write=True, context=context(threads, 0)).result()


def _folder(location: str) -> Path:
    if "://" in location:
        raise BadOutput(f"{location} is a URL, and outputs are written to a local folder: give a path")
    return Path(location)


def _check_free(location: str, folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise BadOutput(f"{location} is a file: take another name")
    if not _is_free(folder):
        raise BadOutput(f"{location} isn't empty, it holds {listed(_names(folder))}: take another name, or remove it")


def _is_free(folder: Path) -> bool:
    """Empty, or what `create` leaves if the run is killed before its first block."""
    names, half = {*_names(folder)} - {BESIDE}, f"{METADATA}{LITTER}"
    if not names <= {ARRAY, METADATA, half} or (METADATA in names and not _is_ours(folder)):
        return False
    return ARRAY not in names or {*_names(folder / ARRAY)} <= {METADATA, half}


def _is_ours(folder: Path) -> bool:
    try:
        _stored(folder)
    except (OSError, *_NOT_OURS):
        return False
    return True


def _stored(folder: Path) -> documents.Stored:
    group, array = ((place / METADATA).read_bytes() for place in (folder, folder / ARRAY))
    return documents.stored(json.loads(group), json.loads(array))


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def _times(lengths: tuple[int, ...]) -> str:
    return " x ".join(map(str, lengths))
