"""Load of a Jetson's GPU and memory controller, and what the kernel's files lack, from the board's own tegrastats."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from rigdyno.clock import Clock, SystemClock
from rigdyno.contracts import Channel, Unavailable
from rigdyno.probes._child import LineReader
from rigdyno.probes._tegrastats_line import Line, parsed
from rigdyno.probes.ina3221 import Ina3221, rail_channels
from rigdyno.units import NS_PER_S

INTERVAL_MS = 500
FIRST_LINE_SECONDS = 3.0
_LOOK_SECONDS = 0.02


class Tegrastats:
    """GPU load, memory, clocks and temperatures of a Jetson; its rails where the kernel doesn't show them."""

    hints: ClassVar[Mapping[str, str]] = {}

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
        first = self._first_line()
        rails = first.rails_w if Ina3221(self._root).availability() is not None else {}
        channels = _channels(first, list(rails))
        self._names = [(channel.quantity, channel.rail or channel.device) for channel in channels]
        return channels

    def _first_line(self) -> Line:
        """What the board has, its first line tells. Raises TimeoutError where none comes."""
        assert self._reader is not None
        until_ns = self._clock.now_ns() + int(FIRST_LINE_SECONDS * NS_PER_S)
        while self._clock.now_ns() < until_ns:
            for text in self._reader.lines():
                if (line := parsed(text)).says_something:
                    return line
            if self._reader.code is not None:
                break
            self._clock.sleep(_LOOK_SECONDS)
        self.close()
        raise TimeoutError("tegrastats printed nothing that can be read; try it by hand")

    def read(self) -> Sequence[float]:
        """The newest line; NaN where none came since the last reading."""
        assert self._reader is not None
        lines = [line for text in self._reader.lines() if (line := parsed(text)).says_something]
        if not lines:
            if self._reader.code is not None:
                raise ChildProcessError(f"tegrastats ended with exit code {self._reader.code}")
            return [math.nan] * len(self._names)
        return [_value(lines[-1], quantity, name) for quantity, name in self._names]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _channels(line: Line, rails: Sequence[str]) -> list[Channel]:
    found = [Channel("tegra_memory_bytes", "B", "memory", device="board")] if line.memory_bytes is not None else []
    found += [Channel(f"tegra_{unit}_load", "share", "utilisation", device=unit) for unit in line.loads]
    found += [Channel(f"tegra_{unit}_mhz", "MHz", "clock", device=unit) for unit in line.clocks_mhz]
    found += [Channel(f"tegra_{name}_c", "C", "temperature", device="board", rail=name) for name in line.temperatures_c]
    found += rail_channels(rails, "tegrastats")
    return [
        replace(
            channel,
            scope="card" if channel.device == "gpu" else channel.scope,
            sensor="tegrastats",
            interval_seconds=INTERVAL_MS / 1000,
        )
        for channel in found
    ]


def _value(line: Line, quantity: str, name: str) -> float:
    if quantity == "memory":
        return math.nan if line.memory_bytes is None else line.memory_bytes
    by_name = {
        "utilisation": line.loads,
        "clock": line.clocks_mhz,
        "temperature": line.temperatures_c,
        "power": line.rails_w,
    }[quantity]
    return by_name.get(name, math.nan)
