"""Read the values of run options: text on a command line, typed values in a plan file and in Python."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rigdyno.base.errors import BadValue
from rigdyno.base.units import bytes_from, seconds_from
from rigdyno.schema.spec import Value

Reader = Callable[[Any, str], Any]  # takes the given value, and the option's name for error messages

# Memory that the published privacy benchmark filled: RAM of the first machine, GPU memory of the others.
PRESETS = {"epyc7763": 8 * 10**9, "v100": 16 * 10**9, "a100": 40 * 10**9}

_HOST = re.compile(r"([A-Za-z0-9_.-]+@)?[A-Za-z0-9][A-Za-z0-9_.-]*")  # nothing that ssh would read as an option


@dataclass(frozen=True)
class ValueKind:
    words: str  # description of a valid value, for messages and the documentation
    from_text: Reader
    from_value: Reader
    repeated: bool = False  # whether the flag may be given several times


def _parse_whole(text: Any, called: str) -> int:
    try:
        return msgspec.convert(text, int, strict=False)
    except msgspec.ValidationError:
        raise _make_error(called, WHOLE, text) from None


def _read_whole(value: Any, called: str) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # accepts NumPy integers
    except TypeError:
        pass
    raise _make_error(called, WHOLE, value)


def _read_text(value: Any, called: str) -> str:
    if not isinstance(value, str):
        raise _make_error(called, TEXT, value)
    return value


def _read_switch(value: Any, called: str) -> bool:
    if not isinstance(value, bool):
        raise _make_error(called, SWITCH, value)
    return value


def _read_seconds(value: Any, called: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _make_error(called, DURATION, value)
    try:
        return seconds_from(value)
    except BadValue as error:
        raise BadValue(f"{called}: {error}") from None


def _read_bytes(value: Any, called: str) -> int:
    if not isinstance(value, str):
        raise _make_error(called, SIZE, value)
    try:
        size = PRESETS[value.lower()] if value.lower() in PRESETS else bytes_from(value)
    except BadValue as error:
        raise BadValue(f"{called}: {error}, or the memory of {', '.join(PRESETS)}") from None
    if size < 1:
        raise BadValue(f"{called} must be more than 0 bytes, not {value!r}")
    return size


def _make_error(called: str, kind: ValueKind, value: Any) -> BadValue:
    return BadValue(f"{called} must be {kind.words}, not {value!r}")


def assignments(pairs: Sequence[str], flag: str) -> dict[str, str]:
    """Read `--set key=value`, given any number of times."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise BadValue(f"{flag} takes key=value, not '{pair}'")
        if key.strip() in found:
            raise BadValue(f"{flag} gives '{key.strip()}' twice")
        found[key.strip()] = value.strip()
    return found


def sweeps(pairs: Sequence[str], flag: str = "--sweep") -> dict[str, tuple[Value, ...]]:
    return {
        key: tuple(value.strip() for value in values.split(",") if value.strip())
        for key, values in assignments(pairs, flag).items()
    }


def _parse_slurm(pairs: Sequence[str], _flag: str) -> dict[str, str]:
    """Read options of salloc; some, such as --exclusive, have no value."""
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _read_settings(table: Any, called: str) -> dict[str, Value | tuple[Value, ...]]:
    """Read a table of options. A list is a value of some options of suites."""
    found: dict[str, Value | tuple[Value, ...]] = {}
    for key, value in _require_table(table, called).items():
        if _is_scalar(value):
            found[key] = value
        elif isinstance(value, (list, tuple)) and all(map(_is_scalar, value)):
            found[key] = tuple(value)
        else:
            raise BadValue(f"{key} must be a number, text, true or false, or a list of them, not {value!r}", key=key)
    return found


def _read_sweep(table: Any, called: str) -> dict[str, tuple[Value, ...]]:
    for key, values in _require_table(table, called).items():
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        if not listed or not all(isinstance(value, (bool, int, float, str)) for value in values):
            raise BadValue(f"{key} must be a list such as [1, 2, 4], not {values!r}", key=key)
    return {key: tuple(values) for key, values in table.items()}


def _read_slurm(table: Any, called: str) -> dict[str, str]:
    for key, value in _require_table(table, called).items():
        if not _is_scalar(value):
            raise BadValue(f"{key} must be a number, text, true or false, not {value!r}", key=key)
    return {key: str(value) for key, value in table.items()}


def _require_table(value: Any, called: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadValue(f"{called} must be a table of keys and values, not {value!r}")
    return value


def read_hosts(text: str) -> tuple[str, ...]:
    """Read hosts from `a,b,c`, or from a file with one host per line and comments after #."""
    path = Path(text)
    if "," not in text and path.is_file():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        parts = [line.partition("#")[0].strip() for line in lines]
    else:
        parts = [part.strip() for part in text.split(",")]
    hosts = tuple(part for part in parts if part)
    wrong = [host for host in hosts if not _HOST.fullmatch(host)]
    if wrong:
        raise BadValue(f"--hosts takes names or addresses, not '{wrong[0]}'; e.g. 10.0.0.1,10.0.0.2 or a file of them")
    if len(hosts) < 2:
        raise BadValue(f"--hosts needs this node and at least one other, not '{text}'; no such file, if it is one")
    if len(set(hosts)) < len(hosts):
        raise BadValue(f"--hosts names {max(hosts, key=hosts.count)} twice")
    return hosts


def _read_host_list(value: Any, called: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return read_hosts(value)
    if not isinstance(value, Sequence) or not all(isinstance(host, str) for host in value):
        raise _make_error(called, HOSTS, value)
    return read_hosts(",".join(value))


def _read_names(value: Any, called: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, Sequence) or not value or not all(isinstance(each, str) and each for each in value):
        raise _make_error(called, NAMES, value)
    return tuple(dict.fromkeys(value))


WHOLE = ValueKind("a whole number", _parse_whole, _read_whole)

TEXT = ValueKind("text in quotes", _read_text, _read_text)

SWITCH = ValueKind("true or false", _read_switch, _read_switch)

SIZE = ValueKind('a size such as "8GB"', _read_bytes, _read_bytes)

DURATION = ValueKind('a duration such as "5m"', _read_seconds, _read_seconds)

HOSTS = ValueKind("a list of names or addresses, or a file of them", _read_host_list, _read_host_list)

NAMES = ValueKind("a list of names", _read_names, _read_names)

SETTINGS = ValueKind("a table of keys and values", assignments, _read_settings, repeated=True)

SWEEP = ValueKind("a table of keys and lists", sweeps, _read_sweep, repeated=True)

SLURM = ValueKind("a table of keys and values", _parse_slurm, _read_slurm, repeated=True)

SAVED = ValueKind("a file", lambda text, _: {"save": text}, lambda file, _: {"save": file})

WEIGHTS = ValueKind("a file", lambda text, _: {"weights": text}, lambda file, _: {"weights": file})
