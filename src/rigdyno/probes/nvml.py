"""NVIDIA cards, through the driver's own management library."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from rigdyno.contracts import Channel, Unavailable

MOST_WATTS = 5000.0

Question = Callable[[Any, Any], float]  # (library, card) -> value

# Power is a 1 s average on Ampere and later, and A100 and H100 sample a quarter of the time: over windows of seconds
# the energy counter is preferred.
_POWER_SECONDS, _COUNTER_SECONDS = 0.1, 0.1
_KINDS: tuple[tuple[Channel, Question], ...] = (
    (
        Channel("power_w", "W", "power", extent="whole", interval_seconds=_POWER_SECONDS, most=MOST_WATTS),
        lambda nvml, card: nvml.nvmlDeviceGetPowerUsage(card) / 1000,
    ),
    (
        Channel("energy_joules", "J", "energy", "counter", extent="whole", interval_seconds=_COUNTER_SECONDS,
                most=MOST_WATTS),
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
        lambda nvml, card: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU),
    ),
    (Channel("throttle_reasons", "bits", "throttle"), lambda nvml, card: _throttle_reasons(nvml, card)),
)  # fmt: skip


def _throttle_reasons(nvml: Any, card: Any) -> float:
    """Drivers of 2023 and later call them event reasons; older ones, and older packages, know the first name alone."""
    try:
        return float(nvml.nvmlDeviceGetCurrentClocksEventReasons(card))
    except (AttributeError, nvml.NVMLError):
        return float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card))


class _Asked(NamedTuple):
    card: Any
    question: Question


class Nvml:
    """Power, energy, usage, clocks and throttling of NVIDIA cards."""

    hints: ClassVar[Mapping[str, str]] = {}

    def __init__(self, pynvml: Any = None) -> None:
        self._given = pynvml
        self._nvml: Any = None
        self._asked: list[_Asked] = []

    def availability(self) -> Unavailable | None:
        try:
            nvml = self._library()
        except ImportError:
            return Unavailable("pynvml is not installed", "pip install 'rigdyno[nvidia]'")
        try:
            nvml.nvmlInit()
        except (nvml.NVMLError, OSError) as error:
            return Unavailable(f"NVML can't start: {error}", "install the NVIDIA driver, and check with nvidia-smi")
        try:
            return self._unreadable(nvml)
        finally:
            nvml.nvmlShutdown()

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
                    self._asked.append(_Asked(card, question))
                    channels.append(_named(kind, f"gpu{index}"))
        return channels

    def read(self) -> Sequence[float]:
        answers = [_answer(self._nvml, asked.card, asked.question) for asked in self._asked]
        return [math.nan if answer is None else answer for answer in answers]

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
    except (nvml.NVMLError, AttributeError):
        return None


def _named(kind: Channel, device: str) -> Channel:
    return msgspec.structs.replace(kind, name=f"{device}_{kind.name}", device=device, scope="card", sensor="nvml")
