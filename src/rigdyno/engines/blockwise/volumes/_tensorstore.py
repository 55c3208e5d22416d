"""What zarr and N5 have in common: both are read by tensorstore."""

from __future__ import annotations

from typing import Any

import numpy as np

from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.errors import BadRegion, BadVolume
from rigdyno.engines.blockwise.ports import Reading, VoxelSize
from rigdyno.engines.blockwise.volumes._axes import Layout
from rigdyno.engines.blockwise.volumes._kvstore import Place, tensorstore
from rigdyno.engines.blockwise.volumes._messages import check_inside, identity_of, one_line


class TensorStoreVolume:
    """An array through one of tensorstore's drivers."""

    def __init__(self, place: Place, driver: str, document: tuple[str, bytes], layout: Layout, size: VoxelSize) -> None:
        self.location, self.voxel_size = place.location, size
        self._place, self._driver, self._document, self._layout = place, driver, document, layout
        self._filled = self._opened(fill_missing=True)
        self._strict = self._opened(fill_missing=False)
        self.shape, self.channels = layout.shape, layout.channels
        self.dtype: np.dtype[Any] = np.dtype(self._filled.dtype.numpy_dtype)

    def read(self, box: Box) -> Reading:
        check_inside(self.location, box, self.shape)
        try:
            return Reading(_read(self._strict, box))
        except ValueError as error:
            if not str(error).startswith("NOT_FOUND"):
                raise self._bad_region(box, error) from error
        return self._with_fill(box)

    def identity(self) -> str:
        key, content = self._document
        at = dict(self._layout.picks)
        return identity_of(self._place.resolved, self._layout.lengths, self.dtype.name, at, key, content.hex())

    def _with_fill(self, box: Box) -> Reading:
        key, _ = self._document
        if self._place.read(key) is None:  # a disk that went away would look like a volume without chunks
            raise BadVolume(f"{self.location} isn't there any more: {key} is gone")
        try:
            return Reading(_read(self._filled, box), missing=True)
        except ValueError as error:
            raise self._bad_region(box, error) from error

    def _bad_region(self, box: Box, error: ValueError) -> BadRegion:
        return BadRegion(f"can't read {box} of {self.location}: {one_line(error, self._place.resolved)}")

    def _opened(self, fill_missing: bool) -> Any:
        spec = {
            "driver": self._driver,
            "kvstore": self._place.kvstore,
            "fill_missing_data_reads": fill_missing,
            "recheck_cached_data": "open",  # an input that changes under us is wrong anyhow: no look at every read
            "recheck_cached_metadata": "open",
        }
        try:
            store = tensorstore().open(spec, open=True, read=True, context=self._place.context).result()
        except ValueError as error:
            reason = one_line(error, self._place.resolved)
            raise BadVolume(
                f"can't open {self.location}: {reason}; mend its metadata, or convert it to a zarr with zstd"
            ) from error
        self.chunk = self._layout.spatial(store.chunk_layout.read_chunk.shape)
        return _channels_first(store, self._layout)


def _channels_first(store: Any, layout: Layout) -> Any:
    view = store[layout.index()].transpose(layout.order)
    return view if layout.has_channels else view[tensorstore().newaxis]


def _read(store: Any, box: Box) -> Any:
    where = (slice(None), *box.slices())
    return store[where].read(order="C").result()
