"""N5, which stores x first: axes, sizes and units of its metadata are all in that order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rigdyno.engines.blockwise.errors import BadVolume
from rigdyno.engines.blockwise.ports import VoxelSize
from rigdyno.engines.blockwise.volumes._axes import SPACE, Layout, by_label, by_number, layout
from rigdyno.engines.blockwise.volumes._kvstore import Place
from rigdyno.engines.blockwise.volumes._messages import DTYPES, check_dtype, listed
from rigdyno.engines.blockwise.volumes._tensorstore import TensorStoreVolume
from rigdyno.engines.blockwise.volumes._voxel_size import voxel_size

KEY = "attributes.json"


def open_n5(place: Place, at: Mapping[str, int], dtypes: Sequence[str] = DTYPES) -> TensorStoreVolume | None:
    """None: there is no N5 here."""
    content = place.read(KEY)
    if content is None:
        return None
    document = place.parsed(KEY, content)
    lengths = document.get("dimensions")
    if lengths is None:
        raise BadVolume(_no_array(place))
    if not isinstance(lengths, list) or not all(isinstance(length, int) for length in lengths):
        raise BadVolume(f"{KEY} of {place.location} has no usable dimensions: restore it, or convert the volume anew")
    check_dtype(place.location, str(document.get("dataType")), dtypes)
    names = by_label(document.get("axes") or (), len(lengths)) or by_number(place.location, len(lengths))[::-1]
    placed = layout(place.location, names, lengths, at)
    return TensorStoreVolume(place, "n5", (KEY, content), placed, _voxel_size(document, _above(place), placed))


def arrays_below(place: Place) -> list[str]:
    return place.below(_holds_array)


def _voxel_size(own: Mapping[str, Any], above: Mapping[str, Any], placed: Layout) -> VoxelSize:
    """Of the conventions in use: COSEM's transform, Neuroglancer's resolution, n5-viewer's pixelResolution.

    The last two give the size at full resolution, for all levels of a pyramid.
    """
    if isinstance(own.get("transform"), dict):
        return _of_transform(own["transform"])
    sizes, units = _full_resolution(own) or _full_resolution(above) or ([], [])
    factors = own.get("downsamplingFactors") or [1] * len(sizes)
    dimensions = len(placed.names)
    if not len(sizes) == len(factors) == dimensions:
        return VoxelSize()
    effective = [_number(size) * _number(factor) for size, factor in zip(sizes, factors, strict=True)]
    return voxel_size(placed.spatial(effective), placed.spatial((list(units) + [None] * dimensions)[:dimensions]))


def _full_resolution(document: Mapping[str, Any]) -> tuple[list[Any], list[Any]] | None:
    pixel = document.get("pixelResolution")
    if isinstance(pixel, dict) and isinstance(pixel.get("dimensions"), list):
        return pixel["dimensions"], [pixel.get("unit")] * len(pixel["dimensions"])
    sizes, units = document.get("resolution", pixel), document.get("units")
    return (sizes, units if isinstance(units, list) else []) if isinstance(sizes, list) else None


def _of_transform(transform: Mapping[str, Any]) -> VoxelSize:
    """This one names its axes, in the order of NumPy."""
    try:
        axes = [str(axis).lower() for axis in transform["axes"]]
        places = [axes.index(axis) for axis in SPACE]
        return voxel_size(*([transform[key][place] for place in places] for key in ("scale", "units")))
    except (KeyError, IndexError, TypeError, ValueError):
        return VoxelSize()


def _above(place: Place) -> Mapping[str, Any]:
    above = place.parent()
    try:
        return (above and above.document(KEY)) or {}
    except BadVolume:
        return {}


def _no_array(place: Place) -> str:
    arrays = arrays_below(place)
    if not arrays:
        return f"{place.location} is an N5 group: give the path of an array in it"
    return f"{place.location} is an N5 group: name one array in it, {listed(arrays)}"


def _holds_array(place: Place) -> bool:
    try:
        return "dimensions" in (place.document(KEY) or {})
    except BadVolume:
        return False


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
