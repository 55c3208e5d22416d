"""The live view of a machine's meters: one line a channel with a small chart, or one line a reading in a pipe."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from msgspec.structs import replace

from rigdyno.report.format_entry import scaled_text
from rigdyno.schema.channel import Channel, Quantity
from rigdyno.units import seconds_of_ns, show_number, show_percent

BARS = "▁▂▃▄▅▆▇█"
GAP = "·"  # a reading that isn't there is not a zero
CHART_WIDTH = 30
NOT_YET = "no reading yet"
OWN = "worker"  # of the process that watches, and of no interest
_ORDER: tuple[Quantity, ...] = (
    "power", "energy", "utilisation", "memory", "clock", "temperature", "fan", "throttle",
)  # fmt: skip
_TITLES = {"utilisation": "usage", "energy": "power"}
_HIGHEST: dict[Quantity, float] = {"utilisation": 1.0}


def chart(values: Sequence[float], highest: float | None = None) -> str:
    """From zero, so that its height means something."""
    known = [value for value in values if not math.isnan(value)]
    top = highest or max(known, default=0.0)
    return "".join(GAP if math.isnan(value) else _bar(value / top if top > 0 else 0.0) for value in values)


def _bar(share: float) -> str:
    return BARS[min(len(BARS) - 1, max(0, round(share * (len(BARS) - 1))))]


def shown_channels(channels: Sequence[Channel]) -> list[Channel]:
    """Those that a person watches; a power that is counted as well is shown once, and so are all cores."""
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
    """One channel over the last readings, or the mean of several."""

    channel: Channel
    names: tuple[str, ...]
    values: deque[float] = field(default_factory=lambda: deque(maxlen=CHART_WIDTH))
    _last: tuple[int, float] | None = None

    def add(self, at_ns: int, value: float) -> None:
        self.values.append(self._rate(at_ns, value) if self.channel.kind == "counter" else value)

    def _rate(self, at_ns: int, value: float) -> float:
        """Of a counter what it rose by a second."""
        last = self._last
        if math.isnan(value):
            return math.nan
        self._last = at_ns, value
        return math.nan if last is None or at_ns <= last[0] else (value - last[1]) / seconds_of_ns(at_ns - last[0])

    @property
    def newest(self) -> float:
        """The last one that is known: a slow sensor has a value now and then."""
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
            return scaled_text(value, "B")
        return f"{show_number(value)} {'W' if channel.kind == 'counter' else channel.unit}"


class Watched:
    """What is shown of the meters."""

    def __init__(self, channels: Sequence[Channel], absent: dict[str, str]) -> None:
        shown = shown_channels(channels)
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
        self._troubles = [f"{sensor}: {trouble}" for sensor, trouble in (troubles | self._awaited(troubles)).items()]

    def _awaited(self, troubles: Container[str]) -> dict[str, str]:
        """Return the probes that have not delivered a first reading, except those that are in trouble anyway."""
        sensors = dict.fromkeys(course.channel.sensor for course in self._courses)
        heard = {course.channel.sensor for course in self._courses if not math.isnan(course.newest)}
        return {sensor: NOT_YET for sensor in sensors if sensor not in heard and sensor not in troubles}

    def rows(self) -> list[tuple[str, str, str]]:
        """Of each channel that has a value its name, its chart and the value."""
        return [
            (course.title, chart(course.values, _HIGHEST.get(course.channel.quantity)), course.text())
            for course in self._courses
            if not math.isnan(course.newest)
        ]

    def line(self, time: str) -> str:
        """Return one reading as text. A channel without a value is left out; a probe without any is named."""
        known = [course for course in self._courses if not math.isnan(course.newest)]
        parts = [f"{course.title} {course.text()}" for course in known] + self._troubles
        return f"{time} {'; '.join(parts) or 'nothing can be read'}"

    def notes(self) -> list[str]:
        """Probes that are in trouble, and those that aren't here with what would change that."""
        return [*self._troubles, *(f"{name}: {why}" for name, why in self._absent.items())]
