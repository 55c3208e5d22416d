"""Render the tables of a view: sortable by their headers, each figure with its interval and n.

Long tables are cut, with a line that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rigdyno.base.units import show_percent
from rigdyno.report.formats.terminal import list_interval_methods, list_row_notes, needs_last_column, title_last_column
from rigdyno.report.html.markup import Child, Markup, tag
from rigdyno.report.text import format_cell
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.measured import Status
from rigdyno.schema.view import Column, Entry, Published, RatioEntry, Row, Table

MOST_ROWS = 200  # a longer table would be unreadable on a page

MOST_NOTES = 40

SYMBOLS: dict[str, str] = {"VALID": "✓", "SUSPECT": "!", "INVALID": "✕", "FAILED": "✕", "SKIPPED": "-"}


def render_table(table: Table, csv_command: str) -> Markup:
    """Return a table with its notes. `csv_command` prints all rows of a table that is cut."""
    shown = table.rows[:MOST_ROWS]
    notes = [*list_row_notes(table), *table.notes]
    return tag(
        "div",
        _render_table_element(table, shown),
        _render_left_out(table.rows[MOST_ROWS:], len(table.rows), csv_command),
        _render_notes(notes, csv_command),
        _render_methods(list_interval_methods(table)),
        class_="table-block",
    )


def render_badge(status: Status | str) -> Markup:
    """Return a status with a symbol, so that it isn't shown by colour alone."""
    sign = tag("span", SYMBOLS.get(status, ""), aria_hidden="true") if status in SYMBOLS else None
    return tag("span", sign, status, class_=f"badge {status.lower()}" if status in SYMBOLS else "badge")


def render_plain_table(
    caption: str, titles: Sequence[str], rows: Iterable[Sequence[Child]], numeric: Sequence[int] = ()
) -> Markup:
    """Return a table of texts. `numeric` are the numbers of columns to be aligned as figures."""
    head = [
        tag("th", title, role="columnheader", scope="col", class_="num" if number in numeric else None)
        for number, title in enumerate(titles)
    ]
    body = [
        tag("tr", [_render_plain_cell(titles, number, cell, numeric) for number, cell in enumerate(row)], role="row")
        for row in rows
    ]
    return _assemble_table(caption, head, body, sortable=False)


def _render_plain_cell(titles: Sequence[str], number: int, cell: Child, numeric: Sequence[int]) -> Markup:
    if number == 0:
        return tag("th", cell, role="rowheader", scope="row")
    return tag("td", cell, role="cell", data_label=titles[number], class_="num" if number in numeric else None)


def _assemble_table(caption: str, head: list[Markup], body: list[Markup], *, sortable: bool) -> Markup:
    """Return a table with explicit roles: on a phone rows become blocks, but stay rows for a screen reader."""
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", head, role="row"), role="rowgroup"),
        tag("tbody", body, role="rowgroup"),
        role="table",
        data_sortable=sortable,
    )


def _render_table_element(table: Table, rows: Sequence[Row]) -> Markup:
    mixed = {column.key for column in table.columns if len(_find_units(column, rows)) > 1}
    head = [_render_header(column, first=number == 0) for number, column in enumerate(table.columns)]
    if needs_last_column(table):
        head.append(tag("th", title_last_column(table), scope="col", role="columnheader"))
    body = [_render_row(table, row, mixed) for row in rows]
    return _assemble_table(table.title, head, body, sortable=len(rows) > 1)


def _render_header(column: Column, *, first: bool) -> Markup:
    better = column.metric.better if column.metric is not None else None
    kind = "num" if column.numeric and not first else None  # the first column names the rows
    return tag("th", column.title, scope="col", role="columnheader", class_=kind, data_better=better)


