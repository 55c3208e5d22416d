"""A small plot in text."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.report.format_entry import prefixed
from rigdyno.schema.view import Plot
from rigdyno.units import show_number, show_seconds

HEIGHT = 7
DOT, MARK = "•", "│"


def plot_lines(plot: Plot, width: int) -> list[str]:
    """Dots over time, the axis from zero: a drop looks as large as it is."""
    columns = max(10, min(72, width - 12))
    top = max(plot.values, default=0.0) or 1.0
    levels = _levels(plot, columns)
    marked = _column(plot, plot.mark_seconds, columns) if plot.mark_seconds is not None and plot.seconds else None
    _, prefix, factor = prefixed(top, plot.unit)
    lines = [f"{plot.title} ({prefix}{plot.unit})"]
    for row in range(HEIGHT, -1, -1):
        label = show_number(top * factor * row / HEIGHT) if row in (0, HEIGHT) else ""
        lines.append(f"{label:>9} {_line(levels, row, top, marked, columns)}".rstrip())
    return [*lines, _axis(plot, columns)]


def _levels(plot: Plot, columns: int) -> list[float | None]:
    """The mean of what falls into each column."""
    sums: list[list[float]] = [[] for _ in range(columns)]
    for second, value in zip(plot.seconds, plot.values, strict=False):
        sums[_column(plot, second, columns)].append(value)
    return [sum(values) / len(values) if values else None for values in sums]


def _column(plot: Plot, second: float, columns: int) -> int:
    first, last = plot.seconds[0], plot.seconds[-1]
    share = (second - first) / (last - first) if last > first else 0.0
    return max(0, min(columns - 1, int(share * columns)))


def _line(levels: Sequence[float | None], row: int, top: float, marked: int | None, columns: int) -> str:
    dots = [DOT if level is not None and round(level / top * HEIGHT) == row else " " for level in levels]
    if marked is not None and dots[marked] == " ":
        dots[marked] = MARK
    return "".join(dots[:columns])


def _axis(plot: Plot, columns: int) -> str:
    left, right = "0 s", show_seconds(plot.seconds[-1] - plot.seconds[0]) if plot.seconds else ""
    mark = f"{MARK} {plot.mark_title}" if plot.mark_seconds is not None else ""
    return f"{'':>10}{left}{mark:^{max(0, columns - len(left) - len(right))}}{right}"
