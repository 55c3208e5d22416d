"""The report as Markdown, for a README or an issue."""

from __future__ import annotations

from rigdyno.report.format_entry import cell_text
from rigdyno.report.formats.terminal import has_last_column, last_title, table_notes
from rigdyno.report.page import Page
from rigdyno.report.plot import figure_lines
from rigdyno.schema.view import Row, Table, View


def render(view: View, page: Page) -> str:
    parts = [f"## {_plain(view.title)}", *map(_plain, view.rigs)]
    parts += [f"**Doubtful:** {_plain(doubt)}" for doubt in view.doubts]
    parts += [_table(table) for table in view.tables]
    drawn = filter(None, (figure_lines(figure, page.width) for figure in view.figures))
    parts += ["```\n" + "\n".join(lines) + "\n```" for lines in drawn]
    if view.validity is not None:
        reasons = "".join(f"\n- {reason.code}: {reason.sentence}" for reason in view.validity.reasons)
        parts.append(f"Verdict: **{view.validity.verdict}**{reasons}")
    noise = () if view.noise is None else (view.noise.text,)
    parts += [_plain(sentence) for sentence in (*noise, *view.standing, *view.closing)]
    parts += [f"Warning: {_plain(warning)}" for warning in view.warnings]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    with_status = has_last_column(table)
    titles = [column.title for column in table.columns] + [last_title(table)] * with_status
    rules = ["---:" if column.numeric else ":---" for column in table.columns] + [":---"] * with_status
    lines = [f"**{_cell(table.title)}**", "", _line(titles), _line(rules)]
    lines += [_line(_row(table, row, with_status)) for row in table.rows]
    notes = [f"- {_cell(note)}" for note in (*table_notes(table), *table.notes)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def _row(table: Table, row: Row, with_status: bool) -> list[str]:
    cells = [_cell(cell_text(column, row.entries.get(column.key))) for column in table.columns]
    return [*cells, row.status or row.origin] if with_status else cells


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """Without what a table's cell must not hold: a bar."""
    return _plain(text.replace("\\", "\\\\").replace("|", "\\|"))


def _plain(text: str) -> str:
    """Without line breaks, or markup out of somebody's label."""
    return " ".join(text.splitlines()).replace("<", "&lt;")
