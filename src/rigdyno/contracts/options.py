"""Options of workloads, updates and suites: the fields of their dataclass, with bounds declared in the types."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from rigdyno.base.errors import BadValue

Count = Annotated[int, msgspec.Meta(ge=1)]  # at least one

Natural = Annotated[int, msgspec.Meta(ge=0)]  # zero or more

Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]  # at least 0 and below 1

Positive = Annotated[float, msgspec.Meta(gt=0)]  # above zero

NotNegative = Annotated[float, msgspec.Meta(ge=0)]  # zero or more

Probability = Annotated[float, msgspec.Meta(gt=0, lt=1)]  # neither impossible nor certain

Factor = Annotated[float, msgspec.Meta(ge=0, lt=1000)]  # a learning rate, a weight decay


@cache
def option_types(kind: type) -> dict[str, Any]:
    """Return the types of an entry's options by name, with their bounds."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def check_options(entry: object, prefix: str = "") -> None:
    """Raise BadValue if an option of an entry has a wrong type, or a value outside its bounds."""
    kind: type = type(entry)
    for name, wanted in option_types(kind).items():
        value = getattr(entry, name)
        try:
            convert_finite(value, wanted)
        except msgspec.ValidationError:
            raise wrong_value(prefix + name, value, wanted) from None


def convert_finite(value: object, wanted: Any, *, strict: bool = True) -> Any:
    """Convert a value to a type within its bounds. Infinity and NaN are no values of an option."""
    converted = msgspec.convert(value, wanted, strict=strict)
    if isinstance(converted, float) and not math.isfinite(converted):
        raise msgspec.ValidationError("not finite")
    return converted


def wrong_value(name: str, value: object, wanted: Any) -> BadValue:
    """Return the error for a value that isn't of the wanted type, or not within its bounds."""
    choices = [choice for choice in get_args(wanted) if isinstance(choice, str)]
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.6)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return BadValue(f"{name} must be {describe_type(wanted)}, not {value!r}{hint}", key=f"set.{name}")


def describe_type(wanted: Any) -> str:
    """Return a type and its bounds in words: "a whole number of at least 1"."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        bounds = " and ".join(words for meta in arguments[1:] for words in _describe_bounds(meta))
        of = "" if bounds.startswith(("above", "below")) else "of "
        return f"{describe_type(arguments[0])} {of}{bounds}".strip()
    if origin is tuple:
        return f"a list, each {describe_type(arguments[0])}"
    if arguments and all(isinstance(choice, str) for choice in arguments):
        return f"one of {', '.join(arguments)}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(wanted, str(wanted))


def _describe_bounds(meta: msgspec.Meta) -> Iterator[str]:
    for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        bound = getattr(meta, name)
        if bound is not None:
            yield f"{words} {bound:g}"
