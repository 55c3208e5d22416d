"""Charts made of characters: a sparkline on one line, and plots of the figures that a few rows of text can show."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from rigdyno.base.units import show_number, show_scaled, show_seconds
from rigdyno.report.text import choose_prefix
from rigdyno.schema.figure import Axis, Datum, Event, Figure, Panel, Role, Series

HEIGHT = 7

LEAST_POINTS = 3

BARS = "▁▂▃▄▅▆▇█"

GAP = "·"  # a missing reading is not a zero

DOT, HOLLOW_DOT, BAND, MARK = "•", "◦", "░", "│"

LABEL_WIDTH = 9

LEFT = " " * (LABEL_WIDTH + 1)

_NO_BREAK = "\N{NO-BREAK SPACE}"

# In the order of drawing: what comes later stands before what came earlier.
_SIGNS: dict[Role, str] = {"ideal": "·", "limit": "─", "predicted": HOLLOW_DOT, "published": "+", "measured": DOT}

_NAMES: dict[Role, str] = {
    "ideal": "ideal",
    "limit": "limit",
    "predicted": "forecast",
    "published": "published",
    "measured": "measured",
}


@dataclass(frozen=True)
class _Frame:
    """Columns along x, rows along y. The y axis contains zero, so that a drop looks as large as it is."""

    left: float
    right: float
    bottom: float
    top: float
    columns: int
    height: int

    def column(self, x: float) -> int:
        """x begins with the first column, and the last value stands in the middle of the last."""
        share = (x - self.left) / (self.right - self.left) if self.right > self.left else 0.0
        return max(0, min(self.columns - 1, int(share * (self.columns - 0.5))))

    def row(self, value: float) -> int:
        return round((value - self.bottom) / (self.top - self.bottom) * self.height)


def sparkline(values: Sequence[float], highest: float | None = None) -> str:
    """Draw one bar per value, from zero to `highest` or the largest value; NaN is a gap."""
    known = [value for value in values if not math.isnan(value)]
    top = highest or max(known, default=0.0)
    return "".join(GAP if math.isnan(value) else _bar(value / top if top > 0 else 0.0) for value in values)


def _bar(share: float) -> str:
    return BARS[min(len(BARS) - 1, max(0, round(share * (len(BARS) - 1))))]


def count_plot_columns(width: int) -> int:
    """How many values fit side by side on a page of that width."""
    return max(10, min(72, width - len(LEFT) - 2))


def draw_figure_as_text(figure: Figure, width: int, height: int = HEIGHT) -> list[str]:
    """Its panels below each other; none for a figure that characters don't show, or that has nothing to show."""
    if figure.is_empty or not _has_characters(figure):
        return []
    lines: list[str] = []
    for panel in figure.panels:
        if lines:
            lines.append("")
        lines += _panel_lines(figure, panel, width, height)
    return [*lines, *(line for note in figure.notes for line in _wrapped(note, width))]


def _has_characters(figure: Figure) -> bool:
    """A curve of a few points says no more than its table, unless one can see how it falls behind its ideal."""
    if figure.kind != "curve":
        return figure.kind in ("timeline", "fan")
    measured = [datum for series in figure.series if series.role == "measured" for datum in series.data]
    return len(measured) >= LEAST_POINTS and any(series.role == "ideal" for series in figure.series)


def _panel_lines(figure: Figure, panel: Panel, width: int, height: int) -> list[str]:
    frame = _frame(figure, panel, count_plot_columns(width), height)
    _, prefix, factor = choose_prefix(max(frame.top, -frame.bottom), panel.y.unit)
    lines = [f"{panel.title or figure.title} ({prefix}{panel.y.unit})"]
    grid = _grid(figure, panel, frame)
    for row in range(height, -1, -1):
        edge = {0: frame.bottom, height: frame.top}.get(row)
        label = "" if edge is None else _label(edge * factor)
        lines.append(f"{label:>{LABEL_WIDTH}} {''.join(grid[row])}".rstrip())
    events = [line for event in _drawn(figure.events, frame) for line in _wrapped(event.label, width, f"{MARK} ")]
    return [*lines, _x_labels(figure.x, frame), *_legend(panel, width), *events]


