"""Colours, markers and sizes of drawings, and their change for a narrow page.

Nothing is shown by colour alone: roles differ in fill, line and shape as well. The colours are those of Okabe and Ito,
which people with any kind of colour blindness can tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rigdyno.schema.estimate import Verdict
from rigdyno.schema.figure import Figure, Role, Series

WIDTH = 600  # pixels of the plot, without labels

HEIGHT = 300

BAR = 22  # pixels of a bar and its space

FONT = "system-ui, Helvetica, Arial, 'DejaVu Sans', sans-serif"

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#e1e4e8", "#ffffff"

DOUBTFUL = "#8c8c8c"

BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, YELLOW = (
    "#0072b2", "#d55e00", "#009e73", "#a0568c", "#b87a00", "#3d8fc4", "#8a7d00",
)  # fmt: skip

PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, YELLOW)

# Each colour has a name, so that a page can set it as a CSS variable; the second value is for a dark background.
COLOURS = {
    "ink": (INK, "#e6e8eb"),
    "muted": (MUTED, "#9aa4b0"),
    "grid": (GRID, "#30363d"),
    "paper": (PAPER, "#0d1117"),
    "doubtful": (DOUBTFUL, "#8a929b"),
    "blue": (BLUE, "#56b4e9"),
    "vermillion": (VERMILLION, "#ff9a5c"),
    "green": (GREEN, "#2fd0a0"),
    "purple": (PURPLE, "#e09ac6"),
    "orange": (ORANGE, "#f0b429"),
    "sky": (SKY, "#9ad1f5"),
    "yellow": (YELLOW, "#f0e442"),
}

HATCHED = "url(#hatched-{name})"  # a pattern that draw.py defines: stripes of the named colour

NARROW = 400  # pixels below which there is no room for long labels next to the plot

_LABELS = 140  # pixels of the longest label of a narrow plot

_LEGEND = 360  # pixels of the longest name in the legend of a narrow plot

_TICKS = 4  # on each axis of a narrow plot

_STAMP, _SMALL_STAMP = 38, 30  # font size of a verdict across the drawing, wide and narrow


@dataclass(frozen=True)
class Style:
    """The look of the marks of one series."""

    colour: str
    dash: tuple[int, ...] = ()
    shape: str = "circle"
    filled: bool = True
    hatched: bool = False

    @property
    def fill(self) -> str:
        """Fill of a bar."""
        return HATCHED.format(name=colour_name(self.colour)) if self.hatched else self.colour


ROLES: dict[Role, Style] = {
    "measured": Style(BLUE),
    "published": Style(VERMILLION, dash=(2, 3), shape="square", filled=False, hatched=True),
    "predicted": Style(GREEN, dash=(6, 3), shape="triangle-up", filled=False, hatched=True),
    "ideal": Style(MUTED, dash=(6, 3), shape="stroke", filled=False, hatched=True),
    "limit": Style(PURPLE, dash=(8, 2, 2, 2), shape="stroke", filled=False, hatched=True),
}


def colour_name(colour: str) -> str:
    return next(name for name, (light, _) in COLOURS.items() if light == colour)


def choose_styles(series: Sequence[Series], *, doubtful: bool = False) -> list[Style]:
    """Give each series a style with its own colour.

    The first series of a role has the role's colour, others get a free one. Doubtful measured series are grey;
    published ones keep their colour.
    """
    found: list[Style] = []
    for each in series:
        style = ROLES[each.role]
        used = {other.colour for other in found}
        if style.colour in used:
            style = replace(style, colour=next((colour for colour in PALETTE if colour not in used), style.colour))
        if each.cut:
            style = replace(style, hatched=True, filled=False)
        found.append(style)
    return [
        replace(style, colour=DOUBTFUL) if doubtful and each.role == "measured" else style
        for each, style in zip(series, found, strict=True)
    ]


def find_doubt(figure: Figure) -> Verdict | None:
    """Return the verdict of the figure, or of its values if all have the same; None if it is VALID or mixed."""
    verdicts = {figure.verdict}
    if figure.verdict is None:
        data = [datum for series in figure.series if series.role == "measured" for datum in series.data]
        verdicts = {datum.verdict for datum in data if datum.value is not None}
    found = verdicts.pop() if len(verdicts) == 1 else None
    return None if found == "VALID" else found


def is_doubtful(figure: Figure) -> bool:
    return find_doubt(figure) is not None


def choose_stamp(figure: Figure) -> Verdict | None:
    """Return the verdict to write across the drawing.

    A figure with published values has none unless the figure as a whole is doubtful: each value has its own verdict.
    """
    published = any(series.role == "published" and series.data for series in figure.series)
    return None if published and figure.verdict is None else find_doubt(figure)


def config() -> dict[str, Any]:
    """Return the Vega-Lite configuration that all charts share."""
    text = {"labelColor": MUTED, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": PAPER,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **text,
            "gridColor": GRID,
            "domainColor": MUTED,
            "tickColor": MUTED,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "labelLimit": 260,
        },
        "legend": {**text, "orient": "top", "title": None, "labelLimit": 420, "symbolSize": 120, "columnPadding": 18},
        "title": {
            "anchor": "start", "frame": "group", "color": INK, "fontSize": 16, "fontWeight": 600, "offset": 14,
            "subtitleColor": MUTED, "subtitleFontSize": 12, "subtitlePadding": 6, "subtitleLineHeight": 16,
        },
    }  # fmt: skip


def resize_chart(spec: dict[str, Any], width: int) -> dict[str, Any]:
    """Return the chart in another width, and without its title, which the page shows. `width` excludes labels."""
    found: dict[str, Any] = _resize({**spec, "title": None, "padding": 2}, width)
    return found if width >= NARROW else {**found, "config": _narrow_config(found["config"], width)}


def _resize(value: Any, width: int) -> Any:
    """Resize every plot of the default width, and what is positioned at its end or its middle."""
    if isinstance(value, list):
        return [_resize(each, width) for each in value if width >= NARROW or not _is_inside_bars(each)]
    if not isinstance(value, dict):
        return value
    places = {WIDTH: width, WIDTH / 2: width / 2}
    if value.keys() == {"value"} and isinstance(value["value"], int | float) and value["value"] in places:
        return {"value": places[value["value"]]}
    found = {key: each if key == "data" else _resize(each, width) for key, each in value.items()}
    if found.get("width") == WIDTH:
        found["width"] = width
    if found.get("type") == "text" and found.get("fontSize", 0) > _STAMP:
        found["fontSize"] = _STAMP if width >= NARROW else _SMALL_STAMP
    return found


def _is_inside_bars(layer: Any) -> bool:
    """Return whether a layer is the names inside bars: a narrow drawing has no room for them, but the legend has."""
    mark = layer.get("mark") if isinstance(layer, dict) else None
    return isinstance(mark, dict) and mark.get("type") == "text" and mark.get("color") == PAPER


def _narrow_config(config: dict[str, Any], width: int) -> dict[str, Any]:
    axis = {**config["axis"], "labelLimit": _LABELS, "tickCount": _TICKS, "titleLimit": width}
    legend = {**config["legend"], "columns": 1, "labelLimit": _LEGEND, "rowPadding": 3}
    return {**config, "axis": axis, "legend": legend}
