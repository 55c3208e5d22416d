"""A small plot in text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from rigdyno.report.format_entry import prefixed
from rigdyno.schema.view import Plot
from rigdyno.units import show_number, show_scaled, show_seconds

HEIGHT = 7
DOT, HOLLOW_DOT, BAND, MARK = "•", "◦", "░", "│"
LABEL_WIDTH = 9
LEFT = " " * (LABEL_WIDTH + 1)


class Spot(NamedTuple):
    """What one column shows: heights in rows above the axis."""

    height: int
    low: int
    high: int
    sign: str

    def at(self, row: int) -> str:
        if row == self.height:
            return self.sign
        return BAND if self.low <= row <= self.high else " "


def plot_columns(width: int) -> int:
    """How many values fit side by side on a page of that width."""
    return max(10, min(72, width - len(LEFT) - 2))


def plot_lines(plot: Plot, width: int, height: int = HEIGHT) -> list[str]:
    """Dots over time; the axis begins at zero: a drop looks as large as it is. Hollow are those before the mark, or
    those that are foretold."""
    columns = plot_columns(width)
    top = max((*plot.values, *plot.highs), default=0.0) or 1.0
    marked = _column(plot, plot.mark_seconds, columns) if plot.mark_seconds is not None and plot.seconds else None
    spots = _spots(plot, columns, height / top, marked)
    _, prefix, factor = prefixed(top, plot.unit)
    lines = [f"{plot.title} ({prefix}{plot.unit})"]
    for row in range(height, -1, -1):
        label = _label(top * factor * row / height) if row in (0, height) else ""
        lines.append(f"{label:>{LABEL_WIDTH}} {_line(spots, row, marked)}".rstrip())
    return [*lines, *_axis(plot, columns), *_key(plot, width)]


def _label(value: float) -> str:
    text = show_number(value)
    return text if len(text) <= LABEL_WIDTH else show_scaled(value, "")


def _spots(plot: Plot, columns: int, rows_per_unit: float, marked: int | None) -> list[Spot | None]:
    """The mean of what falls into each column; what was measured isn't mixed with what is foretold."""
    indices: list[list[int]] = [[] for _ in range(columns)]
    for index, second in enumerate(plot.seconds[: len(plot.values)]):
        indices[_column(plot, second, columns)].append(index)
    found: list[Spot | None] = []
    for column, inside in enumerate(indices):
        shown = [index for index in inside if _is_measured(plot, index)] or inside
        found.append(_spot(plot, shown, rows_per_unit, _sign(plot, shown[0], column, marked)) if shown else None)
    return found


def _sign(plot: Plot, index: int, column: int, marked: int | None) -> str:
    if plot.forecast_from is not None:
        return DOT if _is_measured(plot, index) else HOLLOW_DOT
    return HOLLOW_DOT if marked is not None and column < marked else DOT


def _is_measured(plot: Plot, index: int) -> bool:
    return plot.forecast_from is None or index < plot.forecast_from


def _spot(plot: Plot, indices: Sequence[int], rows_per_unit: float, sign: str) -> Spot:
    height, low, high = (
        round(fmean(numbers[index] for index in indices) * rows_per_unit)
        for numbers in (plot.values, plot.lows or plot.values, plot.highs or plot.values)
    )
    return Spot(height, low, high, sign)


def _column(plot: Plot, second: float, columns: int) -> int:
    """Time begins with the first column, and the last value stands in the middle of the last."""
    share = second / plot.seconds[-1] if plot.seconds[-1] > 0 else 0.0
    return max(0, min(columns - 1, int(share * (columns - 0.5))))


def _line(spots: Sequence[Spot | None], row: int, marked: int | None) -> str:
    signs = [" " if spot is None else spot.at(row) for spot in spots]
    if marked is not None and signs[marked] == " ":
        signs[marked] = MARK
    return "".join(signs)


def _axis(plot: Plot, columns: int) -> list[str]:
    if not plot.seconds:
        return []
    left, right = ("0 s", show_seconds(plot.seconds[-1]))
    if plot.over == "devices":
        left, right = "0", f"{plot.seconds[-1]:g} devices"
    return [f"{LEFT}{left}{right:>{columns - len(left)}}"]


def _key(plot: Plot, width: int) -> list[str]:
    """What the signs and the mark mean, or what there is to say without one."""
    sign = f"{MARK} " if plot.mark_seconds is not None else ""
    return [
        *_legend(plot, width),
        *textwrap.wrap(
            f"{sign}{plot.mark_title}", width, initial_indent=LEFT, subsequent_indent=LEFT + " " * len(sign)
        ),
    ]


def _legend(plot: Plot, width: int) -> list[str]:
    band = [f"{BAND} {plot.band_title}"] if plot.lows else []
    origins = [f"{DOT} measured", f"{HOLLOW_DOT} forecast"] if plot.forecast_from is not None else []
    return textwrap.wrap("   ".join(origins + band), width, initial_indent=LEFT, subsequent_indent=LEFT)
