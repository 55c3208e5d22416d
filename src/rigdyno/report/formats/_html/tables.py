"""A view's table: sortable by its headers, each figure with its interval and n, long ones cut with a line that says
so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rigdyno.report.format_entry import cell_text
from rigdyno.report.formats._html.markup import Child, Markup, tag
from rigdyno.report.formats.terminal import has_last_column, interval_methods, last_title, row_notes
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.measured import Status
from rigdyno.schema.view import Column, Entry, Published, Row, Share, Table
from rigdyno.units import show_percent

MOST_ROWS = 200  # a longer table nobody reads on a page
MOST_NOTES = 40
SIGNS: dict[str, str] = {"VALID": "✓", "SUSPECT": "!", "INVALID": "✕", "FAILED": "✕", "SKIPPED": "-"}


def table_block(table: Table, csv_command: str) -> Markup:
    """The table with what belongs below it. `csv_command` gives all of a table that is cut."""
    shown = table.rows[:MOST_ROWS]
    notes = [*row_notes(table), *table.notes]
    return tag(
        "div",
        _table(table, shown),
        _left_out(table.rows[MOST_ROWS:], len(table.rows), csv_command),
        _notes(notes, csv_command),
        _folded_methods(interval_methods(table)),
        class_="table-block",
    )


def badge(status: Status | str) -> Markup:
    """Told apart by its sign and its word, not by colour alone."""
    sign = tag("span", SIGNS.get(status, ""), aria_hidden="true") if status in SIGNS else None
    return tag("span", sign, status, class_=f"badge {status.lower()}" if status in SIGNS else "badge")


def plain_table(
    caption: str, titles: Sequence[str], rows: Iterable[Sequence[Child]], numeric: Sequence[int] = ()
) -> Markup:
    """Of texts; the columns of these numbers are figures."""
    head = [
        tag("th", title, role="columnheader", scope="col", class_="num" if number in numeric else None)
        for number, title in enumerate(titles)
    ]
    body = [
        tag("tr", [_plain_cell(titles, number, cell, numeric) for number, cell in enumerate(row)], role="row")
        for row in rows
    ]
    return _whole(caption, head, body, sortable=False)


def _plain_cell(titles: Sequence[str], number: int, cell: Child, numeric: Sequence[int]) -> Markup:
    if number == 0:
        return tag("th", cell, role="rowheader", scope="row")
    return tag("td", cell, role="cell", data_label=titles[number], class_="num" if number in numeric else None)


def _whole(caption: str, head: list[Markup], body: list[Markup], *, sortable: bool) -> Markup:
    """With roles of its own: on a phone rows are laid out as blocks, and stay rows for a screen reader."""
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", head, role="row"), role="rowgroup"),
        tag("tbody", body, role="rowgroup"),
        role="table",
        data_sortable=sortable,
    )


def _table(table: Table, rows: Sequence[Row]) -> Markup:
    mixed = {column.key for column in table.columns if len(_units(column, rows)) > 1}
    head = [_header(column, first=number == 0) for number, column in enumerate(table.columns)]
    if has_last_column(table):
        head.append(tag("th", last_title(table), scope="col", role="columnheader"))
    body = [_row(table, row, mixed) for row in rows]
    return _whole(table.title, head, body, sortable=len(rows) > 1)


def _header(column: Column, *, first: bool) -> Markup:
    better = column.metric.better if column.metric is not None else None
    kind = "num" if column.numeric and not first else None  # the first one names the rows
    return tag("th", column.title, scope="col", role="columnheader", class_=kind, data_better=better)


def _row(table: Table, row: Row, mixed: set[str]) -> Markup:
    first, *others = table.columns
    name = cell_text(first, row.entries.get(first.key))
    label = first.title if first.identifies else None
    cells = [tag("th", name, scope="row", role="rowheader", data_label=label, **_sorting(first, row, mixed))]
    cells += [_cell(column, row, mixed) for column in others]
    if has_last_column(table):
        shown = badge(row.status or row.origin)
        cells.append(tag("td", shown, role="cell", data_label=last_title(table)))
    return tag("tr", cells, role="row", class_=row.origin if row.origin != "measured" else None)


def _cell(column: Column, row: Row, mixed: set[str]) -> Markup:
    entry = row.entries.get(column.key)
    value, bracket, interval = cell_text(column, entry).partition(" [")
    shown: Child = value
    if bracket and not isinstance(entry, Estimate | Number):
        shown = value + bracket + interval  # somebody's words
    elif bracket:
        shown = tag("span", value, " ", tag("span", f"[{interval}", class_="interval"))
    return tag(
        "td",
        shown,
        role="cell",
        class_="num" if column.numeric else None,
        data_label=column.title,
        data_tip=tip_of(column, entry),
        **_sorting(column, row, mixed),
    )


def _sorting(column: Column, row: Row, mixed: set[str]) -> dict[str, str]:
    """What a header sorts by: the number itself, of figures in several units those of one together."""
    entry = row.entries.get(column.key)
    if not isinstance(entry, Estimate | Number | Share | Published):
        return {}
    unit = getattr(entry, "unit", "")
    return {"data_sort": f"{entry.value:.9g}", **({"data_unit": unit} if column.key in mixed else {})}


def _units(column: Column, rows: Sequence[Row]) -> set[str]:
    return {getattr(row.entries.get(column.key), "unit", "") for row in rows if column.key in row.entries}


def tip_of(column: Column, entry: Entry | None) -> str | None:
    """Everything about one figure, in a sentence."""
    if isinstance(entry, Estimate):
        parts = [cell_text(column, entry).partition(" [")[0], _interval_text(column, entry), f"n = {entry.n:,}"]
        return f"{', '.join(part for part in parts if part)}: {entry.method}"
    if isinstance(entry, Published):
        return f"published: {entry.source}"
    if isinstance(entry, Share):
        ends = (
            ""
            if entry.low is None or entry.high is None
            else f", {show_percent(entry.low)} to {show_percent(entry.high)}"
        )
        return f"{show_percent(entry.value)} of {entry.of}{ends}"
    return entry.reason if isinstance(entry, Missing) else None


def _interval_text(column: Column, entry: Estimate) -> str:
    inside = cell_text(column, entry).partition(" [")[2].removesuffix("]")
    low, _, high = inside.partition(", ")
    if not inside:
        return "no interval"
    kind = "interval" if entry.confidence is None else f"{100 * entry.confidence:.0f} % interval"
    return f"{kind} {low} to {high}"


def _left_out(rows: Sequence[Row], whole: int, csv_command: str) -> Markup | None:
    if not rows:
        return None
    counts = Counter(row.status or row.origin for row in rows)
    ends = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    words = f"{whole - len(rows):,} of {whole:,} rows are shown; of the others {ends}. All of them: "
    return tag("p", words, tag("code", csv_command), class_="cut")


def _notes(notes: Sequence[str], csv_command: str) -> Markup | None:
    if not notes:
        return None
    items = [tag("li", note) for note in notes[:MOST_NOTES]]
    if len(notes) > MOST_NOTES:
        items.append(tag("li", f"{len(notes) - MOST_NOTES:,} more notes: ", tag("code", csv_command)))
    return tag("ul", items, class_="notes")


def _folded_methods(methods: Sequence[str]) -> Markup | None:
    if not methods:
        return None
    items = [tag("li", method) for method in methods[:MOST_NOTES]]
    return tag("details", tag("summary", "How these intervals were made"), tag("ul", items), class_="methods")
