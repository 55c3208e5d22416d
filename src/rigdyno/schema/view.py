"""Store the content of a report: every format renders the same View, so that all of them say the same.

`rigdyno --json` prints a View; docs/view.schema.json is its JSON schema. A Dossier is the evidence for the view of one
run: the machine, the plan, the reasons for its verdicts, and every raw file.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rigdyno.schema.comparison import Comparison
from rigdyno.schema.estimate import Estimate, Missing, Number, Validity, Verdict, require_both_ends
from rigdyno.schema.figure import Figure
from rigdyno.schema.measured import Status
from rigdyno.schema.metric import Metric

VIEW_VERSION = 2  # version 1 had `plots`, curves of a single kind, instead of `figures`


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """One reason for the verdict of one configuration, and the number of steady steps that it affected."""

    what: str  # the configuration
    verdict: Verdict  # of that configuration
    code: str
    sentence: str
    hit: int | None  # affected steps; None: it concerns all of them together, or single steps can't be identified
    steps: int  # in the steady windows of all its processes


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one cell: a process, or the ranks that stepped together."""

    cell: str
    what: str
    ended: str
    seconds: float
    memory_bytes: int | None = None
    steps: int | None = None  # of all ranks; None: they can't be read
    cut: int | None = None  # number of steps before the steady window
    tagged: str = ""  # disturbances of the steps, with counts


class RawFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # relative to the run folder
    size_bytes: int
    sha256: str


class RawFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a run folder. `digest` covers all of them, including those that aren't listed."""

    count: int
    size_bytes: int
    digest: str  # sha256 of the output of `sha256sum` for all files, sorted by name
    listed: tuple[RawFile, ...] = ()


class Dossier(msgspec.Struct, frozen=True, kw_only=True):
    run: str  # the folder's name
    measured: tuple[Fact, ...] = ()  # the plan, the time, the software
    rig: tuple[Fact, ...] = ()
    grounds: tuple[Ground, ...] = ()
    more_grounds: int = 0  # number of grounds that aren't listed
    processes: tuple[ProcessFacts, ...] = ()
    more_processes: int = 0
    files: RawFiles


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    text: str


class RatioEntry(msgspec.Struct, frozen=True, kw_only=True, tag="share"):
    """A ratio of two estimates; its interval combines the worst cases of both."""

    value: float
    low: float | None = None
    high: float | None = None
    of: str

    def __post_init__(self) -> None:
        require_both_ends(self.low, self.high)


class Published(msgspec.Struct, frozen=True, kw_only=True, tag="published"):
    """A published figure, as printed: it has no interval because none was given."""

    value: float
    unit: str
    source: str


Entry = Estimate | Missing | Number | Text | RatioEntry | Published


class Column(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    title: str
    metric: Metric | None = None  # None: a column of texts, or one that identifies the row
    numeric: bool = True
    identifies: bool = False  # whether it identifies the row
    bare: bool = False  # shown without the unit, which the title of the table or of the column makes clear


class Row(msgspec.Struct, frozen=True, kw_only=True):
    entries: dict[str, Entry]
    origin: Literal["measured", "published", "forecast"] = "measured"
    status: Status | None = None
    notes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()  # the runs that it comes from, if the view shows several
    facts: dict[str, str | int] = {}  # versions etc., which can be added to a table as columns


class Table(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def identifying(self) -> tuple[Column, ...]:
        """Return the columns that identify a row."""
        return tuple(column for number, column in enumerate(self.columns) if number == 0 or column.identifies)

    def name_of(self, row: Row) -> str:
        """Name a row by its first column and all columns that identify it, e.g. 'nodes 1, GPUs 2'.

        The first column appears without its title unless it is marked as identifying.
        """
        named = [(column, _plain_text(row.entries.get(column.key))) for column in self.identifying]
        return ", ".join(f"{column.title} {text}" if column.identifies else text for column, text in named if text)


def _plain_text(entry: Entry | None) -> str:
    if isinstance(entry, Number):
        return f"{exact_text(entry.value)} {entry.unit}".rstrip()
    return entry.text if isinstance(entry, Text) else ""


def exact_text(value: float) -> str:
    """Format a number with all digits, for values that distinguish rows."""
    return str(int(value)) if float(value).is_integer() else repr(value)


class Sentence(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence, with the figure that it is about for programs that don't parse the text."""

    text: str
    figure: Number | None = None


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A published machine to compare one's own figure with."""

    name: str
    figure: Published


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The one figure that summarises a run: a line of a campaign's card."""

    what: str  # the configuration
    figure: Entry
    status: Status | None = None
    place: str = ""  # rank among the published figures, or why it has none
    neighbours: tuple[Neighbour, ...] = ()  # the nearest published figures


class Presentation(msgspec.Struct, frozen=True, kw_only=True):
    """The tables, figures and sentences that a suite makes of its measurements."""

    title: str
    headline: Headline | None = None  # None: the first figure of the tables is used
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()  # the first one answers the question
    standing: tuple[str, ...] = ()  # how this machine compares with the published ones
    closing: tuple[str, ...] = ()  # conclusions, generated from the figures


class View(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VIEW_VERSION
    title: str
    headline: Headline | None = None
    rigs: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # shown first: reasons why all figures below may be wrong
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # of a duel, or of stored runs
    validity: Validity | None = None  # of the whole view: the worst of its parts
    noise: Sentence | None = None  # which differences are within the noise of this machine
    standing: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    saved_in: tuple[str, ...] = ()
    next_commands: tuple[str, ...] = ()
