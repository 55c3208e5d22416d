"""Draw the card of a run or campaign as an SVG of 1200 x 630.

The fonts are those of the program that draws the SVG, so texts are fitted by the estimated width of their letters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, NamedTuple

from msgspec.structs import replace

from rigdyno.features.campaign.report import is_card, suite_rows
from rigdyno.report.comparison import choose_headline
from rigdyno.report.text import format_entry
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.view import Entry, Row, Text, View

WIDTH, HEIGHT, MARGIN = 1200, 630, 56

HEAD, FOOT, TALLEST = 150, 84, 150

MOST_ROWS = 4  # on the card of a single run

COMPACT = 95  # lines below this height have smaller letters, and one published row

MOST_LINES = 6  # more would be too small to read

FAMILY = "Liberation Sans, DejaVu Sans, Arial, Helvetica, sans-serif"

Theme = Literal["light", "dark"]

_BADGES = {"VALID": "#0a6b54", "SUSPECT": "#8a5a00", "INVALID": "#a11d33", "FAILED": "#a11d33", "SKIPPED": "#5c6370"}


@dataclass(frozen=True)
class Colours:
    """The colours of a theme. Words, dashes and outlines carry the same information without colour."""

    back: str
    text: str
    muted: str
    rule: str
    badges: dict[str, str]


THEMES: dict[Theme, Colours] = {
    "light": Colours("#ffffff", "#16181d", "#5c6370", "#d5d9e0", _BADGES),
    "dark": Colours(
        "#14171c", "#eef1f5", "#a4adba", "#343b46",
        {"VALID": "#5fd3b3", "SUSPECT": "#f0b84a", "INVALID": "#ff8a94", "FAILED": "#ff8a94", "SKIPPED": "#a4adba"},
    ),
}  # fmt: skip


class CardLine(NamedTuple):
    """One suite of the card."""

    name: str
    row: Row
    published: tuple[Row, ...] = ()


def card_svg(views: Sequence[View], theme: Theme, *, made: str) -> str:
    """Return the card as SVG. `made`: the line that says when and by what it was made."""
    colours, lines, view = THEMES[theme], lines_of(views), views[0]
    shown, hidden = lines[:MOST_LINES], len(lines) - MOST_LINES
    height = min(TALLEST, (HEIGHT - HEAD - FOOT) / max(1, len(shown)))
    parts = [_rect(0, 0, WIDTH, HEIGHT, colours.back), *_head(view, colours)]
    for number, line in enumerate(shown):
        parts += _line(line, HEAD + number * height, height, colours)
    more = f"and {hidden} more suite{'s' if hidden > 1 else ''}; " if hidden > 0 else ""
    parts += _foot(more, _sources(shown), made, colours)
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FAMILY}">\n{body}\n</svg>\n'


def lines_of(views: Sequence[View]) -> list[CardLine]:
    """Return the lines of a campaign's card; of a run, its headline and the first of its other rows."""
    first = views[0]
    if is_card(first):
        return _gather_lines(first.tables[0].rows)
    headline = choose_headline(first)
    if headline is not None and first.comparisons:  # add its meaning in words
        headline = replace(headline, place=headline.place or " ".join(first.closing[:1]))
    first = replace(first, headline=headline)
    return [*_gather_lines(suite_rows("", first)), *_other_rows(first)][:MOST_ROWS]


def _gather_lines(rows: Sequence[Row]) -> list[CardLine]:
    """Attach published rows to the measured row before them."""
    found: list[CardLine] = []
    for row in rows:
        if row.origin == "published" and found:
            found[-1] = found[-1]._replace(published=(*found[-1].published, row))
        else:
            found.append(CardLine(format_entry(row.entries.get("suite")), row))
    return found


def _other_rows(view: View) -> Iterator[CardLine]:
    """Return the measured rows whose figure isn't that of the headline."""
    said = view.headline.figure if view.headline is not None else None
    for table in view.tables:
        for row in table.rows:
            figures = [row.entries.get(column.key) for column in table.columns if column.metric is not None]
            figure = next((each for each in figures if isinstance(each, Estimate)), None)
            if row.origin == "measured" and row.status is not None and figure not in (None, said):
                entries: dict[str, Entry] = {"what": Text(text=table.name_of(row)), "figure": figure}
                yield CardLine("", Row(entries=entries, status=row.status))


