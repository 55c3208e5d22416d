"""How the value of a run option is written: as text on a command line, as a value in a plan file and in Python."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rigdyno.errors import BadValue
from rigdyno.schema.spec import Value
from rigdyno.units import bytes_from, seconds_from

Reader = Callable[[Any, str], Any]  # the value as it came, and what to call the option in a message


@dataclass(frozen=True)
class ValueKind:
    words: str  # what a value is, for messages and the documentation
    from_text: Reader
    from_value: Reader
    repeated: bool = False  # its flag may be given several times


def _whole_from_text(text: Any, called: str) -> int:
    try:
        return msgspec.convert(text, int, strict=False)
    except msgspec.ValidationError:
        raise _wrong(called, WHOLE, text) from None


def _whole(value: Any, called: str) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # numpy's whole numbers too
    except TypeError:
        pass
    raise _wrong(called, WHOLE, value)


def _text(value: Any, called: str) -> str:
    if not isinstance(value, str):
        raise _wrong(called, TEXT, value)
    return value


def _switch(value: Any, called: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(called, SWITCH, value)
    return value


def _seconds(value: Any, called: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _wrong(called, DURATION, value)
    try:
        return seconds_from(value)
    except BadValue as error:
        raise BadValue(f"{called}: {error}") from None


# What was filled on the machines of the published privacy benchmark: RAM of the first, memory of the cards.
PRESETS = {"epyc7763": 8 * 10**9, "v100": 16 * 10**9, "a100": 40 * 10**9}


def _bytes(value: Any, called: str) -> int:
    if not isinstance(value, str):
        raise _wrong(called, SIZE, value)
    try:
        size = PRESETS[value.lower()] if value.lower() in PRESETS else bytes_from(value)
    except BadValue as error:
        raise BadValue(f"{called}: {error}, or the memory of {', '.join(PRESETS)}") from None
    if size < 1:
        raise BadValue(f"{called} must be more than nothing, not {value!r}")
    return size


def _wrong(called: str, kind: ValueKind, value: Any) -> BadValue:
    return BadValue(f"{called} must be {kind.words}, not {value!r}")


def assignments(pairs: Sequence[str], flag: str) -> dict[str, str]:
    """`--set key=value`, given any number of times."""
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


def _words_of_slurm(pairs: Sequence[str], _flag: str) -> dict[str, str]:
    """Some of salloc's options, such as --exclusive, have no value."""
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def _settings(table: Any, called: str) -> dict[str, Value]:
    for key, value in _table(table, called).items():
        if not isinstance(value, (bool, int, float, str)):
            raise BadValue(f"{key} must be a number, text, true or false, not {value!r}", key=key)
    return dict(table)


def _swept(table: Any, called: str) -> dict[str, tuple[Value, ...]]:
    for key, values in _table(table, called).items():
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        if not listed or not all(isinstance(value, (bool, int, float, str)) for value in values):
            raise BadValue(f"{key} must be a list such as [1, 2, 4], not {values!r}", key=key)
    return {key: tuple(values) for key, values in table.items()}


def _settings_as_text(table: Any, called: str) -> dict[str, str]:
    return {key: str(value) for key, value in _settings(table, called).items()}


def _table(value: Any, called: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadValue(f"{called} must be a table of keys and values, not {value!r}")
    return value


_HOST = re.compile(r"([A-Za-z0-9_.-]+@)?[A-Za-z0-9][A-Za-z0-9_.-]*")  # never something that ssh takes for an option


def read_hosts(text: str) -> tuple[str, ...]:
    """`a,b,c`, or a file with a host a line; what stands behind a # is a remark."""
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


def _hosts(value: Any, called: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return read_hosts(value)
    if not isinstance(value, Sequence) or not all(isinstance(host, str) for host in value):
        raise _wrong(called, HOSTS, value)
    return read_hosts(",".join(value))


def _listed(value: Any, called: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, Sequence) or not value or not all(isinstance(each, str) and each for each in value):
        raise _wrong(called, NAMES, value)
    return tuple(dict.fromkeys(value))


def _counts_from_text(text: Any, called: str) -> tuple[int, ...]:
    try:
        return _counts([msgspec.convert(part.strip(), int, strict=False) for part in str(text).split(",")], called)
    except msgspec.ValidationError:
        raise _wrong(called, COUNTS, text) from None


def _counts(value: Any, called: str) -> tuple[int, ...]:
    listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if not listed or not all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in value):
        raise _wrong(called, COUNTS, value)
    return tuple(sorted(set(value)))


def _accuracy(value: Any, called: str) -> float:
    """accuracy=0.80; the word is there because other ends may come."""
    name, _, figure = str(value).partition("=")
    try:
        share = float(figure)
    except ValueError:
        share = math.nan
    if name.strip() != "accuracy" or not 0 < share < 1:
        raise _wrong(called, ACCURACY, value)
    return share


ACCURACY = ValueKind('an accuracy between 0 and 1 such as "accuracy=0.80"', _accuracy, _accuracy)
WHOLE = ValueKind("a whole number", _whole_from_text, _whole)
TEXT = ValueKind("text in quotes", _text, _text)
SWITCH = ValueKind("true or false", _switch, _switch)
SIZE = ValueKind('a size such as "8GB"', _bytes, _bytes)
DURATION = ValueKind('a duration such as "5m"', _seconds, _seconds)
HOSTS = ValueKind("a list of names or addresses, or a file of them", _hosts, _hosts)
NAMES = ValueKind("a list of names", _listed, _listed)
COUNTS = ValueKind("a list of whole numbers such as 1,2,4", _counts_from_text, _counts)
SETTINGS = ValueKind("a table of keys and values", assignments, _settings, repeated=True)
SWEEP = ValueKind("a table of keys and lists", sweeps, _swept, repeated=True)
SLURM = ValueKind("a table of keys and values", _words_of_slurm, _settings_as_text, repeated=True)
SAVED = ValueKind("a file", lambda text, _: {"save": text}, lambda file, _: {"save": file})
WEIGHTS = ValueKind("a file", lambda text, _: {"weights": text}, lambda file, _: {"weights": file})
