"""All probes of a machine: one that hangs, throws, disappears or says nonsense is tagged, and costs nobody else a
reading."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rigdyno import catalogue
from rigdyno.clock import Clock
from rigdyno.contracts import Channel, Probe, Unavailable
from rigdyno.errors import CatalogueError
from rigdyno.probes._rounds import Rounds
from rigdyno.schema.channel import STATES, bounds_of, measures_energy, most_watts
from rigdyno.threads import Answer, Worker, trouble_of
from rigdyno.units import seconds_of_ns

OPEN_SECONDS = 5.0  # a driver that has to be loaded takes seconds
READ_SECONDS = 0.45  # less than the time between two readings; on a full machine a thread waits for its turn too
CLOSE_SECONDS = 3.0
LEAST_SECONDS = 0.01  # between two readings of a counter: what it was renewed by may be of longer ago
GONE_SECONDS = 5.0  # without a single value, beyond what the sensor itself takes

FINE, BLOCKED, FAILED, NONSENSE, GONE = range(len(STATES))

Pids = Callable[[], Sequence[int]]


class Opened(NamedTuple):
    name: str
    probe: Probe
    worker: Worker  # that opened it, and closes it: what a probe starts may end with the thread that started it
    channels: tuple[Channel, ...]
    state: Channel


class Meters:
    """What can be read here, opened. `channels` are those of all probes, and the state of each probe."""

    def __init__(self, probes: Mapping[str, Probe], pids: Pids, clock: Clock) -> None:
        self._clock = clock
        self.absent: dict[str, str] = {}  # by probe: why, and what would change that
        self._opened = self._open(probes, pids)
        self.channels = tuple(channel for each in self._opened for channel in (*each.channels, each.state))
        self._rounds = Rounds([each.name for each in self._opened])
        self._senses = {channel.name: _Sense(channel) for channel in self.channels}
        self._heard_ns = {each.name: clock.now_ns() for each in self._opened}

    def read(self) -> list[float]:
        """In the order of the channels; NaN for what wasn't read."""
        now_ns = self._clock.now_ns()
        answers = self._rounds.read({each.name: each.probe.read for each in self._opened}, READ_SECONDS)
        return [value for each in self._opened for value in self._values(each, answers.get(each.name), now_ns)]

    def _values(self, each: Opened, answer: Answer | None, now_ns: int) -> list[float]:
        missing = [math.nan] * len(each.channels)
        if answer is None:
            return [*missing, BLOCKED]
        values = _as_numbers(answer, len(each.channels))
        if values is None:
            return [*missing, FAILED]
        sound = [self._senses[c.name].checked(value, now_ns) for c, value in zip(each.channels, values, strict=True)]
        return [*sound, self._state(each, values, sound, now_ns)]

    def _state(self, each: Opened, raw: Sequence[float], sound: Sequence[float], now_ns: int) -> float:
        if any(math.isnan(after) and not math.isnan(before) for before, after in zip(raw, sound, strict=True)):
            return NONSENSE
        if any(not math.isnan(value) for value in sound):
            self._heard_ns[each.name] = now_ns
            return FINE
        slowest = max((channel.interval_seconds or 0.0 for channel in each.channels), default=0.0)
        silent = seconds_of_ns(now_ns - self._heard_ns[each.name])
        return GONE if each.channels and silent > GONE_SECONDS + 5 * slowest else FINE

    def close(self) -> None:
        asked = [each for each in self._opened if not self._rounds.is_hanging(each.name)]
        for each in asked:
            each.worker.ask(each.probe.close)
        for each in asked:
            each.worker.answer(CLOSE_SECONDS)

    def _open(self, probes: Mapping[str, Probe], pids: Pids) -> list[Opened]:
        """All at the same time: the slowest one decides."""
        workers = {name: Worker(f"probe {name}") for name in probes}
        for name, probe in probes.items():
            workers[name].ask(lambda probe=probe: probe.availability() or list(probe.open(pids)))  # type: ignore[misc]
        opened: list[Opened] = []
        taken: set[str] = set()
        for name, probe in probes.items():
            answer = workers[name].answer(OPEN_SECONDS)
            channels = self._channels(name, answer, taken)
            if channels is not None:
                opened.append(Opened(name, probe, workers[name], channels, _state_channel(name)))
        return opened

    def _channels(self, name: str, answer: Answer | None, taken: set[str]) -> tuple[Channel, ...] | None:
        trouble = trouble_of(answer, OPEN_SECONDS)
        if answer is None or trouble is not None:
            self.absent[name] = _without_home(trouble or "")
        elif isinstance(answer.value, Unavailable):
            self.absent[name] = _without_home(_why(answer.value))
        else:
            return tuple(_unlike(channel, name, taken) for channel in answer.value)
        return None


