"""Make and parse the two zarr.json files of an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.errors import BadSetting
from rigdyno.engines.blockwise.interfaces import VoxelSize

AXES = ("c", "z", "y", "x")

DTYPES = ("uint8", "float16")

CHUNK = 64

SMALLEST_CHUNK = 16  # below this, a shard's index and its thousands of tiny chunks cost more than they save

# On probability maps, level 3 was 0 to 5 % smaller than level 1 and up to twice as slow.
ZSTD_LEVEL = 1

OURS = "rigdyno"  # key of our own attributes


@dataclass(frozen=True)
class StoredArray:
    """The array of an output, as its metadata describe it."""

    shape: Zyx
    channels: int
    dtype: str
    block: Zyx
    attributes: Mapping[str, Any]

    def check(self) -> None:
        if self.dtype not in DTYPES:
            raise BadSetting(f"outputs are {' or '.join(DTYPES)}, not {self.dtype}")
        if min(*self.shape, *self.block, self.channels) < 1:
            raise BadSetting(f"an output of shape {self.shape}, {self.channels} channels, blocks {self.block} is empty")


def group(image: StoredArray, size: VoxelSize, name: str) -> dict[str, Any]:
    """Return the zarr.json of the image."""
    scale = {"type": "scale", "scale": [1.0, *size.zyx]}
    multiscale = {
        "name": name,
        "axes": [{"name": "c", "type": "channel"}, *(_space_axis(axis, size.unit) for axis in AXES[1:])],
        "datasets": [{"path": "0", "coordinateTransformations": [scale]}],
    }
    attributes = {"ome": {"version": "0.5", "multiscales": [multiscale]}, OURS: dict(image.attributes)}
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def array(image: StoredArray) -> dict[str, Any]:
    """Return the zarr.json of the array."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [image.channels, *image.shape],
        "data_type": image.dtype,
        "dimension_names": list(AXES),
        "chunk_grid": _configure("regular", chunk_shape=[image.channels, *image.block]),
        "chunk_key_encoding": _configure("default", separator="/"),
        "fill_value": 0 if image.dtype == "uint8" else 0.0,
        "codecs": [_sharding(image.block)],
        "attributes": {},
    }


def parse_stored(group: Any, array: Any) -> StoredArray:
    """Parse both documents; raise KeyError, TypeError, ValueError or IndexError if they aren't ours."""
    channels, *shape = map(int, array["shape"])
    same, *block = map(int, array["chunk_grid"]["configuration"]["chunk_shape"])
    if same != channels or array["codecs"][0]["name"] != "sharding_indexed" or array["data_type"] not in DTYPES:
        raise ValueError("its array has another format")
    return StoredArray(_zyx(shape), channels, array["data_type"], _zyx(block), group["attributes"][OURS])


def _space_axis(axis: str, unit: str | None) -> dict[str, str]:
    return {"name": axis, "type": "space", **({"unit": unit} if unit else {})}


def _sharding(block: Zyx) -> dict[str, Any]:
    little = _configure("bytes", endian="little")
    return _configure(
        "sharding_indexed",
        chunk_shape=[1, *map(chunk_length, block)],
        codecs=[little, _configure("zstd", level=ZSTD_LEVEL, checksum=True)],
        index_codecs=[little, {"name": "crc32c"}],
        index_location="end",
    )


def chunk_length(block: int) -> int:
    """Return the largest length up to 64 that divides the block; the whole block if that is less than 16."""
    largest = max(length for length in range(1, CHUNK + 1) if block % length == 0)
    return largest if largest >= min(SMALLEST_CHUNK, block) else block


def _configure(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _zyx(numbers: list[int]) -> Zyx:
    z, y, x = numbers
    return z, y, x