def _render_row(table: Table, row: Row, mixed: set[str]) -> Markup:
    first, *others = table.columns
    name = format_cell(first, row.entries.get(first.key))
    label = first.title if first.identifies else None
    cells = [tag("th", name, scope="row", role="rowheader", data_label=label, **_sort_attributes(first, row, mixed))]
    cells += [_render_cell(column, row, mixed) for column in others]
    if needs_last_column(table):
        shown = render_badge(row.status or row.origin)
        cells.append(tag("td", shown, role="cell", data_label=title_last_column(table)))
    return tag("tr", cells, role="row", class_=row.origin if row.origin != "measured" else None)


def _render_cell(column: Column, row: Row, mixed: set[str]) -> Markup:
    entry = row.entries.get(column.key)
    value, bracket, interval = format_cell(column, entry).partition(" [")
    shown: Child = value
    if bracket and not isinstance(entry, Estimate | Number):
        shown = value + bracket + interval  # a text of the user, not an interval
    elif bracket:
        shown = tag("span", value, " ", tag("span", f"[{interval}", class_="interval"))
    return tag(
        "td",
        shown,
        role="cell",
        class_="num" if column.numeric else None,
        data_label=column.title,
        data_tip=describe_entry(column, entry),
        **_sort_attributes(column, row, mixed),
    )


def _sort_attributes(column: Column, row: Row, mixed: set[str]) -> dict[str, str]:
    """Return the sort key of a cell: its number, and its unit if the column has several, to keep those together."""
    entry = row.entries.get(column.key)
    if not isinstance(entry, Estimate | Number | RatioEntry | Published):
        return {}
    unit = getattr(entry, "unit", "")
    return {"data_sort": f"{entry.value:.9g}", **({"data_unit": unit} if column.key in mixed else {})}


def _find_units(column: Column, rows: Sequence[Row]) -> set[str]:
    return {getattr(row.entries.get(column.key), "unit", "") for row in rows if column.key in row.entries}


def describe_entry(column: Column, entry: Entry | None) -> str | None:
    """Describe one figure completely, for its tooltip."""
    if isinstance(entry, Estimate):
        parts = [format_cell(column, entry).partition(" [")[0], _interval_text(column, entry), f"n = {entry.n:,}"]
        return f"{', '.join(part for part in parts if part)}: {entry.method}"
    if isinstance(entry, Published):
        return f"published: {entry.source}"
    if isinstance(entry, RatioEntry):
        ends = (
            ""
            if entry.low is None or entry.high is None
            else f", {show_percent(entry.low)} to {show_percent(entry.high)}"
        )
        return f"{show_percent(entry.value)} of {entry.of}{ends}"
    return entry.reason if isinstance(entry, Missing) else None


def _interval_text(column: Column, entry: Estimate) -> str:
    inside = format_cell(column, entry).partition(" [")[2].removesuffix("]")
    low, _, high = inside.partition(", ")
    if not inside:
        return "no interval"
    kind = "interval" if entry.confidence is None else f"{100 * entry.confidence:.0f} % interval"
    return f"{kind} {low} to {high}"


def _render_left_out(rows: Sequence[Row], whole: int, csv_command: str) -> Markup | None:
    if not rows:
        return None
    counts = Counter(row.status or row.origin for row in rows)
    ends = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    words = f"{whole - len(rows):,} of {whole:,} rows are shown; the others: {ends}. All rows: "
    return tag("p", words, tag("code", csv_command), class_="cut")


def _render_notes(notes: Sequence[str], csv_command: str) -> Markup | None:
    if not notes:
        return None
    items = [tag("li", note) for note in notes[:MOST_NOTES]]
    if len(notes) > MOST_NOTES:
        items.append(tag("li", f"{len(notes) - MOST_NOTES:,} more notes: ", tag("code", csv_command)))
    return tag("ul", items, class_="notes")


def _render_methods(methods: Sequence[str]) -> Markup | None:
    if not methods:
        return None
    items = [tag("li", method) for method in methods[:MOST_NOTES]]
    return tag("details", tag("summary", "How these intervals were computed"), tag("ul", items), class_="methods")
