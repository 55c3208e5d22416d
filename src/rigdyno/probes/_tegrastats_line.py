"""One line of tegrastats, in the formats of the JetPack versions 4 to 6; what it doesn't know it skips."""

from __future__ import annotations

import re
from typing import NamedTuple

_MEGABYTE = 2**20  # tegrastats divides by 1024
_OFF_C = -200.0  # a sensor whose unit is powered down says -256
_RAM = re.compile(r"(?:^|\s)RAM (\d+)/(\d+)MB")
_UNIT = re.compile(r"(?:^|\s)(GR3D_FREQ|GR3D|EMC_FREQ|EMC)\s+(?:(\d+)%)?(?:@(\d+|\[[\d,\s]*\]))?")
_TEMPERATURE = re.compile(r"(?:^|\s)([A-Za-z][\w.-]*)@(-?\d+(?:\.\d+)?)C(?=\s|$)")
_RAIL = re.compile(r"(?:^|\s)([A-Za-z][\w.+-]*) (-?\d+)(?:mW)?/(-?\d+)(?:mW)?(?=\s|$)")
_CONSTANT = ("pmic",)  # 100 C for ever
_UNITS = {"GR3D_FREQ": "gpu", "GR3D": "gpu", "EMC_FREQ": "emc", "EMC": "emc"}


class Line(NamedTuple):
    """Of each unit and sensor by its name; what a line doesn't tell is absent."""

    memory_bytes: float | None
    loads: dict[str, float]  # shares, of "gpu" and "emc"
    clocks_mhz: dict[str, float]
    temperatures_c: dict[str, float]
    rails_w: dict[str, float]  # now, not the average

    @property
    def says_something(self) -> bool:
        return self.memory_bytes is not None or any(self[1:])


def parsed(text: str) -> Line:
    ram = _RAM.search(text)
    units = {_UNITS[found[1]]: found for found in _UNIT.finditer(text)}
    return Line(
        memory_bytes=float(ram[1]) * _MEGABYTE if ram else None,
        loads={unit: float(found[2]) / 100 for unit, found in units.items() if found[2]},
        clocks_mhz={unit: clock for unit, found in units.items() if (clock := _clock(found[3])) is not None},
        temperatures_c={
            found[1]: value
            for found in _TEMPERATURE.finditer(text)
            if found[1].lower() not in _CONSTANT and (value := float(found[2])) > _OFF_C
        },
        rails_w={found[1]: float(found[2]) / 1000 for found in _RAIL.finditer(text) if found[1] != "NC"},
    )


def _clock(text: str | None) -> float | None:
    """Of a unit, or the mean over its parts."""
    numbers = [float(each) for each in re.findall(r"\d+", text or "")]
    return sum(numbers) / len(numbers) if numbers else None
