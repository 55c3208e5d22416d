"""Colours, signs and sizes. Nothing is told by colour alone: roles differ in filling, line and shape as well.

The colours are those of Okabe and Ito, which people with any kind of colour blindness can tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rigdyno.schema.estimate import Verdict
from rigdyno.schema.figure import Figure, Role, Series

WIDTH = 600  # of the plot, without labels
HEIGHT = 300
BAR = 22  # of a bar with its space
FONT = "system-ui, Helvetica, Arial, 'DejaVu Sans', sans-serif"

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#e1e4e8", "#ffffff"
DOUBTFUL = "#8c8c8c"
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, YELLOW = (
    "#0072b2", "#d55e00", "#009e73", "#a0568c", "#b87a00", "#3d8fc4", "#8a7d00",
)  # fmt: skip
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, YELLOW)

# By its name, so that a page can set each as a CSS variable; the second colour is for a dark ground.
NAMED = {
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
HATCHED = "url(#hatched-{name})"  # a pattern that _svg.py defines: stripes of the named colour


@dataclass(frozen=True)
class Style:
    """How the marks of one series look."""

    colour: str
    dash: tuple[int, ...] = ()
    shape: str = "circle"
    filled: bool = True
    hatched: bool = False

    @property
    def fill(self) -> str:
        """Of a bar."""
        return HATCHED.format(name=colour_name(self.colour)) if self.hatched else self.colour


ROLES: dict[Role, Style] = {
    "measured": Style(BLUE),
    "published": Style(VERMILLION, dash=(2, 3), shape="square", filled=False, hatched=True),
    "predicted": Style(GREEN, dash=(6, 3), shape="triangle-up", filled=False, hatched=True),
    "ideal": Style(MUTED, dash=(6, 3), shape="stroke", filled=False, hatched=True),
    "limit": Style(PURPLE, dash=(8, 2, 2, 2), shape="stroke", filled=False, hatched=True),
}


def colour_name(colour: str) -> str:
    return next(name for name, (light, _) in NAMED.items() if light == colour)


def styles_of(series: Sequence[Series], *, doubtful: bool = False) -> list[Style]:
    """Each its own colour: the first of a role has the role's, others what is left. Measured ones that are doubtful
    have none; what others published stays as it is."""
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


def doubt_of(figure: Figure) -> Verdict | None:
    """The word across the whole: of the figure, or of all its values where they have the same."""
    verdicts = {figure.verdict}
    if figure.verdict is None:
        data = [datum for series in figure.series if series.role == "measured" for datum in series.data]
        verdicts = {datum.verdict for datum in data if datum.value is not None}
    found = verdicts.pop() if len(verdicts) == 1 else None
    return None if found == "VALID" else found


def is_doubtful(figure: Figure) -> bool:
    return doubt_of(figure) is not None


def stamp_of(figure: Figure) -> Verdict | None:
    """What is written across the drawing. Doubts about values alone are not written across what others published:
    there each value has its own word."""
    published = any(series.role == "published" and series.data for series in figure.series)
    return None if published and figure.verdict is None else doubt_of(figure)


def config() -> dict[str, Any]:
    """What all charts have in common."""
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
