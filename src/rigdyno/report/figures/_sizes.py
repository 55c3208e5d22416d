"""The same drawing in another width, for a page that is wide on a desk and narrow on a phone."""

from __future__ import annotations

from typing import Any

from rigdyno.report.figures._style import PAPER, WIDTH

NARROW = 400  # below this there is no room for long labels beside the plot
_LABELS = 140  # pixels of the longest label then
_LEGEND = 360
_TICKS = 4
_STAMP, _SMALL_STAMP = 38, 30  # pixels of the letters of a verdict that lies across the drawing


def resized(spec: dict[str, Any], width: int) -> dict[str, Any]:
    """Without a title, which the page has. `width` is that of the plot, without labels."""
    found: dict[str, Any] = _scaled({**spec, "title": None, "padding": 2}, width)
    return found if width >= NARROW else {**found, "config": _narrow(found["config"], width)}


def _scaled(value: Any, width: int) -> Any:
    """Every plot of the usual width, and what is placed by it: at its end, or in the middle."""
    if isinstance(value, list):
        return [_scaled(each, width) for each in value if width >= NARROW or not _is_inside_bars(each)]
    if not isinstance(value, dict):
        return value
    places = {WIDTH: width, WIDTH / 2: width / 2}
    if value.keys() == {"value"} and isinstance(value["value"], int | float) and value["value"] in places:
        return {"value": places[value["value"]]}
    found = {key: each if key == "data" else _scaled(each, width) for key, each in value.items()}
    if found.get("width") == WIDTH:
        found["width"] = width
    if found.get("type") == "text" and found.get("fontSize", 0) > _STAMP:
        found["fontSize"] = _STAMP if width >= NARROW else _SMALL_STAMP
    return found


def _is_inside_bars(layer: Any) -> bool:
    """Names inside of bars, for which a narrow drawing has no room; the legend has them as well."""
    mark = layer.get("mark") if isinstance(layer, dict) else None
    return isinstance(mark, dict) and mark.get("type") == "text" and mark.get("color") == PAPER


def _narrow(config: dict[str, Any], width: int) -> dict[str, Any]:
    axis = {**config["axis"], "labelLimit": _LABELS, "tickCount": _TICKS, "titleLimit": width}
    legend = {**config["legend"], "columns": 1, "labelLimit": _LEGEND, "rowPadding": 3}
    return {**config, "axis": axis, "legend": legend}
