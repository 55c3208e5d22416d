"""Read zarr and N5 through tensorstore, from a local folder or a URL."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import numpy as np

from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting, BadVolume
from rigdyno.engines.blockwise.interfaces import Reading, VoxelSize
from rigdyno.engines.blockwise.volumes.messages import check_inside, hash_parts, missing_extra, shorten_error
from rigdyno.engines.blockwise.volumes.metadata import Layout

SCHEMES = ("http", "https", "s3", "gs", "file")

MOST_LEVELS = 3  # levels below a group that are searched for arrays, to name them in a message

MOST_FOLDERS = 300

RETRIES = 5  # with tensorstore's default of 32 it takes many minutes to report a host that doesn't answer


def import_tensorstore() -> Any:
    try:
        import tensorstore
    except ImportError as error:
        raise missing_extra("tensorstore") from error
    return tensorstore


def make_context(threads: int, cache_bytes: int) -> Any:
    if threads < 1 or cache_bytes < 0:
        raise BadSetting(
            f"{threads} threads with {cache_bytes} bytes of cache make no sense: give 1 or more, and 0 or more"
        )
    retries = {"max_retries": RETRIES, "initial_delay": "500ms", "max_delay": "8s"}
    return import_tensorstore().Context(
        {
            "cache_pool": {"total_bytes_limit": cache_bytes},
            "data_copy_concurrency": {"limit": threads},
            **{f"{service}_request_retries": retries for service in ("http", "s3", "gcs")},
        }
    )


@dataclass(frozen=True)
class StoreLocation:
    """A local folder or a URL that may contain an array."""

    location: str  # as the user wrote it, for messages
    root: str  # path or URL, without a slash at the end
    context: Any  # of tensorstore

    @property
    def folder(self) -> Path | None:
        return None if "://" in self.root else Path(self.root)

    @property
    def resolved(self) -> str:
        return self.root if self.folder is None else str(self.folder.resolve())

    @property
    def kvstore(self) -> Any:
        """Return the location in the form of tensorstore's specs."""
        return f"{self.root}/" if self.folder is None else {"driver": "file", "path": f"{self.resolved}/"}

    def child(self, path: str) -> StoreLocation:
        return replace(self, root=f"{self.root}/{path if self.folder else quote(path)}")

    def parent(self) -> StoreLocation | None:
        if self.folder is not None:
            above = self.folder.resolve().parent
            return replace(self, root=str(above)) if above.name else None
        url = urlsplit(self.root)
        return replace(self, root=self.root.rpartition("/")[0]) if url.path.strip("/") else None

    @property
    def name(self) -> str:
        return unquote(self.resolved.rpartition("/")[2]) if self.folder is None else self.folder.resolve().name

    def read(self, key: str) -> bytes | None:
        """Return the content of a file, or None if there is no such file."""
        try:
            answer = self._store.read(key).result()
        except ValueError as error:
            raise BadVolume(f"can't read {key} of {self.location}: {shorten_error(error)}") from error
        return bytes(answer.value) if answer.state == "value" else None

    def read_json(self, key: str) -> dict[str, Any] | None:
        content = self.read(key)
        return None if content is None else self.parse_json(key, content)

    def parse_json(self, key: str, content: bytes) -> dict[str, Any]:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise BadVolume(
                f"{key} of {self.location} is damaged ({shorten_error(error)}): restore it, or convert the volume anew"
            ) from error
        if not isinstance(document, dict):
            raise BadVolume(f"{key} of {self.location} holds no JSON object: restore it, or convert the volume anew")
        return document

    def find_arrays(self, holds_array: Callable[[StoreLocation], bool]) -> list[str]:
        """Return the paths of the arrays in this folder, for messages. Folders at a URL can't be listed."""
        found, searched = [], 0
        todo = [(self, "", 0)]
        while todo and searched < MOST_FOLDERS:
            (place, path, level), searched = todo.pop(0), searched + 1
            if path and holds_array(place):
                found.append(path)
            elif level < MOST_LEVELS:
                todo += [(place.child(name), f"{path}/{name}".strip("/"), level + 1) for name in place._list_folders()]
        return found

    def _list_folders(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self.folder.iterdir() if entry.is_dir()) if self.folder else []
        except OSError:
            return []

    @cached_property
    def _store(self) -> Any:
        return import_tensorstore().KvStore.open(self.kvstore, context=self.context).result()


def to_local_path(location: str) -> str | None:
    """Return the path of a local volume, or None for a URL."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location
    if scheme not in SCHEMES:
        raise BadVolume(f"{location} begins with {scheme}://; supported are {', '.join(SCHEMES)}")
    return unquote(rest) if scheme == "file" else None


class TensorStoreVolume:
    """An array that one of tensorstore's drivers reads."""

    def __init__(
        self, place: StoreLocation, driver: str, document: tuple[str, bytes], layout: Layout, size: VoxelSize
    ) -> None:
        self.location, self.voxel_size = place.location, size
        self._place, self._driver, self._document, self._layout = place, driver, document, layout
        self._filled = self._open(fill_missing=True)
        self._strict = self._open(fill_missing=False)
        self.shape, self.channels = layout.shape, layout.channels
        self.dtype: np.dtype[Any] = np.dtype(self._filled.dtype.numpy_dtype)

    def read(self, box: Box) -> Reading:
        check_inside(self.location, box, self.shape)
        try:
            return Reading(_read_box(self._strict, box))
        except ValueError as error:
            if not str(error).startswith("NOT_FOUND"):
                raise self._bad_region(box, error) from error
        return self._read_filled(box)

    def identity(self) -> str:
        key, content = self._document
        at = dict(self._layout.picks)
        return hash_parts(self._place.resolved, self._layout.lengths, self.dtype.name, at, key, content.hex())

    def _read_filled(self, box: Box) -> Reading:
        key, _ = self._document
        if self._place.read(key) is None:  # a disk that was unmounted would look like a volume without chunks
            raise BadVolume(f"{self.location} isn't there any more: {key} is gone")
        try:
            return Reading(_read_box(self._filled, box), missing=True)
        except ValueError as error:
            raise self._bad_region(box, error) from error

    def _bad_region(self, box: Box, error: ValueError) -> BadRegion:
        return BadRegion(f"can't read {box} of {self.location}: {shorten_error(error, self._place.resolved)}")

    def _open(self, fill_missing: bool) -> Any:
        spec = {
            "driver": self._driver,
            "kvstore": self._place.kvstore,
            "fill_missing_data_reads": fill_missing,
            "recheck_cached_data": "open",  # don't check at every read: an input must not change during a run
            "recheck_cached_metadata": "open",
        }
        try:
            store = import_tensorstore().open(spec, open=True, read=True, context=self._place.context).result()
        except ValueError as error:
            reason = shorten_error(error, self._place.resolved)
            raise BadVolume(
                f"can't open {self.location}: {reason}; correct its metadata, or convert it to a zarr with zstd"
            ) from error
        self.chunk = self._layout.select_zyx(store.chunk_layout.read_chunk.shape)
        return _put_channels_first(store, self._layout)


def _put_channels_first(store: Any, layout: Layout) -> Any:
    view = store[layout.index()].transpose(layout.order)
    return view if layout.has_channels else view[import_tensorstore().newaxis]


def _read_box(store: Any, box: Box) -> Any:
    where = (slice(None), *box.slices())
    return store[where].read(order="C").result()
