"""Find numbers in the JSON of a view that are only readable as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_DIGITS = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"
_UNIT = r"(?:%|°?[A-Za-zµ]{1,12}(?:/[A-Za-z]{1,10})?)"
_QUANTITY = rf"{_DIGITS}(?:\s*{_UNIT})?"
# '219 ms', '-4.8 % [-5.5, -4.0]', 'x 1.9', '3 min 20 s', '2 of 3', 'size=2048'; not '2.13.0', 'pair 1', 'add (64)'.
_NUMBER = re.compile(
    rf"(?:\w+=)?[-+±~<>≤≥x]?\s*{_QUANTITY}(?:\s+{_QUANTITY})*(?:\s+(?:of|to)\s+{_QUANTITY})?\s*(?:\[.*\])?"
)
# An interval from the extremes of two others has an unknown confidence.
_UNKNOWN_CONFIDENCE = ("worst of both", "the best of")


def reads_as_a_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def complaints(view: Mapping[str, Any]) -> list[str]:
    return [*_about_confidences(view), *(text for table in view.get("tables", ()) for text in _about_table(table))]


def _about_table(table: Mapping[str, Any]) -> Iterator[str]:
    for number, column in enumerate(table["columns"]):
        where = f"table '{table['title']}', column '{column['key']}'"
        needs_metric = column["numeric"] and number > 0 and not column["identifies"]
        if needs_metric != (column["metric"] is not None):
            yield f"{where}: {'no metric' if needs_metric else 'a metric, but no figures'}"
        for row in table["rows"]:
            if (entry := row["entries"].get(column["key"])) is not None:
                yield from (f"{where}: {text}" for text in _about_entry(entry, column))
    shown = {column["key"] for column in table["columns"]}
    for row in table["rows"]:
        yield from (f"'{table['title']}' has no column '{key}'" for key in row["entries"] if key not in shown)


def _about_entry(entry: Mapping[str, Any], column: Mapping[str, Any]) -> Iterator[str]:
    if entry["type"] == "missing":
        return
    if entry["type"] == "text":
        if reads_as_a_number(entry["text"]):
            yield f"'{entry['text']}' is a number"
        if column["numeric"] and entry["text"]:
            yield f"'{entry['text']}' stands among numbers"
        return
    if not isinstance(entry["value"], int | float):
        yield f"{entry['value']!r} is no number"
    wanted = column["metric"]["unit"] if column["metric"] is not None else None
    unit = "share" if entry["type"] == "share" else entry["unit"]
    if wanted is not None and unit != wanted:
        yield f"{entry['value']} is in '{unit}', its metric in '{wanted}'"


def _about_confidences(found: Any) -> Iterator[str]:
    """Anywhere in the document."""
    if isinstance(found, Mapping):
        confidence, method = found.get("confidence"), str(found.get("method", ""))
        if confidence is not None and not 0 < confidence < 1:
            yield f"a confidence of {confidence}"
        if confidence is not None and found.get("low") is None:
            yield f"a confidence of {confidence} without an interval"
        if confidence is not None and any(words in method for words in _UNKNOWN_CONFIDENCE):
            yield f"a confidence of {confidence} for '{method}'"
        found = list(found.values())
    if isinstance(found, list):
        for each in found:
            yield from _about_confidences(each)
