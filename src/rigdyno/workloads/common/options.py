"""Reads options that are written as text."""

from __future__ import annotations

from rigdyno.base.errors import BadValue
from rigdyno.base.units import bytes_from


def parse_size(name: str, value: str) -> int:
    """Return the bytes of an option such as "4MB"."""
    try:
        return bytes_from(value)
    except BadValue as error:
        raise BadValue(str(error), key=f"set.{name}") from None
