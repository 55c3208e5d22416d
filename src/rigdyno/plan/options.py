"""Options of a workload and of its update, set and swept: each value of the type that is declared for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rigdyno import catalogue
from rigdyno.errors import BadValue, UsageError
from rigdyno.plan.build import converted, is_function, known_options, unknown_option
from rigdyno.plan.load import Request
from rigdyno.plan.user_file import text_arguments
from rigdyno.schema.spec import OF_UPDATE, RunSpec, Value

LARGEST = "largest"  # instead of a whole number


def varied(base: RunSpec, request: Request, *, only_known: bool = False) -> Iterator[RunSpec]:
    """The base with the set options, once for every combination of the swept ones."""
    types = _types(base.workload, base.update)
    of_update = catalogue.defaults("update", base.update)
    defaults = {
        **catalogue.defaults("workload", base.workload),
        **{OF_UPDATE + name: value for name, value in of_update.items()},
    }
    mine = [key for key in request.sweep if not only_known or key in types]
    fixed = {key: value for key, value in request.options.items() if not only_known or key in types}
    largest = {key: _allowed(key, request) for key, value in fixed.items() if is_searched(key, value, types)}
    for values in itertools.product(*(request.sweep[key] for key in mine)):
        given = {key: value for key, value in fixed.items() if key not in largest} | dict(
            zip(mine, values, strict=True)
        )
        options = {key: _typed(base, key, value, types, request) for key, value in given.items()}
        yield msgspec.structs.replace(
            base,
            options={**base.options, **options},
            defaults=defaults,
            largest={**{key: size for key, size in base.largest.items() if key not in options}, **largest},
        )


def _types(workload: str, update: str) -> dict[str, Any]:
    """Of a user's function only those that are texts are known."""
    if is_function(workload):
        return dict.fromkeys(text_arguments(workload), str)
    return known_options(workload, update)


def is_searched(key: str, value: Value, types: Mapping[str, Any]) -> bool:
    """A text option may have such a value of its own."""
    return value == LARGEST and takes_whole_numbers(types.get(key, int))


def takes_whole_numbers(wanted: Any) -> bool:
    return wanted is int or int in getattr(wanted, "__args__", ())


def _allowed(key: str, request: Request) -> int:
    if request.memory_bytes is None:
        raise BadValue(f"{key}={LARGEST} needs to know what may be filled; add --memory, e.g. 8GB", key=f"set.{key}")
    return request.memory_bytes


def searched(request: Request) -> list[str]:
    """The options that are to be as large as fits. Of a suite, as its workloads have them: nothing is known of those
    here."""
    types = _types_asked_for(request)
    return [key for key, value in request.options.items() if is_searched(key, value, types)]


def _types_asked_for(request: Request) -> dict[str, Any]:
    """Empty where the target is a suite, or unknown."""
    known = is_function(request.target) or request.target in catalogue.names("workload")
    return _types(request.target, request.update) if known and request.update in catalogue.names("update") else {}


def require_searched(request: Request) -> None:
    """One option can be as large as fits; and memory is for that alone."""
    found = searched(request)
    if len(found) > 1:
        raise BadValue(f"one option can be '{LARGEST}', not both {' and '.join(found[:2])}", key=f"set.{found[1]}")
    if request.memory_bytes is not None and not found and not _suite_searches(request.target):
        for key, wanted in _types_asked_for(request).items():
            if request.options.get(key) == LARGEST:
                converted(LARGEST, wanted, key)  # where it is no value of that option, this is what is wrong
        raise UsageError(
            f"--memory is what an option set to '{LARGEST}' may fill; add --set KEY={LARGEST}", key="memory"
        )


def _suite_searches(target: str) -> bool:
    return target in catalogue.names("suite") and "memory" in getattr(catalogue.load("suite", target), "takes", ())


def _typed(base: RunSpec, key: str, value: Value, types: dict[str, Any], request: Request) -> Value:
    text = key in request.text_keys
    if is_function(base.workload):
        return _storable(key, _literal(value) if text else value)
    if key not in types:
        raise unknown_option(key, base.workload, base.update)
    return _storable(key, converted(value, types[key], key, text=text))


def _storable(key: str, value: Value) -> Value:
    """A record is JSON in UTF-8, which has no NaN, no infinity and no stray bytes."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadValue(f"{key} must be a finite number, not {value!r}", key=f"set.{key}")
    if isinstance(value, str) and not value.isascii() and value.encode("utf-8", "replace").decode() != value:
        raise BadValue(f"{key} must be UTF-8 text, not {value!r}", key=f"set.{key}")
    return value


def _literal(value: Value) -> Value:
    """For a user's function nobody knows the types: what looks like a number is one."""
    lowered = str(value).lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind in (int, float):
        try:
            return kind(str(value))
        except ValueError:
            continue
    return value
