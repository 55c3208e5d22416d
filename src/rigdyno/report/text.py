"""Format numbers and table entries as text, the same in every textual format, and render whole views.

A `Page` holds the width and colour of the output.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import TextIO

from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.base.units import scale_to_prefix, show_number, show_percent, show_seconds
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.spec import Value
from rigdyno.schema.view import Column, Entry, Published, RatioEntry, Text, View, exact_text

NOTHING = "—"

LONG_SECONDS = 60.0  # longer times are shown in minutes and hours


@dataclass(frozen=True)
class Page:
    width: int = 80
    colour: bool = False


def detect_page(stream: TextIO | None = None) -> Page:
    """Return the width and colour of a terminal, or 80 plain columns for a pipe. Respects NO_COLOR and TERM=dumb."""
    stream = stream or sys.stdout
    terminal = stream.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Page(width=max(40, shutil.get_terminal_size((80, 24)).columns), colour=terminal and not plain)


def render_view(view: View, form: str) -> str:
    text: str = catalogue.load("format", form)(view, detect_page())
    return text


def join_documents(texts: list[str], form: str) -> str:
    """Join several reports to one document of the given format."""
    if form == "json" and len(texts) != 1:
        return "[" + ",\n".join(text.rstrip() for text in texts) + "]\n"
    if form == "csv":
        header = texts[0].partition("\n")[0] + "\n" if texts else ""
        return header + "".join(text.partition("\n")[2] for text in texts)
    return "\n".join(texts)


def render_view_or_json(view: View, *, as_json: bool, quiet: bool) -> str:
    """Render a view for a terminal or as JSON; `quiet` keeps only the tables and the verdict, or the answer."""
    if as_json:
        return render_view(view, "json")
    if quiet:
        import msgspec

        view = msgspec.structs.replace(view, rigs=(), saved_in=(), next_commands=())
        if not view.comparisons:
            view = msgspec.structs.replace(view, standing=(), closing=())
    return render_view(view, "terminal")


def make_entry(value: Value) -> Entry:
    """Make a table entry of the value of an option or a fact."""
    return Text(text=str(value)) if isinstance(value, bool | str) else Number(value=value)


def format_cell(column: Column, entry: Entry | None) -> str:
    """Format an entry as it is shown in the given column."""
    if column.identifies and isinstance(entry, Number) and not entry.unit:
        return exact_text(entry.value)
    if column.bare and isinstance(entry, Estimate | Number | Published):
        entry = replace(entry, unit="")
    return format_entry(entry)


def format_entry(entry: Entry | None) -> str:
    if isinstance(entry, Estimate):
        return format_estimate(entry)
    if isinstance(entry, Published):
        return format_published(entry)
    if isinstance(entry, Number):
        return format_number(entry)
    if isinstance(entry, RatioEntry):
        return show_percent(entry.value)
    if isinstance(entry, Text):
        return entry.text
    return NOTHING if isinstance(entry, Missing) else ""


def format_estimate(estimate: Estimate) -> str:
    """Format value and interval with one prefix: `31.2 it/s [30.9, 31.5]`."""
    _, prefix, factor = choose_prefix(estimate.value, estimate.unit)
    numbers = [number * factor for number in (estimate.value, *(estimate.interval or ()))]
    # Percentages are differences: they get one decimal, since more digits would make a small one look certain.
    value, *ends = (f"{round(n, 1) + 0.0:.1f}" if estimate.unit == "%" else show_number(n) for n in numbers)
    return f"{value} {prefix}{estimate.unit}".rstrip() + (f" [{', '.join(ends)}]" if ends else "")


def format_number(number: Number) -> str:
    """Format a number: counts exactly, long times in minutes and hours."""
    if number.unit == "" and float(number.value).is_integer():
        return exact_text(number.value)
    ends = () if number.low is None or number.high is None else (number.low, number.high)
    if number.unit == "s" and number.value >= LONG_SECONDS:
        shown = [show_seconds(seconds) for seconds in (number.value, *ends)]
        return shown[0] + (f" [{', '.join(shown[1:])}]" if ends else "")
    _, prefix, factor = choose_prefix(number.value, number.unit)
    value, *interval = (show_number(each * factor) for each in (number.value, *ends))
    return f"{value} {prefix}{number.unit}".rstrip() + (f" [{', '.join(interval)}]" if interval else "")


def format_published(entry: Published) -> str:
    """Format a published figure with its published digits, no more."""
    number, prefix, _ = choose_prefix(entry.value, entry.unit)
    digits = show_number(number) if prefix else f"{number:g}"
    return f"{digits} {prefix}{entry.unit}".rstrip()


def format_scaled(value: float, unit: str) -> str:
    number, prefix, _ = choose_prefix(value, unit)
    return f"{show_number(number)} {prefix}{unit}"


def choose_prefix(value: float, unit: str) -> tuple[float, str, float]:
    """Choose an SI prefix; return the scaled value, the prefix and the factor between the two.

    Seconds and joules get prefixes below one (ms, us), bytes, FLOP and voxels above one; other units get none.
    """
    if value and unit.partition("/")[0] in ("s", "J"):
        for prefix, factor in (("", 1.0), ("m", 1e3), ("u", 1e6), ("n", 1e9)):
            if abs(value) * factor >= 1 or prefix == "n":
                return value * factor, prefix, factor
    if unit in ("B", "B/s", "FLOP/s", "voxel", "voxel/s"):
        number, prefix = scale_to_prefix(value)
        return number, prefix, number / value if value else 1.0
    return value, "", 1.0


def list_missing_reasons(entries: dict[str, Entry]) -> list[str]:
    """Return the reasons why entries are missing, each once."""
    return list(dict.fromkeys(entry.reason for entry in entries.values() if isinstance(entry, Missing)))
