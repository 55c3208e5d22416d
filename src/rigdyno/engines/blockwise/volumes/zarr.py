"""Open zarr 2 and 3, with or without the image metadata of OME-NGFF 0.1 to 0.5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rigdyno.engines.blockwise.errors import BadVolume
from rigdyno.engines.blockwise.interfaces import VoxelSize
from rigdyno.engines.blockwise.volumes.messages import DTYPES, check_dtype, join_names
from rigdyno.engines.blockwise.volumes.metadata import (
    SPACE,
    Layout,
    axes_by_count,
    axes_by_label,
    make_layout,
    make_voxel_size,
)
from rigdyno.engines.blockwise.volumes.tensorstore import StoreLocation, TensorStoreVolume

Document = Mapping[str, Any]

MOST_ABOVE = 5  # levels of groups between an array and the image that it belongs to


@dataclass(frozen=True)
class ZarrNode:
    """An array or a group, with its metadata."""

    place: StoreLocation
    driver: str  # tensorstore's name for the format
    key: str
    content: bytes
    document: Mapping[str, Any]
    attributes: Mapping[str, Any]
    is_array: bool


def open_zarr(place: StoreLocation, at: Mapping[str, int], dtypes: Sequence[str] = DTYPES) -> TensorStoreVolume | None:
    """Open an array or an image; return None if there is no zarr here."""
    node = read_node(place)
    if node is None:
        return None
    if node.is_array:
        return _open_array(node, *_find_image_above(place), at=at, dtypes=dtypes)
    found = find_image(node.attributes)
    if found is None or not found.paths:
        raise BadVolume(_explain_no_image(place))
    path = found.paths[0]
    array = read_node(place.child(path))
    if array is None or not array.is_array:
        raise BadVolume(
            f"{place.location} names {path!r} as its full resolution, but there is no such array: restore it"
        )
    return _open_array(array, found, path, at=at, dtypes=dtypes)


def read_node(place: StoreLocation) -> ZarrNode | None:
    content = place.read("zarr.json")
    if content is not None:
        document = place.parse_json("zarr.json", content)
        is_array = document.get("node_type") == "array"
        return ZarrNode(
            place, "zarr3", "zarr.json", content, document, _as_object(document.get("attributes")), is_array
        )
    return _read_node_v2(place)


def find_arrays(place: StoreLocation) -> list[str]:
    return place.find_arrays(_holds_array)


def _read_node_v2(place: StoreLocation) -> ZarrNode | None:
    attributes = place.read_json(".zattrs")
    for key in (".zarray", ".zgroup"):
        content = place.read(key)
        if content is not None:
            return ZarrNode(
                place, "zarr", key, content, place.parse_json(key, content), attributes or {}, key == ".zarray"
            )
    return None if attributes is None else ZarrNode(place, "zarr", ".zattrs", b"", {}, attributes, False)


def _open_array(
    node: ZarrNode, found: Image | None, path: str, *, at: Mapping[str, int], dtypes: Sequence[str]
) -> TensorStoreVolume:
    location, shape = node.place.location, node.document.get("shape")
    if not isinstance(shape, list) or not all(isinstance(length, int) for length in shape):
        raise BadVolume(f"{node.key} of {location} has no shape: restore it, or convert the volume anew")
    check_dtype(location, _dtype_name(node.document), dtypes)
    names = (found and found.axis_names()) or axes_by_label(node.document.get("dimension_names") or (), len(shape))
    layout = make_layout(location, names or axes_by_count(location, len(shape)), shape, at)
    size = found.voxel_size(path, layout) if found else VoxelSize()
    return TensorStoreVolume(node.place, node.driver, (node.key, node.content), layout, size)


def _dtype_name(document: Mapping[str, Any]) -> str:
    if "data_type" in document:
        return str(document["data_type"])
    try:
        return str(np.dtype(document.get("dtype", "")).name)
    except TypeError:
        return str(document.get("dtype"))


def _find_image_above(place: StoreLocation) -> tuple[Image | None, str]:
    """Find the image that lists this array as one of its resolutions, and the path from it to the array.

    Axes and voxel sizes of the array are stored there.
    """
    path, above = place.name, place.parent()
    for _ in range(MOST_ABOVE):
        try:
            group = read_node(above) if above else None
        except BadVolume:  # the array can be read without it
            group = None
        if above is None or group is None:
            break
        found = find_image(group.attributes)
        if found and path in found.paths:
            return found, path
        path, above = f"{above.name}/{path}", above.parent()
    return None, path


def _explain_no_image(place: StoreLocation) -> str:
    arrays = find_arrays(place)
    if not arrays:
        return f"{place.location} is a zarr group without multiscales: give the path of an array in it"
    return f"{place.location} is a zarr group without multiscales: name one in it, {join_names(arrays)}"


def _holds_array(place: StoreLocation) -> bool:
    try:
        node = read_node(place)
    except BadVolume:
        return False
    return node is not None and (node.is_array or find_image(node.attributes) is not None)


def _as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Image:
    """An image of OME-NGFF: the first entry of `multiscales`."""

    multiscale: Document

    @property
    def paths(self) -> list[str]:
        """Return the paths of the resolutions, the full one first."""
        return [str(dataset["path"]).strip("/") for dataset in self._datasets]

    def axis_names(self) -> list[str] | None:
        """Return the names of the axes; None before version 0.3, which had none."""
        axes = [_axis(axis) for axis in _as_list(self.multiscale.get("axes"))]
        return _name_axes(axes) if axes else None

    def voxel_size(self, path: str, layout: Layout) -> VoxelSize:
        whole, own = _find_scale(self.multiscale), _find_scale(self._datasets[self.paths.index(path)])
        dimensions = len(layout.names)
        units = [_axis(axis).get("unit") for axis in _as_list(self.multiscale.get("axes"))]
        if len(own or whole) != dimensions or len(units) != dimensions:
            return VoxelSize()
        both = zip(whole or [1.0] * dimensions, own or [1.0] * dimensions, strict=False)
        return make_voxel_size(layout.select_zyx([_multiply(a, b) for a, b in both]), layout.select_zyx(units))

    @property
    def _datasets(self) -> list[Document]:
        datasets = _as_list(self.multiscale.get("datasets"))
        return [dataset for dataset in datasets if isinstance(dataset, dict) and "path" in dataset]


def find_image(attributes: Document) -> Image | None:
    """Find the image in a group's attributes: version 0.5 stores it under `ome`, earlier versions at the top."""
    ome = attributes.get("ome", attributes)
    multiscales = _as_list(ome.get("multiscales")) if isinstance(ome, dict) else []
    return Image(multiscales[0]) if multiscales and isinstance(multiscales[0], dict) else None


def _axis(axis: Any) -> Document:
    return axis if isinstance(axis, dict) else {"name": axis}  # version 0.3 had bare names


def _name_axes(axes: list[Document]) -> list[str]:
    """Return the names t, c, z, y, x. The standard allows any names, so go by types, and in space by the order."""
    names = [{"time": "t", "channel": "c"}.get(str(axis.get("type")), str(axis.get("name")).lower()) for axis in axes]
    space = [place for place, axis in enumerate(axes) if axis.get("type") == "space"]
    if len(space) == 3 and {names[place] for place in space} != set(SPACE):
        for place, name in zip(space, SPACE, strict=True):
            names[place] = name
    return names


def _find_scale(entry: Document) -> list[Any]:
    steps = [step for step in _as_list(entry.get("coordinateTransformations")) if isinstance(step, dict)]
    return next((_as_list(step.get("scale")) for step in steps if step.get("type") == "scale"), [])


def _multiply(one: Any, other: Any) -> float:
    try:
        return float(one) * float(other)
    except (TypeError, ValueError):
        return float("nan")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
