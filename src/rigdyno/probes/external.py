"""Reads watts from any command that prints them: a wall meter, IPMI, a smart plug, a device's own tool.

Each command is one line of the configuration:

    # ~/.config/rigdyno/config.toml
    meters.plug = "plug-watts --follow"
    meters.psu = { command = "ipmi-power", json = "power.watts", every = "2s", scope = "wall" }

A command that keeps printing is kept open; a command that ends is run again.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rigdyno.base.clock import Clock, SystemClock
from rigdyno.base.errors import BadValue
from rigdyno.base.processes import LineReader
from rigdyno.base.toml import config_file, find_line, read_toml
from rigdyno.base.units import NS_PER_S, seconds_from
from rigdyno.contracts import Channel, Probe, Unavailable
from rigdyno.schema.channel import Scope

TABLE = "meters"

MOST_LINES = 1000  # longest JSON document

MOST_WAIT_SECONDS = 60.0  # longest wait before a failing command is tried again

_WATTS = re.compile(r"(?<![\w.])([-+]?(?:\d+(?:[.,]\d+)?|[.,]\d+)(?:[eE][-+]?\d+)?)\s*(mW|kW|[Ww]atts?|W)?(?![\w])")

MOST_WATTS_PRINTED = 1e300  # JSON allows integers of any size, which may overflow a float

_FACTORS = {"mW": 1e-3, "kW": 1e3}


class ExternalMeter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the configuration."""

    command: str
    json: str = ""  # path of the watts in a JSON document: "power.0.value"
    every: str = "1s"  # time before a command that ended is run again
    scope: Scope = "wall"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)


class External(Probe):
    """Watts that a command of yours prints: a wall meter, IPMI, a smart plug."""

    def __init__(self, clock: Clock | None = None, config: Path | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._config = config
        self._commands: list[FollowedCommand] = []

    def availability(self) -> Unavailable | None:
        try:
            meters = read_meter_config(self._path())
        except BadValue as error:
            return Unavailable(str(error), "docs/energy.md shows how a meter is written")
        if not meters:
            line = f'{TABLE}.plug = "COMMAND THAT PRINTS WATTS"'
            return Unavailable("no command that prints watts is configured", f"add to {self._display_path()}: {line}")
        missing = [name for name, meter in meters.items() if shutil.which(meter.words[0]) is None]
        if len(missing) < len(meters):
            return None
        return Unavailable(f"there is no command '{meters[missing[0]].words[0]}'", f"correct {self._display_path()}")

    def _display_path(self) -> str:
        """Return the path without the user's name."""
        if self._config is not None:
            return str(self._config)
        base = "$XDG_CONFIG_HOME" if os.environ.get("XDG_CONFIG_HOME") else "~/.config"
        return f"{base}/rigdyno/config.toml"

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        meters = read_meter_config(self._path())
        self._commands = [FollowedCommand(meter, self._clock) for meter in meters.values()]
        return [_make_channel(name, meter) for name, meter in meters.items()]

    def read(self) -> Sequence[float]:
        return [command.read_watts() for command in self._commands]

    def close(self) -> None:
        for command in self._commands:
            command.close()

    def _path(self) -> Path | None:
        try:
            return self._config or config_file()
        except RuntimeError:  # a container's user may have no home
            return None


class FollowedCommand:
    """One command, kept open or run again and again. Reading never waits for it."""

    def __init__(self, meter: ExternalMeter, clock: Clock) -> None:
        self._meter, self._clock = meter, clock
        self._every = self._wait = seconds_from(meter.every)
        self._reader: LineReader | None = None
        self._unread: list[str] = []  # lines since the last value
        self._due_ns = clock.now_ns()

    def read_watts(self) -> float:
        """Return the newest value since the last reading, or NaN if there is none."""
        if self._reader is None:
            self._start()
            return math.nan
        code = self._reader.code  # before reading the lines, so that none printed before the end is missed
        lines = self._reader.read_lines()
        values = [watts for text in lines if (watts := parse_watts(text, self._meter.json)) is not None]
        if code is not None and not values and self._meter.json:  # a document of many lines
            whole = parse_watts("\n".join((*self._unread, *lines)), self._meter.json)
            values = [] if whole is None else [whole]
        self._unread = [] if values else [*self._unread, *lines][-MOST_LINES:]
        if values:
            self._wait = self._every
        if code is not None:
            self._end(failed=code != 0 and not values)
        return values[-1] if values else math.nan

    def _start(self) -> None:
        if self._clock.now_ns() < self._due_ns:
            return
        try:
            self._reader = LineReader(self._meter.words)
        except OSError:
            self._schedule(failed=True)

    def _end(self, *, failed: bool) -> None:
        self.close()
        self._unread = []
        self._schedule(failed=failed)

    def _schedule(self, *, failed: bool) -> None:
        """Set the time of the next start. A failing command is tried less and less often: a broken power meter must not
        slow down the measurement."""
        if failed:
            self._wait = min(2 * self._wait, MOST_WAIT_SECONDS)
        self._due_ns = self._clock.now_ns() + int(self._wait * NS_PER_S)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None


def parse_watts(text: str, path: str = "") -> float | None:
    """Return the first number of a line, or the number at a path of a JSON document; None if there is none."""
    if path:
        return _parse_json_watts(text, path)
    match = _WATTS.search(text)
    if match is None:
        return None
    return float(match[1].replace(",", ".")) * _FACTORS.get(match[2] or "", 1.0)


def _parse_json_watts(text: str, path: str) -> float | None:
    try:
        value: Any = json.loads(text)
        for step in path.split("."):
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if isinstance(value, str):
        return parse_watts(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < MOST_WATTS_PRINTED else math.inf  # tagged as nonsense later


def read_meter_config(path: Path | None) -> dict[str, ExternalMeter]:
    """Return the configured meters by name. Raises BadValue with the line."""
    if path is None or not path.is_file():
        return {}
    table = read_toml(path).get(TABLE, {})
    if not isinstance(table, dict):
        raise BadValue(f'{path}:{find_line(path, TABLE)}: a meter needs a name: {TABLE}.plug = "COMMAND"')
    return {name: _parse_meter(name, value, path) for name, value in table.items()}


def _parse_meter(name: str, value: Any, path: Path) -> ExternalMeter:
    where = f"{path}:{find_line(path, name, TABLE)}: {TABLE}.{name}"
    try:
        meter = msgspec.convert({"command": value} if isinstance(value, str) else value, ExternalMeter)
        seconds_from(meter.every)
        if not meter.words:
            raise BadValue("the command is empty")
    except (msgspec.ValidationError, BadValue, ValueError) as error:
        raise BadValue(f"{where}: {error}") from None
    return meter


def _make_channel(name: str, meter: ExternalMeter) -> Channel:
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
