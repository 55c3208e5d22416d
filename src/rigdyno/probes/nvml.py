"""NVIDIA cards, through the driver's own management library."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec

from rigdyno.clock import Clock, SystemClock
from rigdyno.contracts import Channel, Unavailable
from rigdyno.units import NS_PER_S

MOST_WATTS = 5000.0
SLOW, SLOW_NS = ("memory", "clock", "temperature", "throttle"), 2 * NS_PER_S  # each question to a driver costs time
INSTALL_DRIVER = "install the NVIDIA driver, and check with nvidia-smi"
# One of them is where a driver is: of a PC or a server, of Windows below Linux, of a Jetson.
DRIVER_FILES = ("dev/nvidiactl", "proc/driver/nvidia", "dev/dxg", "dev/nvhost-gpu", "dev/nvgpu")

Question = Callable[[Any, Any], float]  # (library, card) -> value

# Power is a 1 s average on Ampere and later, and A100 and H100 sample a quarter of the time: over windows of seconds
# the energy counter is preferred.
_POWER_SECONDS, _COUNTER_SECONDS = 0.1, 0.1
_KINDS: tuple[tuple[Channel, Question], ...] = (
    (
        Channel("power_w", "W", "power", extent="whole", interval_seconds=_POWER_SECONDS),
        lambda nvml, card: nvml.nvmlDeviceGetPowerUsage(card) / 1000,
    ),
    (
        Channel("energy_joules", "J", "energy", "counter", extent="whole", interval_seconds=_COUNTER_SECONDS),
        lambda nvml, card: nvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1000,
    ),
    (
        Channel("utilisation", "share", "utilisation"),
        lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).gpu / 100,
    ),
    (Channel("memory_bytes", "B", "memory"), lambda nvml, card: nvml.nvmlDeviceGetMemoryInfo(card).used),
    (
        Channel("sm_clock_mhz", "MHz", "clock"),
        lambda nvml, card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
    ),
    (
        Channel("temperature_c", "C", "temperature"),
        lambda nvml, card: _temperature(nvml, card),
    ),
    (Channel("throttle_reasons", "bits", "throttle"), lambda nvml, card: _throttle_reasons(nvml, card)),
)  # fmt: skip


def _temperature(nvml: Any, card: Any) -> float:
    """Later drivers have a second function for it, and may no longer answer the first."""
    try:
        return float(nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU))
    except (AttributeError, nvml.NVMLError):
        return float(nvml.nvmlDeviceGetTemperatureV(card, nvml.NVML_TEMPERATURE_GPU))


def _throttle_reasons(nvml: Any, card: Any) -> float:
    """Drivers of 2023 and later call them event reasons; older ones, and older packages, know the first name alone."""
    try:
        return float(nvml.nvmlDeviceGetCurrentClocksEventReasons(card))
    except (AttributeError, nvml.NVMLError):
        return float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card))


class _Asked(NamedTuple):
    card: Any
    question: Question
    is_slow: bool


class Nvml:
    """Power, energy, usage, clocks and throttling of NVIDIA cards."""

    hints: ClassVar[Mapping[str, str]] = {}

    def __init__(self, pynvml: Any = None, root: Path = Path("/"), clock: Clock | None = None) -> None:
        self._given, self._root = pynvml, root
        self._clock: Clock = clock or SystemClock()
        self._nvml: Any = None
        self._asked: list[_Asked] = []

    def availability(self) -> Unavailable | None:
        if self._given is None and importlib.util.find_spec("pynvml") is None:
            return Unavailable("pynvml is not installed", "pip install 'rigdyno[nvidia]'")
        if self._given is None and self._has_no_driver():
            return Unavailable("there is no NVIDIA driver here", INSTALL_DRIVER)
        nvml = self._library()
        try:
            nvml.nvmlInit()
        except (nvml.NVMLError, OSError) as error:
            return Unavailable(f"NVML can't start: {error}", INSTALL_DRIVER)
        try:
            return self._unreadable(nvml)
        finally:
            nvml.nvmlShutdown()

    def _has_no_driver(self) -> bool:
        """Certain without loading the library: a list of what there is answers at once."""
        return sys.platform == "linux" and not any((self._root / path).exists() for path in DRIVER_FILES)

    def _unreadable(self, nvml: Any) -> Unavailable | None:
        """That it starts says nothing: on a Jetson it does, and then answers NotSupported to everything."""
        try:
            cards = _cards(nvml)
        except nvml.NVMLError as error:
            return Unavailable(f"NVML can't name its cards: {error}", "check with nvidia-smi")
        if not cards:
            return Unavailable("the driver sees no NVIDIA card")
        if any(_answer(nvml, card, question) is not None for card in cards for _, question in _KINDS):
            return None
        return Unavailable(
            "NVML starts and answers nothing, as on a Jetson", "there the probes ina3221 and tegrastats read the board"
        )

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        """Channels that the card answers: an older one has no energy counter."""
        self._nvml = nvml = self._library()
        nvml.nvmlInit()
        channels = []
        for index, card in enumerate(_cards(nvml)):
            for kind, question in _KINDS:
                if _answer(nvml, card, question) is not None:
                    self._asked.append(_Asked(card, question, kind.quantity in SLOW))
                    channels.append(_named(kind, f"gpu{index}", _most_watts(nvml, card)))
        self._values = [math.nan] * len(channels)
        self._slow_due_ns = self._clock.now_ns()
        return channels

    def read(self) -> Sequence[float]:
        now_ns = self._clock.now_ns()
        slow = now_ns >= self._slow_due_ns
        for index, asked in enumerate(self._asked):
            if slow or not asked.is_slow:
                answer = _answer(self._nvml, asked.card, asked.question)
                self._values[index] = math.nan if answer is None else answer
        if slow:
            self._slow_due_ns = now_ns + SLOW_NS
        return list(self._values)

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
        self._nvml, self._asked = None, []

    def _library(self) -> Any:
        return self._given if self._given is not None else importlib.import_module("pynvml")


def _cards(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _answer(nvml: Any, card: Any, question: Question) -> float | None:
    """None: this card, driver or package doesn't know."""
    try:
        return float(question(nvml, card))
    except (nvml.NVMLError, AttributeError, IndexError, TypeError):
        return None


def _most_watts(nvml: Any, card: Any) -> float:
    """Beyond what the card can draw, peaks of microseconds included: three times the highest limit that it takes."""
    limit = _answer(nvml, card, lambda nvml, card: nvml.nvmlDeviceGetPowerManagementLimitConstraints(card)[1] / 1000)
    return 3 * limit if limit else MOST_WATTS


def _named(kind: Channel, device: str, most_watts: float) -> Channel:
    most = most_watts if kind.quantity in ("power", "energy") else None
    name = f"{device}_{kind.name}"
    return msgspec.structs.replace(kind, name=name, device=device, scope="card", sensor="nvml", most=most)
