"""A small plot in text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rigdyno.report.format_entry import prefixed
from rigdyno.schema.view import Plot
from rigdyno.units import show_number, show_scaled, show_seconds

HEIGHT = 7
DOT, EARLY_DOT, MARK = "•", "◦", "│"
LABEL_WIDTH = 9
LEFT = " " * (LABEL_WIDTH + 1)


def plot_columns(width: int) -> int:
    """How many values fit side by side on a page of that width."""
    return max(10, min(72, width - len(LEFT) - 2))


def plot_lines(plot: Plot, width: int, height: int = HEIGHT) -> list[str]:
    """Dots over time, hollow ones before the mark; the axis begins at zero: a drop looks as large as it is."""
    columns = plot_columns(width)
    top = max(plot.values, default=0.0) or 1.0
    heights = [None if level is None else round(level / top * height) for level in _levels(plot, columns)]
    marked = _column(plot, plot.mark_seconds, columns) if plot.mark_seconds is not None and plot.seconds else None
    _, prefix, factor = prefixed(top, plot.unit)
    lines = [f"{plot.title} ({prefix}{plot.unit})"]
    for row in range(height, -1, -1):
        label = _label(top * factor * row / height) if row in (0, height) else ""
        lines.append(f"{label:>{LABEL_WIDTH}} {_line(heights, row, marked)}".rstrip())
    return [*lines, *_axis(plot, columns), *_key(plot, width)]


def _label(value: float) -> str:
    text = show_number(value)
    return text if len(text) <= LABEL_WIDTH else show_scaled(value, "")


def _levels(plot: Plot, columns: int) -> list[float | None]:
    """The mean of what falls into each column."""
    sums: list[list[float]] = [[] for _ in range(columns)]
    for second, value in zip(plot.seconds, plot.values, strict=False):
        sums[_column(plot, second, columns)].append(value)
    return [sum(values) / len(values) if values else None for values in sums]


def _column(plot: Plot, second: float, columns: int) -> int:
    """Time begins with the first column, and the last value stands in the middle of the last."""
    share = second / plot.seconds[-1] if plot.seconds[-1] > 0 else 0.0
    return max(0, min(columns - 1, int(share * (columns - 0.5))))


def _line(heights: Sequence[int | None], row: int, marked: int | None) -> str:
    signs = [
        " " if height != row else EARLY_DOT if marked is not None and column < marked else DOT
        for column, height in enumerate(heights)
    ]
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
    """What the mark means, or what there is to say without one."""
    sign = f"{MARK} " if plot.mark_seconds is not None else ""
    return textwrap.wrap(
        f"{sign}{plot.mark_title}", width, initial_indent=LEFT, subsequent_indent=LEFT + " " * len(sign)
    )
