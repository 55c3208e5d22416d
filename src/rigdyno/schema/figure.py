"""Store the content of a figure before it is drawn: numbers, their intervals and their meaning.

A figure has an x axis and one or several panels that share it; a panel has a y axis and series. All kinds use the same
types: in a stacked bar each part is a series, in a roofline each limit is one.
Values are in the unit of their axis, without a prefix; the drawing code chooses the prefix. Figures are drawn by
report/figures/ (one file for each kind) and, in characters, by report/plot.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from rigdyno.schema.estimate import Estimate, Missing, Number, Verdict, require_both_ends

# The origin of a series. Only measured ones come from this machine; no drawing may show the others in the same way.
Role = Literal["measured", "published", "predicted", "ideal", "limit"]

Along = Literal["value", "time", "devices", "nodes", "batch", "size", "intensity", "category"]

EventKind = Literal["warm_up_cut", "throttling", "node_lost", "clock_jumped", "end_of_measured", "other"]

_KEY = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


class Axis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    quantity: str
    unit: str = ""
    along: Along = "value"
    scale: Literal["linear", "log"] | None = None  # None: chosen by the range when it is drawn


class Datum(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value at one x. Without a value it is a gap, which no line crosses."""

    x: float | str  # a number, or the name of a category
    value: float | None  # None: a gap; `note` gives the reason if it is known
    x_end: float | None = None  # end of a range of x, e.g. of a bin
    low: float | None = None  # with `high`: the interval
    high: float | None = None
    confidence: float | None = None  # of the interval; None: no interval, or unknown
    n: int | None = None  # number of samples; None: unknown
    verdict: Verdict | None = None
    label: str = ""  # its name, if x isn't a name
    note: str = ""

    def __post_init__(self) -> None:
        require_both_ends(self.low, self.high)
        numbers = (self.x, self.x_end, self.value, self.low, self.high)
        if not all(math.isfinite(each) for each in numbers if isinstance(each, float | int)):
            raise ValueError("the numbers of a figure must be finite; use a gap instead")

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


class Series(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    role: Role
    data: tuple[Datum, ...]  # in ascending order of x if x is a number; categories in the order of display
    cut: bool = False  # measured, but not used by any estimate: the warm-up
    source: str = ""  # of published figures


class Band(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A range of y along the whole of x, e.g. the margin within which two rates count as the same."""

    name: str
    low: float
    high: float


class Panel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    y: Axis
    series: tuple[Series, ...]
    bands: tuple[Band, ...] = ()
    title: str = ""  # empty if there is only one panel


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    x: float
    label: str
    kind: EventKind = "other"


class Period(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A phase of the run along x: warm-up, steady, idle."""

    name: str
    start: float
    end: float


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    key: str  # unique within the view and the same each time the figure is made; used as the file name
    kind: str  # the file in report/figures/ that draws it
    title: str
    x: Axis
    panels: tuple[Panel, ...]
    events: tuple[Event, ...] = ()
    periods: tuple[Period, ...] = ()
    caption: str = ""  # one sentence about the content
    counted: str = ""  # what n counts, in the plural: "steps", "processes"
    verdict: Verdict | None = None  # of the whole figure; None: each value has its own, or there is none
    reasons: tuple[str, ...] = ()  # for the verdict
    notes: tuple[str, ...] = ()  # about data that were left out or thinned

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise ValueError("a figure's key may have at most 80 characters: a to z, digits, '-' and '_'")

    @property
    def series(self) -> Iterator[Series]:
        return (series for panel in self.panels for series in panel.series)

    @property
    def is_empty(self) -> bool:
        return all(datum.value is None for series in self.series for datum in series.data)

    def described(self) -> str:
        """Return the caption with n and the verdict: the text below the drawing, also for screen readers."""
        parts = [self.caption.rstrip("."), self._n_text(), self._verdict_text()]
        return ". ".join(part for part in parts if part) + "."

    def _n_text(self) -> str:
        counts = [datum.n for series in self.series for datum in series.data if datum.n is not None]
        if not counts:
            return ""
        least, most = min(counts), max(counts)
        return f"n = {least:,}{f' to {most:,}' if most > least else ''} {self.counted}".rstrip()

    def _verdict_text(self) -> str:
        if self.verdict is not None:
            why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
            return f"Verdict: {self.verdict}{why}"
        given = [datum.verdict for series in self.series for datum in series.data if datum.verdict is not None]
        counted = [(given.count(verdict), verdict) for verdict in ("VALID", "SUSPECT", "INVALID")]
        return f"Verdicts: {', '.join(f'{count} {verdict}' for count, verdict in counted if count)}" if given else ""


def figure_key(*parts: str) -> str:
    """Turn any words into a key that can be a file name."""
    words = re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")
    return words[:80].rstrip("-") or "figure"


def with_distinct_keys(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    """Append a number to keys that occur more than once."""
    taken: set[str] = set()
    found = []
    for figure in figures:
        key, number = figure.key, 2
        while key in taken:
            key, number = f"{figure.key[:76]}-{number}", number + 1
        taken.add(key)
        found.append(msgspec.structs.replace(figure, key=key))
    return tuple(found)


def datum(x: float | str, value: float | None, *, verdict: Verdict | None = None, label: str = "") -> Datum:
    """Make a datum of a bare number; None and numbers that aren't finite become gaps."""
    finite = value if value is not None and math.isfinite(value) else None
    return Datum(x=x, value=finite, verdict=verdict, label=label)


def datum_of(
    x: float | str,
    entry: Estimate | Number | Missing,
    *,
    verdict: Verdict | None = None,
    label: str = "",
    note: str = "",
) -> Datum:
    """Make a datum of a table entry; a missing one becomes a gap with its reason."""
    if isinstance(entry, Missing):
        return Datum(x=x, value=None, label=label, note=entry.reason)
    bare = msgspec.structs.replace(datum(x, entry.value, verdict=verdict, label=label), note=note)
    if isinstance(entry, Estimate):
        bare = msgspec.structs.replace(bare, n=entry.n)
    low, high = entry.low, entry.high
    if bare.value is None or low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return bare
    confidence = entry.confidence if isinstance(entry, Estimate) else None
    return msgspec.structs.replace(bare, low=low, high=high, confidence=confidence)
