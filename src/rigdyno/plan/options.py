"""Apply set and swept options of a workload and of its update, each value converted to its declared type."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from rigdyno import catalogue
from rigdyno.base.errors import BadValue, UsageError
from rigdyno.plan.build import convert_option, is_function, known_options, unknown_option
from rigdyno.plan.request import Request, Setting
from rigdyno.plan.user_file import text_arguments
from rigdyno.schema.spec import OF_UPDATE, RunSpec, Value

LARGEST = "largest"  # value of a whole-number option: search for the largest that fits


def expand_sweep(
    base: RunSpec, request: Request, *, only_known: bool = False, except_for: Collection[str] = ()
) -> Iterator[RunSpec]:
    """Yield the base with the set options, once for every combination of the swept ones.

    `only_known`: ignore options that this workload doesn't have. `except_for`: options that belong to the suite."""
    types = _find_types(base.workload, base.update)
    update_defaults = catalogue.defaults("update", base.update)
    defaults = {
        **catalogue.defaults("workload", base.workload),
        **{OF_UPDATE + name: value for name, value in update_defaults.items()},
    }
    swept = [key for key in request.sweep if not only_known or key in types]
    given_options = {key: value for key, value in request.options.items() if key not in except_for}
    fixed = {key: value for key, value in given_options.items() if not only_known or key in types}
    largest = {key: _require_memory(key, request) for key, value in fixed.items() if is_searched(key, value, types)}
    for values in itertools.product(*(request.sweep[key] for key in swept)):
        given = {key: value for key, value in fixed.items() if key not in largest} | dict(
            zip(swept, values, strict=True)
        )
        options = {key: _convert_value(base, key, value, types, request) for key, value in given.items()}
        yield msgspec.structs.replace(
            base,
            options={**base.options, **options},
            defaults=defaults,
            largest={**{key: size for key, size in base.largest.items() if key not in options}, **largest},
        )


def _find_types(workload: str, update: str) -> dict[str, Any]:
    """Return the known types of options; of a user's function, only those of its text arguments."""
    if is_function(workload):
        return dict.fromkeys(text_arguments(workload), str)
    return known_options(workload, update)


def is_searched(key: str, value: Setting, types: Mapping[str, Any]) -> bool:
    """Return whether an option is to be searched. For a text option, 'largest' may be an ordinary value."""
    return value == LARGEST and takes_whole_numbers(types.get(key, int))


def takes_whole_numbers(wanted: Any) -> bool:
    return wanted is int or int in getattr(wanted, "__args__", ())


def _require_memory(key: str, request: Request) -> int:
    if request.memory_bytes is None:
        raise BadValue(f"{key}={LARGEST} needs a memory limit; add --memory, e.g. 8GB", key=f"set.{key}")
    return request.memory_bytes


def searched_options(request: Request) -> list[str]:
    """Return the options that are to be as large as fits.

    For a suite, every option set to 'largest' counts: the types of its workloads' options are not known here."""
    types = _find_target_types(request)
    return [key for key, value in request.options.items() if is_searched(key, value, types)]


def _find_target_types(request: Request) -> dict[str, Any]:
    """Return the types of the target's options; empty if the target is a suite, or unknown."""
    known = is_function(request.target) or request.target in catalogue.names("workload")
    return _find_types(request.target, request.update) if known and request.update in catalogue.names("update") else {}


def require_searched(request: Request) -> None:
    """Refuse more than one searched option, and --memory without any."""
    found = searched_options(request)
    if len(found) > 1:
        raise BadValue(f"one option can be '{LARGEST}', not both {' and '.join(found[:2])}", key=f"set.{found[1]}")
    if request.memory_bytes is not None and not found and not _suite_searches(request.target):
        for key, wanted in _find_target_types(request).items():
            if request.options.get(key) == LARGEST:
                convert_option(LARGEST, wanted, key)  # raises the more precise error if the option has no such value
        raise UsageError(f"--memory limits an option set to '{LARGEST}'; add --set KEY={LARGEST}", key="memory")


def _suite_searches(target: str) -> bool:
    return target in catalogue.names("suite") and bool(catalogue.load("suite", target).searches_memory)


def _convert_value(base: RunSpec, key: str, value: Setting, types: dict[str, Any], request: Request) -> Value:
    text = key in request.text_keys
    if is_function(base.workload):
        if isinstance(value, tuple):
            raise BadValue(f"{key} must be one value, not a list: {value!r}", key=f"set.{key}")
        return _require_storable(key, _parse_literal(value) if text else value)
    if key not in types:
        raise unknown_option(key, base.workload, base.update)
    return _require_storable(key, convert_option(value, types[key], key, text=text))


def _require_storable(key: str, value: Value) -> Value:
    """Refuse what a record can't store: JSON in UTF-8 has no NaN, no infinity and no stray bytes."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadValue(f"{key} must be a finite number, not {value!r}", key=f"set.{key}")
    if isinstance(value, str) and not value.isascii() and value.encode("utf-8", "replace").decode() != value:
        raise BadValue(f"{key} must be UTF-8 text, not {value!r}", key=f"set.{key}")
    return value


def _parse_literal(value: Value) -> Value:
    """Read an argument of a user's function, whose type is unknown: text that looks like a number becomes one."""
    lowered = str(value).lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind in (int, float):
        try:
            return kind(str(value))
        except ValueError:
            continue
    return value
