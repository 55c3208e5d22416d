"""Write OME-Zarr 0.5 (zarr 3), one file for each block, which appears only when it is complete.

OUT/zarr.json          the image: axes, voxel size, provenance; written last, so that it exists only if all went well
OUT/0/zarr.json        the array
OUT/0/c/0/<z>/<y>/<x>  a block with all its channels: a shard of chunks of 64 x 64 x 64
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from rigdyno.base.errors import MissingExtra
from rigdyno.base.files import atomic_write, lock_file, sync_folder
from rigdyno.engines.blockwise.boxes import Box, Zyx, whole_box
from rigdyno.engines.blockwise.errors import BadOutput, BadSetting, BlockwiseError
from rigdyno.engines.blockwise.interfaces import Array, VoxelSize
from rigdyno.engines.blockwise.volumes import ome_zarr_documents as documents
from rigdyno.engines.blockwise.volumes.messages import check_inside, join_names, shorten_error
from rigdyno.engines.blockwise.volumes.tensorstore import import_tensorstore, make_context

ARRAY = "0"

METADATA = "zarr.json"

RUN_FOLDER = ".rigdyno"  # where a run stores its plan and its journal, before the image exists

LITTER = ".__lock"  # ending of tensorstore's files until they are complete; a killed process leaves them

_OS_ERROR = re.compile(r"os_error_code='(\d+)'")

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)

_NOT_OURS = (KeyError, TypeError, ValueError, IndexError)


def remove_abandoned(file: Path) -> bool:
    """Remove a half-written file whose writer is gone, and return whether it was one.

    The rule is tensorstore's own: the writer holds a lock on the file for as long as it has this name.
    """
    try:
        with lock_file(file, "posix") as is_abandoned:
            if is_abandoned:
                file.unlink()
            return is_abandoned
    except FileNotFoundError:
        return False


def make_folder(folder: Path) -> None:
    """Create a folder and its parents durably: tensorstore syncs only the last folder."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def replace_file(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document as tensorstore writes its files: complete, or under a name that counts as litter."""
    content = json.dumps(document, indent=2, allow_nan=False).encode()
    with atomic_write(path, temporary=path.with_name(f"{path.name}{LITTER}"), durable=True) as file:
        file.write(content)


@contextmanager
def disk_errors(location: str, action: str) -> Iterator[None]:
    """Turn errors of the disk into BadOutput; tensorstore reports them as a ValueError with the errno in its text."""
    try:
        yield
    except (BlockwiseError, MissingExtra):
        raise
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else _find_errno(error)
        reason = os.strerror(number).lower() if number else shorten_error(error)
        raise BadOutput(f"can't {action} {location}: {reason}; {_advice(number)}") from error


def _find_errno(error: ValueError) -> int | None:
    found = _OS_ERROR.search(str(error))
    return int(found[1]) if found else None


def _advice(number: int | None) -> str:
    if number in _NO_SPACE:
        return "free some space and run the same command again, finished blocks are kept"
    if number in _NO_RIGHTS:
        return "get the right to write there and run the same command again, or choose another folder"
    return "run the same command again, or choose another folder"


