"""OME-NGFF's metadata for images, versions 0.1 to 0.5, as far as a reader of one array needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rigdyno.engines.blockwise.ports import VoxelSize
from rigdyno.engines.blockwise.volumes._axes import SPACE, Layout
from rigdyno.engines.blockwise.volumes._voxel_size import voxel_size

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Image:
    """The first entry of `multiscales`."""

    multiscale: Document

    @property
    def paths(self) -> list[str]:
        """From the full resolution down."""
        return [str(dataset["path"]).strip("/") for dataset in self._datasets]

    def names(self) -> list[str] | None:
        """None before version 0.3, which had no axes."""
        axes = [_axis(axis) for axis in _list(self.multiscale.get("axes"))]
        return _names(axes) if axes else None

    def voxel_size(self, path: str, layout: Layout) -> VoxelSize:
        whole, own = _scale(self.multiscale), _scale(self._datasets[self.paths.index(path)])
        dimensions = len(layout.names)
        units = [_axis(axis).get("unit") for axis in _list(self.multiscale.get("axes"))]
        if len(own or whole) != dimensions or len(units) != dimensions:
            return VoxelSize()
        both = zip(whole or [1.0] * dimensions, own or [1.0] * dimensions, strict=False)
        return voxel_size(layout.spatial([_product(a, b) for a, b in both]), layout.spatial(units))

    @property
    def _datasets(self) -> list[Document]:
        datasets = _list(self.multiscale.get("datasets"))
        return [dataset for dataset in datasets if isinstance(dataset, dict) and "path" in dataset]


def image(attributes: Document) -> Image | None:
    """Version 0.5 keeps it under `ome`, those before at the top."""
    ome = attributes.get("ome", attributes)
    multiscales = _list(ome.get("multiscales")) if isinstance(ome, dict) else []
    return Image(multiscales[0]) if multiscales and isinstance(multiscales[0], dict) else None


def _axis(axis: Any) -> Document:
    return axis if isinstance(axis, dict) else {"name": axis}  # version 0.3 had bare names


def _names(axes: list[Document]) -> list[str]:
    """Names are free in the standard, so types count: space axes that aren't called z, y, x are so by their order."""
    names = [{"time": "t", "channel": "c"}.get(str(axis.get("type")), str(axis.get("name")).lower()) for axis in axes]
    space = [place for place, axis in enumerate(axes) if axis.get("type") == "space"]
    if len(space) == 3 and {names[place] for place in space} != set(SPACE):
        for place, name in zip(space, SPACE, strict=True):
            names[place] = name
    return names


def _scale(entry: Document) -> list[Any]:
    steps = [step for step in _list(entry.get("coordinateTransformations")) if isinstance(step, dict)]
    return next((_list(step.get("scale")) for step in steps if step.get("type") == "scale"), [])


def _product(one: Any, other: Any) -> float:
    try:
        return float(one) * float(other)
    except (TypeError, ValueError):
        return float("nan")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
