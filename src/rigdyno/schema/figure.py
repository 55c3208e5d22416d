"""What a figure shows, before anybody draws it: numbers, their intervals and what they mean.

A figure has an x axis and one or several panels that share it; a panel has a y axis and series. All kinds use the same
pieces: in a stacked bar the series are the parts, in a roofline the limits are series of their own.
Values are in the unit of their axis, without a prefix; whoever draws chooses one. Drawings are made by report/figures/
(one file for each kind) and, in characters, by report/plot.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from rigdyno.schema.estimate import Estimate, Missing, Number, Verdict, require_both_ends

# What a series is. Only measured ones are this rig's; no drawing may show another one the same way.
Role = Literal["measured", "published", "predicted", "ideal", "limit"]
Along = Literal["value", "time", "devices", "nodes", "batch", "size", "intensity", "category"]
EventKind = Literal["warm_up_cut", "throttling", "node_lost", "clock_jumped", "end_of_measured", "other"]

_KEY = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


class Axis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    quantity: str
    unit: str = ""
    along: Along = "value"
    scale: Literal["linear", "log"] | None = None  # None: whoever draws chooses by the range


class Datum(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value at one place. Without a value it is a gap, and no line crosses it."""

    x: float | str  # a number, or the name of a category
    value: float | None  # None: a gap; `note` says why where that is known
    x_end: float | None = None  # where it is about a range of x, e.g. a bin
    low: float | None = None  # with `high`: its interval
    high: float | None = None
    confidence: float | None = None  # of the interval; None: there is none, or it isn't known
    n: int | None = None  # how many samples it rests on; None: nobody said
    verdict: Verdict | None = None
    label: str = ""  # its name, where x isn't one
    note: str = ""

    def __post_init__(self) -> None:
        require_both_ends(self.low, self.high)
        numbers = (self.x, self.x_end, self.value, self.low, self.high)
        if not all(math.isfinite(each) for each in numbers if isinstance(each, float | int)):
            raise ValueError("a figure has finite numbers; what isn't one is a gap")

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


class Series(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    role: Role
    data: tuple[Datum, ...]  # of numbers in ascending order of x; of categories in the order that they are shown in
    cut: bool = False  # measured, but no estimate uses it: the warm-up
    source: str = ""  # of what was published


class Band(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A range of y that means something along the whole of x, e.g. a margin below which two rates count as the same."""

    name: str
    low: float
    high: float


class Panel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    y: Axis
    series: tuple[Series, ...]
    bands: tuple[Band, ...] = ()
    title: str = ""  # where there are several


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
    key: str  # of this figure among those of its view, the same whenever it is made again: its file's name
    kind: str  # the file in report/figures/ that draws it
    title: str
    x: Axis
    panels: tuple[Panel, ...]
    events: tuple[Event, ...] = ()
    periods: tuple[Period, ...] = ()
    caption: str = ""  # what it shows, in a sentence
    counted: str = ""  # what n counts, in the plural: "steps", "processes"
    verdict: Verdict | None = None  # of the whole; None: each value has its own, or none was given
    reasons: tuple[str, ...] = ()  # for the verdict
    notes: tuple[str, ...] = ()  # what was left out or thinned

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise ValueError("a figure's key has letters from a to z, digits, '-' and '_', and at most 80 of them")

    @property
    def series(self) -> Iterator[Series]:
        return (series for panel in self.panels for series in panel.series)

    @property
    def is_empty(self) -> bool:
        return all(datum.value is None for series in self.series for datum in series.data)

    def described(self) -> str:
        """The caption with n and the verdict: what stands below the drawing, and what a screen reader says."""
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
    """A file's name out of anybody's words."""
    words = re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")
    return words[:80].rstrip("-") or "figure"


def with_distinct_keys(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    """A second one of a name gets a number behind it."""
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
    """A bare number, or a gap where it is none."""
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
    """An entry of a table; a missing one is a gap with its reason."""
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
