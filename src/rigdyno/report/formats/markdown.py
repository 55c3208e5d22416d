"""Render a view as Markdown, for a README or an issue."""

from __future__ import annotations

from rigdyno.report.formats.terminal import list_table_notes, needs_last_column, title_last_column
from rigdyno.report.plot import draw_figure_as_text
from rigdyno.report.text import Page, format_cell
from rigdyno.schema.view import Row, Table, View


def render(view: View, page: Page) -> str:
    parts = [f"## {_escape(view.title)}", *map(_escape, view.rigs)]
    parts += [f"**Doubtful:** {_escape(doubt)}" for doubt in view.doubts]
    parts += [_render_table(table) for table in view.tables]
    drawn = filter(None, (draw_figure_as_text(figure, page.width) for figure in view.figures))
    parts += ["```\n" + "\n".join(lines) + "\n```" for lines in drawn]
    if view.validity is not None:
        reasons = "".join(f"\n- {reason.code}: {reason.sentence}" for reason in view.validity.reasons)
        parts.append(f"Verdict: **{view.validity.verdict}**{reasons}")
    noise = () if view.noise is None else (view.noise.text,)
    parts += [_escape(sentence) for sentence in (*noise, *view.standing, *view.closing)]
    parts += [f"Warning: {_escape(warning)}" for warning in view.warnings]
    return "\n\n".join(parts) + "\n"


def _render_table(table: Table) -> str:
    with_status = needs_last_column(table)
    titles = [column.title for column in table.columns] + [title_last_column(table)] * with_status
    rules = ["---:" if column.numeric else ":---" for column in table.columns] + [":---"] * with_status
    lines = [f"**{_escape_cell(table.title)}**", "", _join_cells(titles), _join_cells(rules)]
    lines += [_join_cells(_render_row(table, row, with_status)) for row in table.rows]
    notes = [f"- {_escape_cell(note)}" for note in (*list_table_notes(table), *table.notes)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def _render_row(table: Table, row: Row, with_status: bool) -> list[str]:
    cells = [_escape_cell(format_cell(column, row.entries.get(column.key))) for column in table.columns]
    return [*cells, row.status or row.origin] if with_status else cells


def _join_cells(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape_cell(text: str) -> str:
    """Escape text for a table cell, where a bar would end the cell."""
    return _escape(text.replace("\\", "\\\\").replace("|", "\\|"))


def _escape(text: str) -> str:
    """Escape text: without line breaks, and without markup from a label."""
    return " ".join(text.splitlines()).replace("<", "&lt;")
