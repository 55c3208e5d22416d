"""Reads all probes of a machine. A probe that hangs, raises, disappears or returns nonsense is tagged as such, and the
other probes are read all the same.

One thread reads all probes in turn and wakes the caller once. If a probe hangs, it keeps that thread, and the others
get a new one.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rigdyno import catalogue
from rigdyno.base.clock import Clock
from rigdyno.base.errors import CatalogueError
from rigdyno.base.threads import CallResult, WorkerThread, call_safely, describe_trouble
from rigdyno.base.units import seconds_of_ns
from rigdyno.contracts import Channel, Probe, Unavailable
from rigdyno.schema.channel import STATES, bounds_of, measures_energy, most_watts

Call = Callable[[], Any]

OPEN_SECONDS = 5.0  # loading a driver takes seconds

READ_SECONDS = 0.45  # less than the time between two readings, with room for a busy machine

CLOSE_SECONDS = 3.0

LEAST_SECONDS = 0.01  # least time assumed between two readings of a counter: it may cover an older interval

GONE_SECONDS = 5.0  # a probe without any value for this long, plus its sensor's interval, is gone

FINE, BLOCKED, FAILED, NONSENSE, GONE = range(len(STATES))

Pids = Callable[[], Sequence[int]]


class _Round:
    """A sequence of calls, each with its own result. The caller is woken once, when all are done: every wake-up takes
    time from the machine that is being measured."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._answers: list[CallResult] = []
        self._over: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._given_up = self.is_over = False

    def run(self) -> None:
        for call in self._calls:
            if self._given_up:  # another thread makes the remaining calls
                break
            self._answers.append(call_safely(call))
        self.is_over = True
        self._over.put(None)

    def wait_for_answers(self, seconds: float) -> list[CallResult]:
        """Return the results that came within the time. If some are missing, the first missing call is still running,
        and this round makes no further calls."""
        try:
            self._over.get(timeout=seconds)
        except queue.Empty:
            self._given_up = True
        return list(self._answers)


class _ProbeGroup:
    """Probes that share a thread."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._worker = WorkerThread("probes")
        self.round = _Round(())
        self.round.is_over = True

    def start(self, names: Sequence[str], calls: Mapping[str, Call]) -> None:
        self._worker.discard_results()  # drop the results of earlier rounds
        self.round = _Round([calls[name] for name in names])
        self._worker.submit(self.round.run)


class ProbeReader:
    def __init__(self, names: Sequence[str]) -> None:
        self._groups = [_ProbeGroup(names)]

    def read(self, calls: Mapping[str, Call], seconds: float) -> dict[str, CallResult]:
        """Return the results by name, without the probes that hang, now or since an earlier round."""
        ready = [group for group in self._groups if group.round.is_over]
        for group in ready:
            group.start(group.names, calls)
        results: dict[str, CallResult] = {}
        for group in ready:
            self._collect(group, list(group.names), calls, seconds, results)
        return results

    def is_hanging(self, name: str) -> bool:
        return any(name in group.names and not group.round.is_over for group in self._groups)

    def _collect(
        self,
        group: _ProbeGroup,
        names: Sequence[str],
        calls: Mapping[str, Call],
        seconds: float,
        results: dict[str, CallResult],
    ) -> None:
        answers = group.round.wait_for_answers(seconds)
        results.update(zip(names, answers, strict=False))
        if len(answers) < len(names):
            stuck, *rest = names[len(answers) :]
            self._isolate(group, stuck, rest, calls, seconds, results)
        else:
            group.round.is_over = True  # its thread may not have set it yet

    def _isolate(
        self,
        group: _ProbeGroup,
        stuck: str,
        rest: Sequence[str],
        calls: Mapping[str, Call],
        seconds: float,
        results: dict[str, CallResult],
    ) -> None:
        """Leave the thread to the probe that hangs, and read the others in a new one."""
        others = [name for name in group.names if name != stuck]
        group.names = [stuck]
        if others:
            self._groups.append(new := _ProbeGroup(others))
        if others and rest:
            new.start(rest, calls)
            self._collect(new, rest, calls, seconds, results)


class Opened(NamedTuple):
    name: str
    probe: Probe
    worker: WorkerThread  # opens and closes it: what a probe starts may end with the thread that started it
    channels: tuple[Channel, ...]
    state: Channel


class ProbeSet:
    """The probes that work on this machine, opened. `channels` has the channels of all probes, and a state channel for
    each probe."""

    def __init__(self, probes: Mapping[str, Probe], pids: Pids, clock: Clock) -> None:
        self._clock = clock
        self.absent: dict[str, str] = {}  # by probe: why it can't be read, and how to fix it
        self._opened = self._open(probes, pids)
        self.channels = tuple(channel for each in self._opened for channel in (*each.channels, each.state))
        self._reader = ProbeReader([each.name for each in self._opened])
        self._filters = {channel.name: _ReadingFilter(channel) for channel in self.channels}
        self._last_value_ns = {each.name: clock.now_ns() for each in self._opened}

    def read(self) -> list[float]:
        """Return values in the order of the channels; NaN for what wasn't read."""
        now_ns = self._clock.now_ns()
        answers = self._reader.read({each.name: each.probe.read for each in self._opened}, READ_SECONDS)
        return [value for each in self._opened for value in self._values(each, answers.get(each.name), now_ns)]

    def _values(self, each: Opened, answer: CallResult | None, now_ns: int) -> list[float]:
        missing = [math.nan] * len(each.channels)
        if answer is None:
            return [*missing, BLOCKED]
        values = _to_numbers(answer, len(each.channels))
        if values is None:
            return [*missing, FAILED]
        valid = [self._filters[c.name].filter(value, now_ns) for c, value in zip(each.channels, values, strict=True)]
        return [*valid, self._state(each, values, valid, now_ns)]

    def _state(self, each: Opened, raw: Sequence[float], valid: Sequence[float], now_ns: int) -> float:
        if any(math.isnan(after) and not math.isnan(before) for before, after in zip(raw, valid, strict=True)):
            return NONSENSE
        if any(not math.isnan(value) for value in valid):
            self._last_value_ns[each.name] = now_ns
            return FINE
        slowest = max((channel.interval_seconds or 0.0 for channel in each.channels), default=0.0)
        silent = seconds_of_ns(now_ns - self._last_value_ns[each.name])
        return GONE if each.channels and silent > GONE_SECONDS + 5 * slowest else FINE

    def close(self) -> None:
        closing = [each for each in self._opened if not self._reader.is_hanging(each.name)]
        for each in closing:
            each.worker.submit(each.probe.close)
        for each in closing:
            each.worker.wait_for_result(CLOSE_SECONDS)

    def _open(self, probes: Mapping[str, Probe], pids: Pids) -> list[Opened]:
        """Open all probes at the same time, so that it takes no longer than the slowest."""
        workers = {name: WorkerThread(f"probe {name}") for name in probes}
        for name, probe in probes.items():
            workers[name].submit(lambda probe=probe: probe.availability() or list(probe.open(pids)))  # type: ignore[misc]
        opened: list[Opened] = []
        taken: set[str] = set()
        for name, probe in probes.items():
            answer = workers[name].wait_for_result(OPEN_SECONDS)
            channels = self._check_channels(name, answer, taken)
            if channels is not None:
                opened.append(Opened(name, probe, workers[name], channels, _state_channel(name)))
        return opened

    def _check_channels(self, name: str, answer: CallResult | None, taken: set[str]) -> tuple[Channel, ...] | None:
        """Return the probe's channels, or None after recording why it is absent."""
        trouble = describe_trouble(answer, OPEN_SECONDS)
        if answer is None or trouble is not None:
            self.absent[name] = _hide_home(trouble or "")
        elif isinstance(answer.value, Unavailable):
            self.absent[name] = _hide_home(_format_reason(answer.value))
        else:
            return tuple(_with_unique_name(channel, name, taken) for channel in answer.value)
        return None