class OmeZarrOutput:
    """An image that is written block by block: `create` begins one, `open` continues one.

    Blocks are on a grid that starts at the volume's first voxel.
    """

    def __init__(self, location: str, image: documents.StoredArray, threads: int) -> None:
        self.location, self.folder = location, _local_folder(location)
        self.shape, self.channels, self.block = image.shape, image.channels, image.block
        self.dtype: np.dtype[Any] = np.dtype(image.dtype)
        self.attributes: Mapping[str, Any] = image.attributes
        self._folders = Lock()
        with disk_errors(location, "open"):
            self._store = _open_store(self.folder / ARRAY, threads)

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
        image = documents.StoredArray(shape, channels, dtype, block, dict(attributes))
        image.check()
        folder = _local_folder(location)
        with disk_errors(location, "create"):
            _check_free(location, folder)
            (folder / METADATA).unlink(missing_ok=True)
            make_folder(folder / ARRAY)
            replace_file(folder / ARRAY / METADATA, documents.array(image))
            output = cls(location, image, threads)  # raises an error if tensorstore doesn't accept the array
            replace_file(folder / METADATA, documents.group(image, voxel_size, name))
        return output

    @classmethod
    def open(cls, location: str, *, threads: int = 2) -> OmeZarrOutput:
        folder = _local_folder(location)
        with disk_errors(location, "open"):
            if not (folder / METADATA).is_file():
                raise BadOutput(f"{location} holds no output to resume: there is no {METADATA}")
            try:
                image = _read_stored(folder)
            except _NOT_OURS as error:
                raise BadOutput(
                    f"{location} isn't an output of rigdyno, or is damaged ({shorten_error(error)}): take another name"
                ) from error
        return cls(location, image, threads)

    def write(self, box: Box, values: Array) -> None:
        """Write a whole block, and return when its file is complete and would survive a power failure."""
        self._check(box, values)
        with disk_errors(self.location, f"write {box} of"):
            self._clear_shard(self.shard(box))
            self._view(box).write(values, can_reference_source_data_indefinitely=True).result()

    def read(self, box: Box) -> Array:
        """Read a box; voxels that were never written are zero."""
        check_inside(self.location, box, self.shape)
        with disk_errors(self.location, f"read {box} of"):
            values: Array = self._view(box).read(order="C").result()
        return values

    def shard(self, box: Box) -> Path:
        """Return the path of a block's file."""
        place = [str(start // length) for start, length in zip(box.start, self.block, strict=True)]
        return self.folder.joinpath(ARRAY, "c", "0", *place)

    def remove_litter(self) -> int:
        """Remove incomplete files of killed writers, but not those of running ones, and return their number."""
        with disk_errors(self.location, "clean up"):
            return sum(remove_abandoned(file) for file in list(self.folder.rglob(f"*{LITTER}")))

    def _view(self, box: Box) -> Any:
        where = (slice(None), *box.slices())
        return self._store[where]

    def _check(self, box: Box, values: Array) -> None:
        """Refuse anything but a whole block: a part would be read, changed and rewritten, and two writes could meet."""
        on_grid = all(start % length == 0 for start, length in zip(box.start, self.block, strict=True))
        whole_block = Box((0, 0, 0), self.block).moved(box.start).within(whole_box(self.shape))
        if not on_grid or box.voxels == 0 or box != whole_block:
            raise BadSetting(
                f"{box} isn't a block of {self.location}: "
                f"blocks are {_format_shape(self.block)} in {whole_box(self.shape)}"
            )
        if values.shape != (self.channels, *box.shape) or values.dtype != self.dtype:
            wanted = f"{_format_shape((self.channels, *box.shape))} {self.dtype}"
            raise BadSetting(
                f"block {box} of {self.location} takes {wanted}, not {_format_shape(values.shape)} {values.dtype}"
            )

    def _clear_shard(self, shard: Path) -> None:
        # tensorstore reads a shard at the end of the volume before replacing it, and would fail if it is damaged.
        shard.unlink(missing_ok=True)
        with self._folders:
            make_folder(shard.parent)


def _open_store(array: Path, threads: int) -> Any:
    spec = {
        "driver": "zarr3",
        # With system locks, an abandoned file can be distinguished from one that is being written.
        "kvstore": {
            "driver": "file",
            "path": f"{array.resolve()}/",
            "file_io_locking": {"mode": "os"},
            "file_io_sync": True,
        },
        # Otherwise a block of zeros has no file, like one that was never written.
        "store_data_equal_to_fill_value": True,
    }
    return import_tensorstore().open(spec, open=True, read=True, write=True, context=make_context(threads, 0)).result()


def _local_folder(location: str) -> Path:
    if "://" in location:
        raise BadOutput(f"{location} is a URL, and outputs are written to a local folder: give a path")
    return Path(location)


def _check_free(location: str, folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise BadOutput(f"{location} is a file: take another name")
    if not _is_free(folder):
        raise BadOutput(
            f"{location} isn't empty, it holds {join_names(_list_names(folder))}: take another name, or remove it"
        )


def _is_free(folder: Path) -> bool:
    """Return whether the folder is empty, or is what `create` leaves if a run is killed before its first block."""
    names, half = {*_list_names(folder)} - {RUN_FOLDER}, f"{METADATA}{LITTER}"
    if not names <= {ARRAY, METADATA, half} or (METADATA in names and not _is_ours(folder)):
        return False
    return ARRAY not in names or {*_list_names(folder / ARRAY)} <= {METADATA, half}


def _is_ours(folder: Path) -> bool:
    try:
        _read_stored(folder)
    except (OSError, *_NOT_OURS):
        return False
    return True


def _read_stored(folder: Path) -> documents.StoredArray:
    group, array = ((place / METADATA).read_bytes() for place in (folder, folder / ARRAY))
    return documents.parse_stored(json.loads(group), json.loads(array))


def _list_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def _format_shape(lengths: tuple[int, ...]) -> str:
    return " x ".join(map(str, lengths))