def installed(complain: Callable[[str], None]) -> dict[str, Probe]:
    """By name; a broken one of some package costs nothing but its own readings."""
    found: dict[str, Probe] = {}
    for name in catalogue.names("probe"):
        try:
            found[name] = catalogue.load("probe", name)()
        except CatalogueError as error:
            complain(str(error))
    return found


def reads_power(clock: Clock) -> bool:
    """Whether a probe here has a channel of power or energy."""
    return bool(_of_energy(clock))


def update_seconds(clock: Clock) -> float | None:
    """How long the slowest meter takes for a new value; None: there is none."""
    found = [channel for channel in _of_energy(clock) if channel.extent != "part"]
    return max((channel.interval_seconds or 0.0 for channel in found), default=None)


def _of_energy(clock: Clock) -> list[Channel]:
    """Opened and closed to find out."""
    meters = Meters(installed(lambda words: None), list, clock)
    meters.close()
    return [channel for channel in meters.channels if measures_energy(channel)]


def _why(unavailable: Unavailable) -> str:
    return unavailable.reason if unavailable.fix is None else f"{unavailable.reason}; {unavailable.fix}"


def _without_home(text: str) -> str:
    """A run folder tells nobody's name."""
    home = str(Path("~").expanduser())
    return text.replace(home, "~") if len(home) > 1 else text


def _unlike(channel: Channel, probe: str, taken: set[str]) -> Channel:
    """With a name that no other probe has."""
    name = channel.name
    while name in taken or name == "at_ns":
        name = f"{probe}_{name}"
    taken.add(name)
    return msgspec.structs.replace(channel, name=name, sensor=channel.sensor or probe)


def _state_channel(name: str) -> Channel:
    return Channel(f"{name}_probe_state", "code", "state", sensor=name)


def _as_numbers(answer: Answer, count: int) -> list[float] | None:
    """None: it threw, or gave something else than a number for each channel."""
    if answer.error is not None:
        return None
    try:
        values = [float(value) for value in answer.value]
    except (TypeError, ValueError):
        return None
    return values if len(values) == count else None


class _Sense:
    """Tells nonsense from readings: what no sensor can mean, a counter that falls, or rises faster than anything
    draws."""

    def __init__(self, channel: Channel) -> None:
        self._low, self._high = bounds_of(channel)
        self._is_counter = channel.kind == "counter"
        self._most_a_second = most_watts(channel) if channel.quantity == "energy" else math.inf
        self._last: tuple[int, float] | None = None

    def checked(self, value: float, at_ns: int) -> float:
        """The value, or NaN where it is nonsense; NaN stays NaN."""
        if not self._low <= value <= self._high:
            return math.nan
        return self._risen(value, at_ns) if self._is_counter else value

    def _risen(self, value: float, at_ns: int) -> float:
        last, self._last = self._last, (at_ns, value)
        if last is None:
            return value
        allowed = self._most_a_second * max(seconds_of_ns(at_ns - last[0]), LEAST_SECONDS)
        return value if 0 <= value - last[1] <= allowed else math.nan
