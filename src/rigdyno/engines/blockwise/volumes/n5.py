"""Open N5, which stores x first: axes, sizes and units in its metadata are all in that order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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

KEY = "attributes.json"


def open_n5(place: StoreLocation, at: Mapping[str, int], dtypes: Sequence[str] = DTYPES) -> TensorStoreVolume | None:
    """Open an array; return None if there is no N5 here."""
    content = place.read(KEY)
    if content is None:
        return None
    document = place.parse_json(KEY, content)
    lengths = document.get("dimensions")
    if lengths is None:
        raise BadVolume(_explain_no_array(place))
    if not isinstance(lengths, list) or not all(isinstance(length, int) for length in lengths):
        raise BadVolume(f"{KEY} of {place.location} has no usable dimensions: restore it, or convert the volume anew")
    check_dtype(place.location, str(document.get("dataType")), dtypes)
    names = axes_by_label(document.get("axes") or (), len(lengths)) or axes_by_count(place.location, len(lengths))[::-1]
    layout = make_layout(place.location, names, lengths, at)
    return TensorStoreVolume(place, "n5", (KEY, content), layout, _voxel_size(document, _read_parent(place), layout))


def find_arrays(place: StoreLocation) -> list[str]:
    return place.find_arrays(_holds_array)


def _voxel_size(own: Mapping[str, Any], above: Mapping[str, Any], layout: Layout) -> VoxelSize:
    """Read the voxel size: COSEM's transform, Neuroglancer's resolution or n5-viewer's pixelResolution.

    The last two state the size at full resolution, for all levels of a pyramid.
    """
    if isinstance(own.get("transform"), dict):
        return _voxel_size_from_transform(own["transform"])
    sizes, units = _find_full_resolution(own) or _find_full_resolution(above) or ([], [])
    factors = own.get("downsamplingFactors") or [1] * len(sizes)
    dimensions = len(layout.names)
    if not len(sizes) == len(factors) == dimensions:
        return VoxelSize()
    effective = [_number(size) * _number(factor) for size, factor in zip(sizes, factors, strict=True)]
    return make_voxel_size(
        layout.select_zyx(effective), layout.select_zyx((list(units) + [None] * dimensions)[:dimensions])
    )


def _find_full_resolution(document: Mapping[str, Any]) -> tuple[list[Any], list[Any]] | None:
    pixel = document.get("pixelResolution")
    if isinstance(pixel, dict) and isinstance(pixel.get("dimensions"), list):
        return pixel["dimensions"], [pixel.get("unit")] * len(pixel["dimensions"])
    sizes, units = document.get("resolution", pixel), document.get("units")
    return (sizes, units if isinstance(units, list) else []) if isinstance(sizes, list) else None


def _voxel_size_from_transform(transform: Mapping[str, Any]) -> VoxelSize:
    """Read COSEM's transform, which names its axes, in NumPy's order."""
    try:
        axes = [str(axis).lower() for axis in transform["axes"]]
        places = [axes.index(axis) for axis in SPACE]
        return make_voxel_size(*([transform[key][place] for place in places] for key in ("scale", "units")))
    except (KeyError, IndexError, TypeError, ValueError):
        return VoxelSize()


def _read_parent(place: StoreLocation) -> Mapping[str, Any]:
    above = place.parent()
    try:
        return (above and above.read_json(KEY)) or {}
    except BadVolume:
        return {}


def _explain_no_array(place: StoreLocation) -> str:
    arrays = find_arrays(place)
    if not arrays:
        return f"{place.location} is an N5 group: give the path of an array in it"
    return f"{place.location} is an N5 group: name one array in it, {join_names(arrays)}"


def _holds_array(place: StoreLocation) -> bool:
    try:
        return "dimensions" in (place.read_json(KEY) or {})
    except BadVolume:
        return False


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