def _frame(figure: Figure, panel: Panel, columns: int, height: int) -> _Frame:
    xs = [_number(datum.x) for series in figure.series for datum in series.data]
    data = [datum for series in panel.series for datum in series.data]
    heights = [each for datum in data for each in (datum.value, datum.low, datum.high) if each is not None]
    bottom, top = min([0.0, *heights]), max([0.0, *heights])
    return _Frame(min([0.0, *xs]), max([0.0, *xs]), bottom, top if top > bottom else bottom + 1.0, columns, height)


def _number(x: float | str) -> float:
    if isinstance(x, str):
        raise TypeError("a figure over categories has no plot in characters")
    return x


def _label(value: float) -> str:
    text = show_number(value)
    return text if len(text) <= LABEL_WIDTH else show_scaled(value, "")


def _grid(figure: Figure, panel: Panel, frame: _Frame) -> list[list[str]]:
    grid = [[" "] * frame.columns for _ in range(frame.height + 1)]
    for column in (frame.column(event.x) for event in _drawn(figure.events, frame)):
        for row in grid:
            row[column] = MARK
    cuts = [frame.column(event.x) for event in figure.events if event.kind == "warm_up_cut"]
    taken = {column for series in panel.series if series.role == "measured" for column in _columns(series, frame)}
    for series in sorted(panel.series, key=lambda each: list(_SIGNS).index(each.role)):
        for column, inside in _columns(series, frame).items():
            if series.role == "predicted" and column in taken:
                continue  # what was measured isn't mixed with what is predicted
            hollow = series.cut or (series.role == "measured" and column < min(cuts, default=0))
            banded = series in _with_intervals(panel)
            _draw(grid, column, inside, frame, HOLLOW_DOT if hollow else _SIGNS[series.role], banded=banded)
    return grid


def _with_intervals(panel: Panel) -> list[Series]:
    """Those whose intervals are drawn: of a forecast its own, so that a band is of one kind of interval."""
    predicted = [series for series in panel.series if series.role == "predicted"]
    return predicted or list(panel.series)


def _drawn(events: Sequence[Event], frame: _Frame) -> Iterator[Event]:
    return (event for event in events if frame.left <= event.x <= frame.right)


def _columns(series: Series, frame: _Frame) -> dict[int, list[Datum]]:
    """Return the data of each column; a gap has none."""
    found: dict[int, list[Datum]] = {}
    for datum in series.data:
        if datum.value is not None:
            found.setdefault(frame.column(_number(datum.x)), []).append(datum)
    return found


def _draw(
    grid: list[list[str]], column: int, inside: Sequence[Datum], frame: _Frame, sign: str, *, banded: bool
) -> None:
    """The mean of what falls into the column, over the mean of its intervals."""
    values = [datum.value for datum in inside if datum.value is not None]
    ends = [datum.interval for datum in inside if datum.interval is not None]
    if ends and banded:
        low, high = frame.row(fmean(end[0] for end in ends)), frame.row(fmean(end[1] for end in ends))
        for row in range(low, high + 1):
            grid[row][column] = BAND
    grid[frame.row(fmean(values))][column] = sign


def _x_labels(x: Axis, frame: _Frame) -> str:
    left, right = f"{frame.left:g}", f"{frame.right:g} {x.unit or x.quantity}"
    if x.along == "time":
        left, right = f"{frame.left:g} s", show_seconds(frame.right)
    return f"{LEFT}{left}{right:>{frame.columns - len(left)}}"


def _legend(panel: Panel, width: int) -> list[str]:
    """Explain the signs if there is more than one kind of series."""
    roles = [role for role in reversed(_SIGNS) if any(series.role == role for series in panel.series)]
    origins = [f"{_SIGNS[role]} {_NAMES[role]}" for role in roles] if len(roles) > 1 else []
    kept_whole = [part.replace(" ", _NO_BREAK) for part in (*origins, *_intervals(panel))]
    return [line.replace(_NO_BREAK, " ") for line in _wrapped("   ".join(kept_whole), width)]


def _intervals(panel: Panel) -> list[str]:
    """Name the kind of interval, unless there are several."""
    data = [datum for series in _with_intervals(panel) for datum in series.data if datum.interval is not None]
    confidences = {datum.confidence for datum in data}
    known = confidences.pop() if len(confidences) == 1 else None
    return [f"{BAND} {'' if known is None else f'{100 * known:.0f} % '}interval"] if data else []


def _wrapped(text: str, width: int, sign: str = "") -> list[str]:
    return textwrap.wrap(f"{sign}{text}", width, initial_indent=LEFT, subsequent_indent=LEFT + " " * len(sign))