def _head(view: View, colours: Colours) -> Iterator[str]:
    size = 40 if width_of(view.title, 40, bold=True) <= 900 else 32
    yield _text(MARGIN, 78, shorten_text(view.title, 900, size, bold=True), size, colours.text, bold=True)
    yield _text(WIDTH - MARGIN, 78, "rigdyno", 30, colours.muted, anchor="end", bold=True)
    yield _text(MARGIN, 116, shorten_text("; ".join(view.rigs), WIDTH - 2 * MARGIN, 21), 21, colours.muted)


def _foot(more: str, sources: Sequence[str], made: str, colours: Colours) -> Iterator[str]:
    beside = f"outlined: published by others ({', '.join(sources)}), not measured here" if sources else ""
    notes = f"{more}[low, high]: interval of the figure" + (f"; {beside}" if beside else "")
    yield _rule(HEIGHT - FOOT + 12, colours)
    yield _text(MARGIN, HEIGHT - 42, shorten_text(notes, WIDTH - 2 * MARGIN, 17), 17, colours.muted)
    yield _text(MARGIN, HEIGHT - 18, shorten_text(made, WIDTH - 2 * MARGIN, 17), 17, colours.muted)


def _sources(lines: Sequence[CardLine]) -> list[str]:
    entries = [row.entries.get("figure") for line in lines for row in line.published]
    return sorted({entry.source for entry in entries if entry is not None and hasattr(entry, "source")})


def _line(line: CardLine, top: float, height: float, colours: Colours) -> Iterator[str]:
    """Draw one line: name, description, figure with interval, verdict and place."""
    middle, status, compact = top + height / 2, line.row.status or "", height < COMPACT
    what, place = (format_entry(line.row.entries.get(key)) for key in ("what", "place"))
    yield _rule(top, colours)
    yield from _name(line.name or what, middle + (-4 if line.name else 8), colours, rows=1 if line.name else 2)
    yield _text(MARGIN, middle + 22, shorten_text(what if line.name else "", 320, 17), 17, colours.muted)
    yield from _figure(line.row.entries.get("figure"), status, middle, colours, compact=compact)
    yield from _badge(status, middle, colours)
    yield from _place(place, _published_words(line.published, compact=compact), middle, colours, compact=compact)


def _name(name: str, y: float, colours: Colours, *, rows: int) -> Iterator[str]:
    size = 24 if width_of(name, 28, bold=True) > 320 else 28
    shown = [shorten_text(name, 320, size, bold=True)] if rows == 1 else wrap_text(name, 300, size, rows)
    for number, words in enumerate(shown):
        at = y + (number - (len(shown) - 1) / 2) * (size + 4)
        yield _text(MARGIN, at, words, size, colours.text, bold=True)


def _published_words(rows: Sequence[Row], *, compact: bool) -> list[str]:
    shown = rows[: 1 if compact else 2]
    return [
        f"published: {', '.join(format_entry(row.entries.get(key)) for key in ('what', 'figure'))}" for row in shown
    ]


def _place(place: str, published: Sequence[str], middle: float, colours: Colours, *, compact: bool) -> Iterator[str]:
    """Draw the place in words, and below it the published figures in outlines."""
    left, size, most = 830, (15 if compact else 17), (4 - len(published) if not compact else 3 - len(published))
    room = WIDTH - MARGIN - left
    rows = wrap_text(place[:1].upper() + place[1:], room, size, most)
    at = middle - ((size + 4) * len(rows) + 26 * len(published)) / 2
    for number, words in enumerate(rows):
        yield _text(left, at + size + (size + 4) * number, words, size, colours.text)
    for number, words in enumerate(published):
        yield from _published_box(words, left, at + (size + 4) * len(rows) + 6 + 26 * number, room, colours)


