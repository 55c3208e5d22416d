"""One entry of a table as text, the same in every textual format."""

from __future__ import annotations

from msgspec.structs import replace

from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.spec import Value
from rigdyno.schema.view import Column, Entry, Published, Share, Text, exact_text
from rigdyno.units import scaled, show_number, show_percent, show_seconds

NOTHING = "—"
LONG_SECONDS = 60.0  # from here on in minutes and hours


def entry_of(value: Value) -> Entry:
    """Of an option or a fact."""
    return Text(text=str(value)) if isinstance(value, bool | str) else Number(value=value)


def cell_text(column: Column, entry: Entry | None) -> str:
    """As it stands in that column."""
    if column.identifies and isinstance(entry, Number) and not entry.unit:
        return exact_text(entry.value)
    if column.bare and isinstance(entry, Estimate | Number | Published):
        entry = replace(entry, unit="")
    return entry_text(entry)


def entry_text(entry: Entry | None) -> str:
    if isinstance(entry, Estimate):
        return estimate_text(entry)
    if isinstance(entry, Published):
        return published_text(entry)
    if isinstance(entry, Number):
        return number_text(entry)
    if isinstance(entry, Share):
        return show_percent(entry.value)
    if isinstance(entry, Text):
        return entry.text
    return NOTHING if isinstance(entry, Missing) else ""


def estimate_text(estimate: Estimate) -> str:
    """`31.2 it/s [30.9, 31.5]`: value and interval with one prefix."""
    _, prefix, factor = prefixed(estimate.value, estimate.unit)
    numbers = [number * factor for number in (estimate.value, *(estimate.interval or ()))]
    # Percentages are differences: digits that a large one has no use for would make a small one look certain.
    value, *ends = (f"{round(n, 1) + 0.0:.1f}" if estimate.unit == "%" else show_number(n) for n in numbers)
    return f"{value} {prefix}{estimate.unit}".rstrip() + (f" [{', '.join(ends)}]" if ends else "")


def number_text(number: Number) -> str:
    """Counts as they are, times as a person says them."""
    if number.unit == "" and float(number.value).is_integer():
        return exact_text(number.value)
    ends = () if number.low is None or number.high is None else (number.low, number.high)
    if number.unit == "s" and number.value >= LONG_SECONDS:
        shown = [show_seconds(seconds) for seconds in (number.value, *ends)]
        return shown[0] + (f" [{', '.join(shown[1:])}]" if ends else "")
    _, prefix, factor = prefixed(number.value, number.unit)
    value, *interval = (show_number(each * factor) for each in (number.value, *ends))
    return f"{value} {prefix}{number.unit}".rstrip() + (f" [{', '.join(interval)}]" if interval else "")


def published_text(entry: Published) -> str:
    """With the digits that were published, no more."""
    number, prefix, _ = prefixed(entry.value, entry.unit)
    digits = show_number(number) if prefix else f"{number:g}"
    return f"{digits} {prefix}{entry.unit}".rstrip()


def scaled_text(value: float, unit: str) -> str:
    number, prefix, _ = prefixed(value, unit)
    return f"{show_number(number)} {prefix}{unit}"


def prefixed(value: float, unit: str) -> tuple[float, str, float]:
    """Seconds and joules go down (ms, us), everything else up; iterations and images are counted without a prefix."""
    if value and unit.partition("/")[0] in ("s", "J"):
        for prefix, factor in (("", 1.0), ("m", 1e3), ("u", 1e6), ("n", 1e9)):
            if abs(value) * factor >= 1 or prefix == "n":
                return value * factor, prefix, factor
    if unit in ("B", "B/s", "FLOP/s", "voxel", "voxel/s"):
        number, prefix = scaled(value)
        return number, prefix, number / value if value else 1.0
    return value, "", 1.0


def missing_reasons(entries: dict[str, Entry]) -> list[str]:
    """Each reason once."""
    return list(dict.fromkeys(entry.reason for entry in entries.values() if isinstance(entry, Missing)))
