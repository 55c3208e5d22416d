"""Temperatures, fans and power of ordinary PCs, from the kernel's hardware monitors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from msgspec.structs import replace

from rigdyno.clock import Clock, SystemClock
from rigdyno.contracts import Channel, Unavailable
from rigdyno.probes._files import OpenFile, number, text_in
from rigdyno.schema.channel import Extent, Quantity, Scope
from rigdyno.units import NS_PER_S

MONITORS = Path("sys/class/hwmon")
# Read by other probes; a drive is asked by a command that takes milliseconds; a radio; a battery is no meter.
OTHERS = re.compile(r"ina3221.*|nvme|drivetemp|iwlwifi.*|mt7\d+.*|BAT\d*|bat\d*|AC\d*|ucsi_.*")
CARDS = ("amdgpu", "i915", "xe", "nouveau")
SLOW_NS = 2 * NS_PER_S  # temperatures and fans; reading a chip on a slow bus costs milliseconds
MOST_WATTS = 20_000.0
_INPUT = re.compile(r"(temp|fan)(\d+)_input|(power)(\d+)_(average|input)")
_QUANTITIES: Mapping[str, Quantity] = {"temp": "temperature", "fan": "fan", "power": "power"}
_UNITS = {"temp": ("C", 1e-3), "fan": ("1/min", 1.0), "power": ("W", 1e-6)}


class Sensor(NamedTuple):
    channel: Channel
    path: Path
    factor: float
    is_slow: bool


class Hwmon:
    """Temperatures, fans and power of the processor, the board, AMD and Intel cards, power supplies."""

    hints: ClassVar[Mapping[str, str]] = {}

    def __init__(self, clock: Clock | None = None, root: Path = Path("/")) -> None:
        self._clock: Clock = clock or SystemClock()
        self._root = root
        self._files: list[OpenFile] = []

    def availability(self) -> Unavailable | None:
        if any(text_in(sensor.path) for sensor in sensors_of(self._root)):
            return None
        flags = text_in(self._root / "proc/cpuinfo").partition("flags")[2].partition("\n")[0].split()
        if "hypervisor" in flags:
            return Unavailable("no hardware monitor here: a virtual machine has none", "measure on its host")
        return Unavailable("no hardware monitor here", "sudo sensors-detect, of the package lm-sensors")

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        self._sensors = list(sensors_of(self._root))
        self._files = [OpenFile(sensor.path) for sensor in self._sensors]
        self._values = [float("nan")] * len(self._sensors)
        self._slow_due_ns = self._clock.now_ns()
        return [sensor.channel for sensor in self._sensors]

    def read(self) -> Sequence[float]:
        now_ns = self._clock.now_ns()
        slow = now_ns >= self._slow_due_ns
        for index, (sensor, file) in enumerate(zip(self._sensors, self._files, strict=True)):
            if slow or not sensor.is_slow:
                self._values[index] = number(file.read()) * sensor.factor
        if slow:
            self._slow_due_ns = now_ns + SLOW_NS
        return list(self._values)

    def close(self) -> None:
        for file in self._files:
            file.close()


def sensors_of(root: Path) -> Iterator[Sensor]:
    """Each with a name of its own: chips of the same name are numbered."""
    count: dict[str, int] = {}
    for folder in sorted((root / MONITORS).glob("hwmon*"), key=lambda path: (len(path.name), path.name)):
        name = text_in(folder / "name")
        if not name or OTHERS.fullmatch(name):
            continue
        number_of = count[name] = count.get(name, -1) + 1
        yield from _of_chip(folder, name, f"{name}{number_of}")


def _of_chip(folder: Path, name: str, device: str) -> Iterator[Sensor]:
    inputs = {found[0]: found for path in folder.iterdir() if (found := _INPUT.fullmatch(path.name))}
    for file in sorted(inputs):
        kind, digits = (inputs[file][1] or inputs[file][3]), (inputs[file][2] or inputs[file][4])
        if kind == "power" and file.endswith("_input") and f"power{digits}_average" in inputs:
            continue  # the same, read twice
        label = text_in(folder / f"{kind}{digits}_label")
        yield _sensor(folder / file, name, device, kind, label or f"{kind}{digits}")


def _sensor(path: Path, name: str, device: str, kind: str, label: str) -> Sensor:
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
        scope, extent = _of_power(name, label)
        channel = replace(channel, scope=scope, extent=extent, most=MOST_WATTS)
    return Sensor(channel, path, factor, kind != "power")


def _of_power(name: str, label: str) -> tuple[Scope, Extent]:
    """What is known to be all of something; the power of any other chip stands by itself, in no sum."""
    if name in CARDS:
        return "card", "whole"  # 'PPT' of a card is the one that it has
    if name == "power_meter":  # ACPI's: the machine's own input
        return "wall", "whole"
    if name == "corsairpsu":
        return "wall", "whole" if label == "power total" else "part"
    return "board", "part"