def _figure(entry: Entry | None, status: str, middle: float, colours: Colours, *, compact: bool) -> Iterator[str]:
    if entry is None or isinstance(entry, Missing):
        reason = entry.reason if entry is not None else "no figure"
        for number, words in enumerate(wrap_text(reason, 264, 16, 3)):
            yield _text(400, middle - 14 + 20 * number, words, 16, colours.muted)
        return
    size = 30 if compact else 36
    value, _, interval = format_entry(entry).partition(" [")
    shown = shorten_text(value, 264, size, bold=True)
    colour = colours.text if status in ("VALID", "") else colours.muted
    yield _text(400, middle + 4, shown, size, colour, bold=True)
    end = 400 + width_of(shown, size, bold=True)
    if status == "SUSPECT":
        yield _stroke(400, middle + 11, end, colours.badges[status], dashes="7 6")
    if status in ("INVALID", "FAILED"):
        yield _stroke(400, middle - 0.2 * size, end, colours.badges[status])
    if interval:
        yield _text(400, middle + 31, shorten_text(f"[{interval}", 264, 17), 17, colours.muted)


def _badge(status: str, middle: float, colours: Colours) -> Iterator[str]:
    """Draw the verdict: filled if VALID, else outlined."""
    if not status:
        return
    colour, left, top = colours.badges[status], 680, middle - 18
    valid = status == "VALID"
    dashes = ' stroke-dasharray="6 4"' if status == "SUSPECT" else ""
    fill = colour if valid else "none"
    shape = f'x="{left}" y="{top:.1f}" width="122" height="36" rx="6"'
    yield f'<rect {shape} fill="{fill}" stroke="{colour}" stroke-width="2"{dashes}/>'
    yield _text(left + 61, middle + 6, status, 18, colours.back if valid else colour, anchor="middle", bold=True)


def _published_box(words: str, left: float, top: float, room: float, colours: Colours) -> Iterator[str]:
    shown = shorten_text(words, room - 16, 15)
    size = f'width="{width_of(shown, 15) + 16:.0f}" height="21"'
    yield f'<rect x="{left}" y="{top:.1f}" {size} rx="4" fill="none" stroke="{colours.muted}" stroke-dasharray="2 3"/>'
    yield _text(left + 8, top + 15.5, shown, 15, colours.muted)


def _text(x: float, y: float, words: str, size: int, fill: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="700"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{fill}"{weight}>{escape(printable(words))}</text>'


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>'


def _rule(y: float, colours: Colours) -> str:
    return f'<line x1="{MARGIN}" y1="{y:.1f}" x2="{WIDTH - MARGIN}" y2="{y:.1f}" stroke="{colours.rule}"/>'


def _stroke(x: float, y: float, end: float, colour: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{end:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="3"{dashed}/>'


def printable(text: str) -> str:
    """Replace control characters and lone surrogates, which XML doesn't allow."""
    return "".join("?" if unicodedata.category(each) in ("Cc", "Cs", "Cn") else each for each in text)


def shorten_text(text: str, room: float, size: int, *, bold: bool = False) -> str:
    """Return the text, cut to the width `room`."""
    plain = printable(" ".join(text.split()))
    if width_of(plain, size, bold=bold) <= room:
        return plain
    while plain and width_of(plain + "…", size, bold=bold) > room:
        plain = plain[:-1]
    return plain.rstrip() + "…"


def wrap_text(text: str, room: float, size: int, most: int) -> list[str]:
    rows: list[str] = [""]
    for word in text.split():
        longer = f"{rows[-1]} {word}".strip()
        if rows[-1] and width_of(longer, size) > room:
            rows.append(word)
        else:
            rows[-1] = longer
    kept = rows[:most]
    if len(rows) > most:
        kept[-1] += " …"
    return [shorten_text(row, room, size) for row in kept]


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Estimate the width of a text, rather too wide: the font isn't known."""
    return size * sum(map(_width_in_em, text)) * (1.06 if bold else 1.0)


def _width_in_em(character: str) -> float:
    if unicodedata.east_asian_width(character) in ("W", "F"):
        return 1.0
    if unicodedata.combining(character):
        return 0.0
    if character in "iljtfrI.,:;'|!()[]/- ":
        return 0.32
    if character in "mwMW%@…—":
        return 0.95
    return 0.70 if character.isupper() else 0.56
