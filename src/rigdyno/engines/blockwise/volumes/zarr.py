"""Zarr 2 and 3, with OME-NGFF's metadata or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rigdyno.engines.blockwise.errors import BadVolume
from rigdyno.engines.blockwise.ports import VoxelSize
from rigdyno.engines.blockwise.volumes._axes import by_label, by_number, layout
from rigdyno.engines.blockwise.volumes._kvstore import Place
from rigdyno.engines.blockwise.volumes._messages import DTYPES, check_dtype, listed
from rigdyno.engines.blockwise.volumes._ome import Image, image
from rigdyno.engines.blockwise.volumes._tensorstore import TensorStoreVolume

MOST_ABOVE = 5  # groups between an array and the image that it belongs to


@dataclass(frozen=True)
class Node:
    """An array or a group, with its metadata."""

    place: Place
    driver: str  # as tensorstore calls it
    key: str
    content: bytes
    document: Mapping[str, Any]
    attributes: Mapping[str, Any]
    is_array: bool


def open_zarr(place: Place, at: Mapping[str, int], dtypes: Sequence[str] = DTYPES) -> TensorStoreVolume | None:
    """None: there is no zarr here."""
    node = node_at(place)
    if node is None:
        return None
    if node.is_array:
        return _opened(node, *_image_above(place), at=at, dtypes=dtypes)
    found = image(node.attributes)
    if found is None or not found.paths:
        raise BadVolume(_no_image(place))
    path = found.paths[0]
    array = node_at(place.child(path))
    if array is None or not array.is_array:
        raise BadVolume(f"{place.location} names {path!r} as its full resolution, and there is no array: restore it")
    return _opened(array, found, path, at=at, dtypes=dtypes)


def node_at(place: Place) -> Node | None:
    content = place.read("zarr.json")
    if content is not None:
        document = place.parsed("zarr.json", content)
        is_array = document.get("node_type") == "array"
        return Node(place, "zarr3", "zarr.json", content, document, _object(document.get("attributes")), is_array)
    return _node_of_version_2(place)


def arrays_below(place: Place) -> list[str]:
    return place.below(_holds_array)


def _node_of_version_2(place: Place) -> Node | None:
    attributes = place.document(".zattrs")
    for key in (".zarray", ".zgroup"):
        content = place.read(key)
        if content is not None:
            return Node(place, "zarr", key, content, place.parsed(key, content), attributes or {}, key == ".zarray")
    return None if attributes is None else Node(place, "zarr", ".zattrs", b"", {}, attributes, False)


def _opened(
    node: Node, found: Image | None, path: str, *, at: Mapping[str, int], dtypes: Sequence[str]
) -> TensorStoreVolume:
    location, shape = node.place.location, node.document.get("shape")
    if not isinstance(shape, list) or not all(isinstance(length, int) for length in shape):
        raise BadVolume(f"{node.key} of {location} has no shape: restore it, or convert the volume anew")
    check_dtype(location, _dtype(node.document), dtypes)
    names = (found and found.names()) or by_label(node.document.get("dimension_names") or (), len(shape))
    placed = layout(location, names or by_number(location, len(shape)), shape, at)
    size = found.voxel_size(path, placed) if found else VoxelSize()
    return TensorStoreVolume(node.place, node.driver, (node.key, node.content), placed, size)


def _dtype(document: Mapping[str, Any]) -> str:
    if "data_type" in document:
        return str(document["data_type"])
    try:
        return str(np.dtype(document.get("dtype", "")).name)
    except TypeError:
        return str(document.get("dtype"))


def _image_above(place: Place) -> tuple[Image | None, str]:
    """The image that names this array as one of its resolutions: its axes and voxel sizes are written there."""
    path, above = place.name, place.parent()
    for _ in range(MOST_ABOVE):
        try:
            group = node_at(above) if above else None
        except BadVolume:  # a group that can't be read doesn't make the array worse
            group = None
        if above is None or group is None:
            break
        found = image(group.attributes)
        if found and path in found.paths:
            return found, path
        path, above = f"{above.name}/{path}", above.parent()
    return None, path


def _no_image(place: Place) -> str:
    arrays = arrays_below(place)
    if not arrays:
        return f"{place.location} is a zarr group without multiscales: give the path of an array in it"
    return f"{place.location} is a zarr group without multiscales: name one in it, {listed(arrays)}"


def _holds_array(place: Place) -> bool:
    try:
        node = node_at(place)
    except BadVolume:
        return False
    return node is not None and (node.is_array or image(node.attributes) is not None)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
