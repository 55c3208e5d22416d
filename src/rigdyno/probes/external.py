"""Any command that prints watts: a wall meter, IPMI, a smart plug, a card's own tool; one line of configuration each.

    # ~/.config/rigdyno/config.toml
    meters.plug = "plug-watts --follow"
    meters.psu = { command = "ipmi-power", json = "power.watts", every = "2s", scope = "wall" }

A command that goes on printing is kept open; one that ends is run again.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from rigdyno.clock import Clock, SystemClock
from rigdyno.contracts import Channel, Unavailable
from rigdyno.errors import BadValue
from rigdyno.probes._child import LineReader
from rigdyno.schema.channel import Scope
from rigdyno.toml import config_file, line_of, read_toml
from rigdyno.units import NS_PER_S, seconds_from

TABLE = "meters"
MOST_LINES = 1000  # of a JSON document
MOST_WAIT_SECONDS = 60.0  # between two tries of a command that fails
_WATTS = re.compile(r"(?<![\w.])([-+]?(?:\d+(?:[.,]\d+)?|[.,]\d+)(?:[eE][-+]?\d+)?)\s*(mW|kW|[Ww]atts?|W)?(?![\w])")
MOST_WATTS_PRINTED = 1e300  # a whole number of any size is JSON
_FACTORS = {"mW": 1e-3, "kW": 1e3}


class Meter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the configuration."""

    command: str
    json: str = ""  # where in a JSON line the watts are: "power.0.value"
    every: str = "1s"  # how long to wait before a command that ended is run again
    scope: Scope = "wall"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)


class External:
    """Watts that a command of yours prints: a wall meter, IPMI, a smart plug."""

    hints: ClassVar[Mapping[str, str]] = {}

    def __init__(self, clock: Clock | None = None, config: Path | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._config = config
        self._followed: list[Followed] = []

    def availability(self) -> Unavailable | None:
        try:
            meters = configured(self._path())
        except BadValue as error:
            return Unavailable(str(error), "docs/energy.md shows how a meter is written")
        if not meters:
            line = f'{TABLE}.plug = "COMMAND THAT PRINTS WATTS"'
            return Unavailable("no command that prints watts is configured", f"add to {self._shown_path()}: {line}")
        missing = [name for name, meter in meters.items() if shutil.which(meter.words[0]) is None]
        if len(missing) < len(meters):
            return None
        return Unavailable(f"there is no command '{meters[missing[0]].words[0]}'", f"correct {self._shown_path()}")

    def _shown_path(self) -> str:
        """As a person would write it, whoever that is."""
        if self._config is not None:
            return str(self._config)
        base = "$XDG_CONFIG_HOME" if os.environ.get("XDG_CONFIG_HOME") else "~/.config"
        return f"{base}/rigdyno/config.toml"

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        meters = configured(self._path())
        self._followed = [Followed(meter, self._clock) for meter in meters.values()]
        return [_channel(name, meter) for name, meter in meters.items()]

    def read(self) -> Sequence[float]:
        return [each.watts() for each in self._followed]

    def close(self) -> None:
        for each in self._followed:
            each.close()

    def _path(self) -> Path | None:
        try:
            return self._config or config_file()
        except RuntimeError:  # a container's user may have no home
            return None


class Followed:
    """One command, kept open or run again and again; never waited for."""

    def __init__(self, meter: Meter, clock: Clock) -> None:
        self._meter, self._clock = meter, clock
        self._every = self._wait = seconds_from(meter.every)
        self._reader: LineReader | None = None
        self._unread: list[str] = []  # lines without a reading so far
        self._due_ns = clock.now_ns()

    def watts(self) -> float:
        """The newest that it printed since the last reading; NaN where it printed none."""
        if self._reader is None:
            self._start()
            return math.nan
        code = self._reader.code  # before the lines: what it printed last is read below
        lines = self._reader.lines()
        found = [watts for text in lines if (watts := watts_in(text, self._meter.json)) is not None]
        if code is not None and not found and self._meter.json:  # a document of many lines
            whole = watts_in("\n".join((*self._unread, *lines)), self._meter.json)
            found = [] if whole is None else [whole]
        self._unread = [] if found else [*self._unread, *lines][-MOST_LINES:]
        if found:
            self._wait = self._every
        if code is not None:
            self._end(failed=code != 0 and not found)
        return found[-1] if found else math.nan

    def _start(self) -> None:
        if self._clock.now_ns() < self._due_ns:
            return
        try:
            self._reader = LineReader(self._meter.words)
        except OSError:
            self._later(failed=True)

    def _end(self, *, failed: bool) -> None:
        self.close()
        self._unread = []
        self._later(failed=failed)

    def _later(self, *, failed: bool) -> None:
        """A command that fails is tried ever more rarely: a broken meter must not cost what it is to measure."""
        if failed:
            self._wait = min(2 * self._wait, MOST_WAIT_SECONDS)
        self._due_ns = self._clock.now_ns() + int(self._wait * NS_PER_S)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None


def watts_in(text: str, path: str = "") -> float | None:
    """The first number of a line, or the one at a path of a JSON document; None: there is none."""
    if path:
        return _at_path(text, path)
    found = _WATTS.search(text)
    if found is None:
        return None
    return float(found[1].replace(",", ".")) * _FACTORS.get(found[2] or "", 1.0)


def _at_path(text: str, path: str) -> float | None:
    try:
        value: Any = json.loads(text)
        for step in path.split("."):
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if isinstance(value, str):
        return watts_in(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < MOST_WATTS_PRINTED else math.inf  # nonsense, and tagged as such


def configured(path: Path | None) -> dict[str, Meter]:
    """By name. Raises BadValue with the line."""
    if path is None or not path.is_file():
        return {}
    table = read_toml(path).get(TABLE, {})
    if not isinstance(table, dict):
        raise BadValue(f'{path}:{line_of(path, TABLE)}: a meter has a name: {TABLE}.plug = "COMMAND"')
    return {name: _meter(name, value, path) for name, value in table.items()}


def _meter(name: str, value: Any, path: Path) -> Meter:
    where = f"{path}:{line_of(path, name, TABLE)}: {TABLE}.{name}"
    try:
        meter = msgspec.convert({"command": value} if isinstance(value, str) else value, Meter)
        seconds_from(meter.every)
        if not meter.words:
            raise BadValue("the command is empty")
    except (msgspec.ValidationError, BadValue, ValueError) as error:
        raise BadValue(f"{where}: {error}") from None
    return meter


def _channel(name: str, meter: Meter) -> Channel:
    plain = re.sub(r"\W+", "_", name)
    return Channel(
        name=f"external_{plain}_w",
        unit="W",
        quantity="power",
        device="wall" if meter.scope == "wall" else name,
        rail=name if meter.scope in ("wall", "board") else "",
        scope=meter.scope,
        extent="whole",
        interval_seconds=seconds_from(meter.every),
        sensor="external",
    )
