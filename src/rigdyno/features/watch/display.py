"""The live view of a machine's meters: a line with a sparkline per channel, or in a pipe a line per reading."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from msgspec.structs import replace

from rigdyno.base.units import seconds_of_ns, show_number, show_percent
from rigdyno.report.plot import sparkline
from rigdyno.report.text import format_scaled
from rigdyno.schema.channel import Channel, Quantity

CHART_WIDTH = 30

NOT_YET = "no reading yet"

OWN = "worker"  # channels of the watching process itself, which aren't shown

_ORDER: tuple[Quantity, ...] = (
    "power", "energy", "utilisation", "memory", "clock", "temperature", "fan", "throttle",
)  # fmt: skip

_TITLES = {"utilisation": "usage", "energy": "power"}

_HIGHEST: dict[Quantity, float] = {"utilisation": 1.0}


def select_channels(channels: Sequence[Channel]) -> list[Channel]:
    """Return the channels to show, in order; a meter with power and energy is shown once."""
    counted = {channel.meter for channel in channels if channel.quantity == "power"}
    kept = [
        channel
        for channel in channels
        if channel.quantity in _ORDER
        and channel.device != OWN
        and not (channel.quantity == "energy" and channel.meter in counted)
    ]
    return sorted(kept, key=lambda channel: _ORDER.index(channel.quantity))


def _is_core(channel: Channel) -> bool:
    return channel.quantity == "utilisation" and channel.sensor == "host"


@dataclass
class _Course:
    """The last readings of one channel, or of the mean of several."""

    channel: Channel
    names: tuple[str, ...]
    values: deque[float] = field(default_factory=lambda: deque(maxlen=CHART_WIDTH))
    _last: tuple[int, float] | None = None

    def add(self, at_ns: int, value: float) -> None:
        self.values.append(self._rate(at_ns, value) if self.channel.kind == "counter" else value)

    def _rate(self, at_ns: int, value: float) -> float:
        """Return the rise of a counter per second."""
        last = self._last
        if math.isnan(value):
            return math.nan
        self._last = at_ns, value
        return math.nan if last is None or at_ns <= last[0] else (value - last[1]) / seconds_of_ns(at_ns - last[0])

    @property
    def newest(self) -> float:
        """Return the last known value: a slow sensor has one only now and then."""
        return next((value for value in reversed(self.values) if not math.isnan(value)), math.nan)

    @property
    def title(self) -> str:
        channel = self.channel
        return f"{_TITLES.get(channel.quantity, channel.quantity)} {channel.title}".strip()

    def text(self) -> str:
        value, channel = self.newest, self.channel
        if math.isnan(value):
            return "—"
        if channel.quantity == "utilisation":
            return show_percent(value)
        if channel.quantity == "memory":
            return format_scaled(value, "B")
        return f"{show_number(value)} {'W' if channel.kind == 'counter' else channel.unit}"


class MeterDisplay:
    """The readings of all meters as rows, lines and notes."""

    def __init__(self, channels: Sequence[Channel], absent: dict[str, str]) -> None:
        shown = select_channels(channels)
        cores = [channel for channel in shown if _is_core(channel)]
        self._all = {channel.name: index for index, channel in enumerate(channels)}
        self._courses = [_Course(channel, (channel.name,)) for channel in shown if channel not in cores[1:]]
        if cores:
            at = shown.index(cores[0])
            every = replace(cores[0], device=f"of {len(cores)} cores")
            self._courses[at] = _Course(every, tuple(channel.name for channel in cores))
        self._states = [channel for channel in channels if channel.quantity == "state"]
        self._absent = absent
        self._troubles: list[str] = []

    def add(self, at_ns: int, values: Sequence[float], states: Sequence[str]) -> None:
        for course in self._courses:
            course.add(at_ns, fmean(values[self._all[name]] for name in course.names))
        codes = {channel.sensor: values[self._all[channel.name]] for channel in self._states}
        troubles = {sensor: states[int(code)] for sensor, code in codes.items() if code}
        self._troubles = [
            f"{sensor}: {trouble}" for sensor, trouble in (troubles | self._silent_probes(troubles)).items()
        ]

    def _silent_probes(self, troubles: Container[str]) -> dict[str, str]:
        """Return the probes that have not delivered a first reading, except those that are in trouble anyway."""
        sensors = dict.fromkeys(course.channel.sensor for course in self._courses)
        heard = {course.channel.sensor for course in self._courses if not math.isnan(course.newest)}
        return {sensor: NOT_YET for sensor in sensors if sensor not in heard and sensor not in troubles}

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, sparkline and value of each channel that has a value."""
        return [
            (course.title, sparkline(course.values, _HIGHEST.get(course.channel.quantity)), course.text())
            for course in self._courses
            if not math.isnan(course.newest)
        ]

    def line(self, time: str) -> str:
        """Return one reading as text. A channel without a value is left out; a probe without any is named."""
        known = [course for course in self._courses if not math.isnan(course.newest)]
        parts = [f"{course.title} {course.text()}" for course in known] + self._troubles
        return f"{time} {'; '.join(parts) or 'nothing can be read'}"

    def notes(self) -> list[str]:
        """Return the probes in trouble, and the absent ones with how to add them."""
        return [*self._troubles, *(f"{name}: {why}" for name, why in self._absent.items())]
