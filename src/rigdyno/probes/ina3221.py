"""Reads the power rails of a Jetson board from the kernel's files of its INA3221 chips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rigdyno.base.linux import OpenFile, parse_number, read_text
from rigdyno.contracts import Channel, Probe, Unavailable

DRIVERS = Path("sys/bus/i2c/drivers")

INPUTS = ("POM_5V_IN", "VDD_IN")  # names of the boards' input; sources disagree on whether VIN_SYS_5V0 is one

NO_RAIL = ("", "NC", "sum of shunt voltages")

MOST_WATTS = 500.0

MILLI, MICRO = 1e-3, 1e-6


class Rail(NamedTuple):
    name: str
    power: Path | None  # mW (JetPack 4)
    volts: Path | None = None  # mV (JetPack 5 and later)
    amperes: Path | None = None  # mA (JetPack 5 and later)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.power, self.volts, self.amperes) if path is not None)


class _Watts:
    def __init__(self, rail: Rail) -> None:
        self._files = [OpenFile(path) for path in rail.paths]

    def read(self) -> float:
        values = [parse_number(file.read()) for file in self._files]
        return values[0] * MILLI if len(values) == 1 else values[0] * values[1] * MICRO

    def close(self) -> None:
        for file in self._files:
            file.close()


class Ina3221(Probe):
    """Power of a Jetson board by rail, and at its input if the board measures it."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._meters: list[_Watts] = []

    def availability(self) -> Unavailable | None:
        rails = list(find_rails(self._root))
        if not rails:
            return Unavailable("no INA3221 power monitor here: only Jetson boards have one", self._fix())
        if any(not math.isnan(_read_once(rail)) for rail in rails):
            return None
        where = " ".join(f"/{path.relative_to(self._root)}" for path in rails[0].paths)
        return Unavailable("the rails can't be read", f"sudo chmod a+r {where}, and the same for the other rails")

    def _fix(self) -> str | None:
        is_jetson = (self._root / "etc/nv_tegra_release").exists()
        return "sudo modprobe ina3221" if is_jetson else None

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        rails = list(find_rails(self._root))
        self._meters = [_Watts(rail) for rail in rails]
        return make_rail_channels([rail.name for rail in rails], "ina3221")

    def read(self) -> Sequence[float]:
        return [meter.read() for meter in self._meters]

    def close(self) -> None:
        for meter in self._meters:
            meter.close()


def find_rails(root: Path) -> Iterator[Rail]:
    """Yield each rail once, in the order of the chips: first JetPack 4's layout, then that of JetPack 5 and later."""
    seen: set[str] = set()
    for rail in (*_find_iio_rails(root / DRIVERS), *_find_hwmon_rails(root / DRIVERS)):
        if rail.name not in NO_RAIL and rail.name not in seen:
            seen.add(rail.name)
            yield rail


def _find_iio_rails(drivers: Path) -> Iterator[Rail]:
    for label in sorted(drivers.glob("ina3221x/*/iio*device*/rail_name_*")):
        power = label.with_name(f"in_power{label.name.rpartition('_')[2]}_input")
        if power.exists():
            yield Rail(read_text(label), power)


def _find_hwmon_rails(drivers: Path) -> Iterator[Rail]:
    for label in sorted(drivers.glob("ina3221/*/hwmon/hwmon*/in*_label")):
        digits = label.name.removeprefix("in").removesuffix("_label")
        volts, amperes = (label.with_name(f"{kind}{digits}_input") for kind in ("in", "curr"))
        if volts.exists() and amperes.exists():  # a sum of shunt voltages has no current
            yield Rail(read_text(label), None, volts, amperes)


def _read_once(rail: Rail) -> float:
    meter = _Watts(rail)
    try:
        return meter.read()
    finally:
        meter.close()


def make_rail_channels(names: Sequence[str], sensor: str) -> list[Channel]:
    """Return a channel for each rail. If the board measures its input, that is the whole, and the other rails are
    parts of it."""
    has_input = any(name in INPUTS for name in names)
    return [
        Channel(
            name=f"rail_{name}_w",
            unit="W",
            quantity="power",
            device="board",
            rail=name,
            scope="board",
            extent="whole" if name in INPUTS else "part" if has_input else "rail",
            sensor=sensor,
            most=MOST_WATTS,
        )
        for name in names
    ]
