"""What a report says, before any format: every format renders this, so that all of them say the same.

`rigdyno --json` prints a View; docs/view.schema.json is its JSON schema.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rigdyno.schema.comparison import Comparison
from rigdyno.schema.estimate import Estimate, Missing, Number, Validity, require_both_ends
from rigdyno.schema.figure import Figure
from rigdyno.schema.measured import Status
from rigdyno.schema.metric import Metric

VIEW_VERSION = 2  # 1: `plots`, curves of which only one kind was known, instead of `figures`


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    text: str


class Share(msgspec.Struct, frozen=True, kw_only=True, tag="share"):
    """A ratio of two estimates; its interval takes the worst of both."""

    value: float
    low: float | None = None
    high: float | None = None
    of: str

    def __post_init__(self) -> None:
        require_both_ends(self.low, self.high)


class Published(msgspec.Struct, frozen=True, kw_only=True, tag="published"):
    """Somebody else's figure, as printed there: it has no interval because none was given."""

    value: float
    unit: str
    source: str


Entry = Estimate | Missing | Number | Text | Share | Published


class Column(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    title: str
    metric: Metric | None = None  # None: of texts, or of what identifies a row
    numeric: bool = True
    identifies: bool = False  # whether it says which row this is
    bare: bool = False  # shown without the unit, which the table's title or the column's own makes clear


class Row(msgspec.Struct, frozen=True, kw_only=True):
    entries: dict[str, Entry]
    origin: Literal["measured", "published", "forecast"] = "measured"
    status: Status | None = None
    notes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()  # that it is of, where the view is of several
    facts: dict[str, str | int] = {}  # versions and the like: columns that a table can be given


class Table(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def identifying(self) -> tuple[Column, ...]:
        """The columns that say which row it is."""
        return tuple(column for number, column in enumerate(self.columns) if number == 0 or column.identifies)

    def name_of(self, row: Row) -> str:
        """By the first column, which may speak for itself, and all that identify it: 'nodes 1, GPUs 2'."""
        named = [(column, _plain(row.entries.get(column.key))) for column in self.identifying]
        return ", ".join(f"{column.title} {text}" if column.identifies else text for column, text in named if text)


def _plain(entry: Entry | None) -> str:
    if isinstance(entry, Number):
        return f"{exact_text(entry.value)} {entry.unit}".rstrip()
    return entry.text if isinstance(entry, Text) else ""


def exact_text(value: float) -> str:
    """With all digits, for what tells rows apart."""
    return str(int(value)) if float(value).is_integer() else repr(value)


class Sentence(msgspec.Struct, frozen=True, kw_only=True):
    """With the figure that it is about, for whoever doesn't read it."""

    text: str
    figure: Number | None = None


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A published rig, for one's own figure to stand beside."""

    name: str
    figure: Published


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The one figure that stands for all others: a line of a campaign's card."""

    what: str  # it is of
    figure: Entry
    status: Status | None = None
    place: str = ""  # among the published ones, or why it has none
    neighbours: tuple[Neighbour, ...] = ()  # the nearest of them


class Presentation(msgspec.Struct, frozen=True, kw_only=True):
    """What a suite makes of its measurements."""

    title: str
    headline: Headline | None = None  # None: the first figure of the tables stands for it
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()  # the first one answers the question
    standing: tuple[str, ...] = ()  # where this rig stands among the published ones
    closing: tuple[str, ...] = ()  # what the figures say, generated from them


class View(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VIEW_VERSION
    title: str
    headline: Headline | None = None
    rigs: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # said before anything else: what the figures below rest on may be wrong
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # of a duel, or of stored runs
    validity: Validity | None = None  # of the whole: the worst of its parts
    noise: Sentence | None = None  # which differences mean nothing here
    standing: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    saved_in: tuple[str, ...] = ()
    next_commands: tuple[str, ...] = ()
