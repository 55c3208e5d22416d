"""The two zarr.json of an output, written and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.errors import BadSetting
from rigdyno.engines.blockwise.ports import VoxelSize

AXES = ("c", "z", "y", "x")
DTYPES = ("uint8", "float16")
CHUNK = 64
SMALLEST_CHUNK = 16  # below, a shard's index and its thousands of tiny chunks cost more than they save
# On maps of probabilities level 3 was 0 to 5 % smaller than level 1, and up to twice as slow.
ZSTD_LEVEL = 1
OURS = "rigdyno"


@dataclass(frozen=True)
class Stored:
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


def group(image: Stored, size: VoxelSize, name: str) -> dict[str, Any]:
    scale = {"type": "scale", "scale": [1.0, *size.zyx]}
    multiscale = {
        "name": name,
        "axes": [{"name": "c", "type": "channel"}, *(_space(axis, size.unit) for axis in AXES[1:])],
        "datasets": [{"path": "0", "coordinateTransformations": [scale]}],
    }
    attributes = {"ome": {"version": "0.5", "multiscales": [multiscale]}, OURS: dict(image.attributes)}
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def array(image: Stored) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [image.channels, *image.shape],
        "data_type": image.dtype,
        "dimension_names": list(AXES),
        "chunk_grid": _with("regular", chunk_shape=[image.channels, *image.block]),
        "chunk_key_encoding": _with("default", separator="/"),
        "fill_value": 0 if image.dtype == "uint8" else 0.0,
        "codecs": [_sharding(image.block)],
        "attributes": {},
    }


def stored(group: Any, array: Any) -> Stored:
    """KeyError, TypeError, ValueError or IndexError for what isn't ours."""
    channels, *shape = map(int, array["shape"])
    same, *block = map(int, array["chunk_grid"]["configuration"]["chunk_shape"])
    if same != channels or array["codecs"][0]["name"] != "sharding_indexed" or array["data_type"] not in DTYPES:
        raise ValueError("its array is stored in another way")
    return Stored(_zyx(shape), channels, array["data_type"], _zyx(block), group["attributes"][OURS])


def _space(axis: str, unit: str | None) -> dict[str, str]:
    return {"name": axis, "type": "space", **({"unit": unit} if unit else {})}


def _sharding(block: Zyx) -> dict[str, Any]:
    little = _with("bytes", endian="little")
    return _with(
        "sharding_indexed",
        chunk_shape=[1, *map(chunk_length, block)],
        codecs=[little, _with("zstd", level=ZSTD_LEVEL, checksum=True)],
        index_codecs=[little, {"name": "crc32c"}],
        index_location="end",
    )


def chunk_length(block: int) -> int:
    """64 where it divides the block, else the largest below that does; a block that has none is one chunk."""
    largest = max(length for length in range(1, CHUNK + 1) if block % length == 0)
    return largest if largest >= min(SMALLEST_CHUNK, block) else block


def _with(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _zyx(numbers: list[int]) -> Zyx:
    z, y, x = numbers
    return z, y, x
