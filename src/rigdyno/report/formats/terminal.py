"""Render a view for a terminal, or as plain text for a pipe."""

from __future__ import annotations

from io import StringIO

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable

from rigdyno.report.plot import draw_figure_as_text
from rigdyno.report.text import Page, format_cell, list_missing_reasons
from rigdyno.schema.estimate import Estimate, Validity
from rigdyno.schema.view import Row, Table, View

_STATUS_STYLES = {"VALID": "green", "SUSPECT": "yellow", "INVALID": "bold red", "FAILED": "bold red", "SKIPPED": "dim"}

WIDE = 110  # columns of a page from which a value and its interval share a line


def render(view: View, page: Page) -> str:
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=page.width,
        force_terminal=page.colour,
        no_color=not page.colour,
        highlight=False,
        emoji=False,  # else a label ':car:' would become an emoji
        soft_wrap=False,
    )
    console.print(f"[bold]{escape(view.title)}[/bold]")
    for rig in view.rigs:
        console.print(escape(rig), style="dim")
    for doubt in view.doubts:
        console.print(f"[yellow]doubtful:[/yellow] {escape(doubt)}")
    for table in view.tables:
        _print_table(console, table, page)
    for lines in filter(None, (draw_figure_as_text(figure, page.width) for figure in view.figures)):
        console.print()
        console.print("\n".join(lines), markup=False, no_wrap=True, crop=False)
    _print_sentences(console, view)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _print_table(console: Console, table: Table, page: Page) -> None:
    console.print()
    console.print(escape(table.title))  # not as the table's title, which is wrapped to the width of the table
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        drawn.add_column(column.title, justify="right" if column.numeric else "left", overflow="fold")
    if needs_last_column(table):
        drawn.add_column(title_last_column(table))
    for row in table.rows:
        drawn.add_row(*_format_cells(table, row, page), style="" if row.origin == "measured" else "dim")
    console.print(drawn)
    for note in (*list_table_notes(table), *table.notes):
        console.print(Padding(escape(note), (0, 0, 0, 2)), style="dim")


def needs_last_column(table: Table) -> bool:
    """Return whether a table needs a last column, for the verdict or the origin of its rows."""
    return any(row.status or row.origin != "measured" for row in table.rows)


def title_last_column(table: Table) -> str:
    return "verdict" if any(row.status or row.origin == "published" for row in table.rows) else "origin"


def _format_cells(table: Table, row: Row, page: Page) -> list[str]:
    texts = [format_cell(column, row.entries.get(column.key)) for column in table.columns]
    if page.width < WIDE:
        texts = [text.replace(" [", "\n[") for text in texts]  # an interval is never broken
    cells = [escape(text) for text in texts]
    if row.status:
        style = _STATUS_STYLES[row.status]
        cells.append(f"[{style}]{row.status}[/{style}]")
    elif needs_last_column(table):
        cells.append(row.origin)
    return cells


def list_table_notes(table: Table) -> list[str]:
    """Say why figures are missing and how the intervals were computed, each once."""
    return [*list_row_notes(table), *list_interval_methods(table)]


def list_row_notes(table: Table) -> list[str]:
    notes = []
    for row in table.rows:
        prefix = f"{name}: " if (name := table.name_of(row)) else ""
        notes += [f"{prefix}{note}" for note in (*list_missing_reasons(row.entries), *row.notes)]
    return notes


def list_interval_methods(table: Table) -> list[str]:
    methods = dict.fromkeys(
        f"[low, high]: {_describe_interval(entry)}{entry.method}"
        for row in table.rows
        for entry in row.entries.values()
        if isinstance(entry, Estimate) and entry.interval is not None
    )
    return list(methods)


def _describe_interval(entry: Estimate) -> str:
    return "" if entry.confidence is None else f"{100 * entry.confidence:.0f} % interval, "


def _print_sentences(console: Console, view: View) -> None:
    console.print()
    if view.validity is not None:
        _print_verdict(console, view.validity)
    if view.noise is not None:
        console.print(escape(view.noise.text))
    for sentence in (*view.standing, *view.closing):
        console.print(escape(sentence))
    for warning in view.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")
    for place in view.saved_in:
        console.print(f"Saved in {escape(place)}")
    if view.next_commands:
        console.print("\nWorth trying next:")
        for command in view.next_commands:
            console.print(f"  {escape(command)}")


def _print_verdict(console: Console, validity: Validity) -> None:
    style = _STATUS_STYLES[validity.verdict]
    clear = "" if validity.reasons else ": nothing found that would spoil the figures"
    console.print(f"Verdict: [{style}]{validity.verdict}[/{style}]{clear}")
    for reason in validity.reasons:
        console.print(Padding(escape(f"{reason.code}: {reason.sentence}"), (0, 0, 0, 2)))
