"""Reads temperatures, fans and power of PCs and servers from the kernel's hardware monitors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from rigdyno.base.clock import Clock, SystemClock
from rigdyno.base.linux import OpenFile, has_hypervisor_flag, parse_number, read_text
from rigdyno.base.units import NS_PER_S
from rigdyno.contracts import Channel, Probe, Unavailable
from rigdyno.schema.channel import Extent, Quantity, Scope

MONITORS = Path("sys/class/hwmon")

# Not read here: chips of other probes; drives, whose commands take milliseconds; radios; batteries.
OTHERS = re.compile(r"ina3221.*|nvme|drivetemp|iwlwifi.*|mt7\d+.*|BAT\d*|bat\d*|AC\d*|ucsi_.*")

CARDS = ("amdgpu", "i915", "xe", "nouveau")

SLOW_NS = 2 * NS_PER_S  # interval of temperatures and fans: reading a chip on a slow bus takes milliseconds

MOST_WATTS = 20_000.0

_INPUT = re.compile(r"(temp|fan)(\d+)_input|(power)(\d+)_(average|input)")

_QUANTITIES: Mapping[str, Quantity] = {"temp": "temperature", "fan": "fan", "power": "power"}

_UNITS = {"temp": ("C", 1e-3), "fan": ("1/min", 1.0), "power": ("W", 1e-6)}


class Sensor(NamedTuple):
    channel: Channel
    path: Path
    factor: float
    is_slow: bool


class Hwmon(Probe):
    """Temperatures, fans and power of the processor, the board, AMD and Intel GPUs, power supplies."""

    def __init__(self, clock: Clock | None = None, root: Path = Path("/")) -> None:
        self._clock: Clock = clock or SystemClock()
        self._root = root
        self._files: list[OpenFile] = []

    def availability(self) -> Unavailable | None:
        if any(read_text(sensor.path) for sensor in find_sensors(self._root)):
            return None
        if has_hypervisor_flag(self._root):
            return Unavailable("no hardware monitor here: a virtual machine has none", "measure on its host")
        return Unavailable("no hardware monitor here", "sudo sensors-detect, from the package lm-sensors")

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        self._sensors = list(find_sensors(self._root))
        self._files = [OpenFile(sensor.path) for sensor in self._sensors]
        self._values = [float("nan")] * len(self._sensors)
        self._slow_due_ns = self._clock.now_ns()
        return [sensor.channel for sensor in self._sensors]

    def read(self) -> Sequence[float]:
        now_ns = self._clock.now_ns()
        slow = now_ns >= self._slow_due_ns
        for index, (sensor, file) in enumerate(zip(self._sensors, self._files, strict=True)):
            if slow or not sensor.is_slow:
                self._values[index] = parse_number(file.read()) * sensor.factor
        if slow:
            self._slow_due_ns = now_ns + SLOW_NS
        return list(self._values)

    def close(self) -> None:
        for file in self._files:
            file.close()


def find_sensors(root: Path) -> Iterator[Sensor]:
    """Yield sensors with unique names: chips of the same name are numbered."""
    count: dict[str, int] = {}
    for folder in sorted((root / MONITORS).glob("hwmon*"), key=lambda path: (len(path.name), path.name)):
        name = read_text(folder / "name")
        if not name or OTHERS.fullmatch(name):
            continue
        index = count[name] = count.get(name, -1) + 1
        yield from _find_chip_sensors(folder, name, f"{name}{index}")


def _find_chip_sensors(folder: Path, name: str, device: str) -> Iterator[Sensor]:
    inputs = {found[0]: found for path in folder.iterdir() if (found := _INPUT.fullmatch(path.name))}
    for file in sorted(inputs):
        kind, digits = (inputs[file][1] or inputs[file][3]), (inputs[file][2] or inputs[file][4])
        if kind == "power" and file.endswith("_input") and f"power{digits}_average" in inputs:
            continue  # the same power as its average
        label = read_text(folder / f"{kind}{digits}_label")
        yield _make_sensor(folder / file, name, device, kind, label or f"{kind}{digits}")


def _make_sensor(path: Path, name: str, device: str, kind: str, label: str) -> Sensor:
    unit, factor = _UNITS[kind]
    plain = re.sub(r"\W+", "_", label).strip("_")
    channel = Channel(
        name=f"hwmon_{device}_{path.name.partition('_')[0]}_{plain}",
        unit=unit,
        quantity=_QUANTITIES[kind],
        device=device,
        rail=label,
        scope="card" if name in CARDS else None,
        sensor="hwmon",
    )
    if kind == "power":
        scope, extent = _classify_power(name, label)
        channel = replace(channel, scope=scope, extent=extent, most=MOST_WATTS)
    return Sensor(channel, path, factor, kind != "power")


def _classify_power(name: str, label: str) -> tuple[Scope, Extent]:
    """Return what the power covers: "whole" only for known chips; the power of any other chip is part of no sum."""
    if name in CARDS:
        return "card", "whole"  # 'PPT' is a GPU's only power
    if name == "power_meter":  # ACPI: the machine's input
        return "wall", "whole"
    if name == "corsairpsu":
        return "wall", "whole" if label == "power total" else "part"
    return "board", "part"
