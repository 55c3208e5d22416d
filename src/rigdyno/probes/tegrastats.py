"""Reads a Jetson's tegrastats: load of GPU and memory controller, and what the kernel's files don't have.

The parser knows the formats of JetPack 4 to 6, and skips what it doesn't know.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from rigdyno.base.clock import Clock, SystemClock
from rigdyno.base.processes import LineReader
from rigdyno.base.units import NS_PER_S
from rigdyno.contracts import Channel, Probe, Unavailable
from rigdyno.probes.ina3221 import Ina3221, make_rail_channels

INTERVAL_MS = 500

FIRST_LINE_SECONDS = 3.0

_POLL_SECONDS = 0.02

_MEGABYTE = 2**20  # tegrastats divides by 1024

_OFF_C = -200.0  # a sensor whose unit is powered down reports -256

_RAM = re.compile(r"(?:^|\s)RAM (\d+)/(\d+)MB")

_UNIT = re.compile(r"(?:^|\s)(GR3D_FREQ|GR3D|EMC_FREQ|EMC)\s+(?:(\d+)%)?(?:@(\d+|\[[\d,\s]*\]))?")

_TEMPERATURE = re.compile(r"(?:^|\s)([A-Za-z][\w.-]*)@(-?\d+(?:\.\d+)?)C(?=\s|$)")

_RAIL = re.compile(r"(?:^|\s)([A-Za-z][\w.+-]*) (-?\d+)(?:mW)?/(-?\d+)(?:mW)?(?=\s|$)")

_CONSTANT = ("pmic",)  # always 100 C

_UNITS = {"GR3D_FREQ": "gpu", "GR3D": "gpu", "EMC_FREQ": "emc", "EMC": "emc"}


class Tegrastats(Probe):
    """GPU load, memory, clocks and temperatures of a Jetson; its rails if the kernel has no files for them."""

    def __init__(self, clock: Clock | None = None, root: Path = Path("/"), command: Sequence[str] = ()) -> None:
        self._clock: Clock = clock or SystemClock()
        self._root, self._command = root, tuple(command)
        self._reader: LineReader | None = None

    def availability(self) -> Unavailable | None:
        if self._command or shutil.which("tegrastats") is not None:
            return None
        if (self._root / "etc/nv_tegra_release").exists():
            return Unavailable("this Jetson has no tegrastats in its path", "sudo apt install nvidia-l4t-tools")
        return Unavailable("no tegrastats here: only Jetson boards have it")

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        self._reader = LineReader(self._command or ("tegrastats", "--interval", str(INTERVAL_MS)))
        first = self._read_first_line()
        rails = first.rails_w if Ina3221(self._root).availability() is not None else {}
        channels = _make_channels(first, list(rails))
        self._names = [(channel.quantity, channel.rail or channel.device) for channel in channels]
        return channels

    def _read_first_line(self) -> TegrastatsReading:
        """Return the first line, which shows what the board has. Raises TimeoutError if none comes."""
        assert self._reader is not None
        until_ns = self._clock.now_ns() + int(FIRST_LINE_SECONDS * NS_PER_S)
        while self._clock.now_ns() < until_ns:
            for text in self._reader.read_lines():
                if (line := parse_tegrastats(text)).has_values:
                    return line
            if self._reader.code is not None:
                break
            self._clock.sleep(_POLL_SECONDS)
        self.close()
        raise TimeoutError("tegrastats printed nothing readable; try it by hand")

    def read(self) -> Sequence[float]:
        """Return the values of the newest line, or NaN if none came since the last reading."""
        assert self._reader is not None
        lines = [line for text in self._reader.read_lines() if (line := parse_tegrastats(text)).has_values]
        if not lines:
            if self._reader.code is not None:
                raise ChildProcessError(f"tegrastats ended with exit code {self._reader.code}")
            return [math.nan] * len(self._names)
        return [_find_value(lines[-1], quantity, name) for quantity, name in self._names]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class TegrastatsReading(NamedTuple):
    """One line of tegrastats, by unit and sensor; values that the line doesn't have are absent."""

    memory_bytes: float | None
    loads: dict[str, float]  # load of "gpu" and "emc" as a share
    clocks_mhz: dict[str, float]
    temperatures_c: dict[str, float]
    rails_w: dict[str, float]  # current power, not the average

    @property
    def has_values(self) -> bool:
        return self.memory_bytes is not None or any(self[1:])


def parse_tegrastats(text: str) -> TegrastatsReading:
    ram = _RAM.search(text)
    units = {_UNITS[found[1]]: found for found in _UNIT.finditer(text)}
    return TegrastatsReading(
        memory_bytes=float(ram[1]) * _MEGABYTE if ram else None,
        loads={unit: float(found[2]) / 100 for unit, found in units.items() if found[2]},
        clocks_mhz={unit: clock for unit, found in units.items() if (clock := _parse_clock(found[3])) is not None},
        temperatures_c={
            found[1]: value
            for found in _TEMPERATURE.finditer(text)
            if found[1].lower() not in _CONSTANT and (value := float(found[2])) > _OFF_C
        },
        rails_w={found[1]: float(found[2]) / 1000 for found in _RAIL.finditer(text) if found[1] != "NC"},
    )


def _parse_clock(text: str | None) -> float | None:
    """Return the clock of a unit, or the mean over its parts."""
    numbers = [float(each) for each in re.findall(r"\d+", text or "")]
    return sum(numbers) / len(numbers) if numbers else None


def _make_channels(line: TegrastatsReading, rails: Sequence[str]) -> list[Channel]:
    channels = [Channel("tegra_memory_bytes", "B", "memory", device="board")] if line.memory_bytes is not None else []
    channels += [Channel(f"tegra_{unit}_load", "share", "utilisation", device=unit) for unit in line.loads]
    channels += [Channel(f"tegra_{unit}_mhz", "MHz", "clock", device=unit) for unit in line.clocks_mhz]
    channels += [
        Channel(f"tegra_{name}_c", "C", "temperature", device="board", rail=name) for name in line.temperatures_c
    ]
    channels += make_rail_channels(rails, "tegrastats")
    return [
        replace(
            channel,
            scope="card" if channel.device == "gpu" else channel.scope,
            sensor="tegrastats",
            interval_seconds=INTERVAL_MS / 1000,
        )
        for channel in channels
    ]


def _find_value(line: TegrastatsReading, quantity: str, name: str) -> float:
    if quantity == "memory":
        return math.nan if line.memory_bytes is None else line.memory_bytes
    by_name = {
        "utilisation": line.loads,
        "clock": line.clocks_mhz,
        "temperature": line.temperatures_c,
        "power": line.rails_w,
    }[quantity]
    return by_name.get(name, math.nan)
