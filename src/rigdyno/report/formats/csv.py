"""Render a view as CSV: one line per figure, with everything that belongs to it."""

from __future__ import annotations

import csv
import io
from pathlib import PurePath

from rigdyno.report.text import Page
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.view import Entry, Published, RatioEntry, Row, Table, View

FIELDS = (
    "run", "table", "row", "figure", "origin", "value", "low", "high", "unit", "confidence", "n", "method", "status",
    "reason", "notes",
)  # fmt: skip


def render(view: View, _page: Page) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, FIELDS, lineterminator="\n")
    writer.writeheader()
    runs = tuple(PurePath(place).name for place in view.saved_in)
    for table in view.tables:
        for row in table.rows:
            writer.writerows(_row_lines(runs, table, row))
    return buffer.getvalue()


def _row_lines(runs: tuple[str, ...], table: Table, row: Row) -> list[dict[str, object]]:
    common = {"run": ", ".join(row.runs or runs), "table": table.title, "row": table.name_of(row), "origin": row.origin}
    common |= {"status": row.status or "", "notes": "; ".join(row.notes)}
    identifying = {column.key for column in table.identifying}
    return [
        {**common, "figure": key, **fields}
        for key, entry in row.entries.items()
        if key not in identifying and (fields := _entry_fields(entry)) is not None
    ]


def _entry_fields(entry: Entry) -> dict[str, object] | None:
    if isinstance(entry, Estimate):
        names = ("value", "low", "high", "unit", "confidence", "n", "method")
        return {name: getattr(entry, name) for name in names}
    if isinstance(entry, Number):
        return {"value": entry.value, "low": entry.low, "high": entry.high, "unit": entry.unit}
    if isinstance(entry, RatioEntry):
        return {"value": entry.value, "low": entry.low, "high": entry.high, "unit": f"of {entry.of}"}
    if isinstance(entry, Published):
        return {"value": entry.value, "unit": entry.unit, "method": f"published: {entry.source}"}
    if isinstance(entry, Missing):
        return {"reason": entry.reason}
    return None