def load_probes(complain: Callable[[str], None]) -> dict[str, Probe]:
    """Return all probes by name. A broken probe of an installed package is reported and left out."""
    probes: dict[str, Probe] = {}
    for name in catalogue.names("probe"):
        try:
            probes[name] = catalogue.load("probe", name)()
        except CatalogueError as error:
            complain(str(error))
    return probes


def has_power_channel(clock: Clock) -> bool:
    """Return whether a probe has a channel of power or energy."""
    return bool(_find_energy_channels(clock))


def find_update_seconds(clock: Clock) -> float | None:
    """Return the longest interval between new values of a power or energy channel; None if there is no such channel."""
    channels = [channel for channel in _find_energy_channels(clock) if channel.extent != "part"]
    return max((channel.interval_seconds or 0.0 for channel in channels), default=None)


def _find_energy_channels(clock: Clock) -> list[Channel]:
    """Open and close all probes to find their channels of power and energy."""
    probes = ProbeSet(load_probes(lambda words: None), list, clock)
    probes.close()
    return [channel for channel in probes.channels if measures_energy(channel)]


def _format_reason(unavailable: Unavailable) -> str:
    return unavailable.reason if unavailable.fix is None else f"{unavailable.reason}; {unavailable.fix}"


def _hide_home(text: str) -> str:
    """Replace the home folder by ~: a run folder must not contain a user's name."""
    home = str(Path("~").expanduser())
    return text.replace(home, "~") if len(home) > 1 else text


def _with_unique_name(channel: Channel, probe: str, taken: set[str]) -> Channel:
    """Prefix the channel's name with the probe's name if another probe has it."""
    name = channel.name
    while name in taken or name == "at_ns":
        name = f"{probe}_{name}"
    taken.add(name)
    return msgspec.structs.replace(channel, name=name, sensor=channel.sensor or probe)


def _state_channel(name: str) -> Channel:
    return Channel(f"{name}_probe_state", "code", "state", sensor=name)


def _to_numbers(answer: CallResult, count: int) -> list[float] | None:
    """Return one number per channel; None if the probe raised or returned anything else."""
    if answer.error is not None:
        return None
    try:
        values = [float(value) for value in answer.value]
    except (TypeError, ValueError):
        return None
    return values if len(values) == count else None


class _ReadingFilter:
    """Replaces nonsense by NaN: values outside the sensor's range, and a counter that falls or rises faster than any
    device draws power."""

    def __init__(self, channel: Channel) -> None:
        self._low, self._high = bounds_of(channel)
        self._is_counter = channel.kind == "counter"
        self._most_a_second = most_watts(channel) if channel.quantity == "energy" else math.inf
        self._last: tuple[int, float] | None = None

    def filter(self, value: float, at_ns: int) -> float:
        """Return the value, or NaN if it is nonsense; NaN stays NaN."""
        if not self._low <= value <= self._high:
            return math.nan
        return self._filter_counter(value, at_ns) if self._is_counter else value

    def _filter_counter(self, value: float, at_ns: int) -> float:
        last, self._last = self._last, (at_ns, value)
        if last is None:
            return value
        allowed = self._most_a_second * max(seconds_of_ns(at_ns - last[0]), LEAST_SECONDS)
        return value if 0 <= value - last[1] <= allowed else math.nan
