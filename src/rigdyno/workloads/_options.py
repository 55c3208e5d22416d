"""Checks of options that several workloads share: one clear line for each thing that can be wrong."""

from __future__ import annotations

import math

from rigdyno.errors import BadValue, suggestion
from rigdyno.units import bytes_from


def whole_number(name: str, value: object, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadValue(f"{name} must be a whole number of at least {least}, not {value!r}", key=f"set.{name}")


def number_between(name: str, value: object, low: float, high: float) -> None:
    """low <= value < high."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise BadValue(f"{name} must be a number, not {value!r}", key=f"set.{name}")
    if not (math.isfinite(value) and low <= value < high):
        raise BadValue(f"{name} must be at least {low:g} and below {high:g}, not {value!r}", key=f"set.{name}")


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadValue(f"{name} can't be {value!r}; {suggestion(str(value), known)}", key=f"set.{name}")


def text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise BadValue(f"{name} must be text, not {value!r}", key=f"set.{name}")


def yes_or_no(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise BadValue(f"{name} must be true or false, not {value!r}", key=f"set.{name}")


def size_bytes(name: str, value: object) -> int:
    text(name, value)
    try:
        return bytes_from(str(value))
    except BadValue as error:
        raise BadValue(str(error), key=f"set.{name}") from None
