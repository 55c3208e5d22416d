"""NVIDIA cards, through the driver's own management library."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rigdyno.contracts import Channel, Unavailable

CHANNELS = (
    ("power_w", "W"),  # a 1 s average on Ampere and later: over windows of seconds prefer the energy counter
    ("energy_joules", "J"),  # since the driver was loaded
    ("utilisation", "share"),
    ("memory_bytes", "B"),
    ("sm_clock_mhz", "MHz"),
    ("temperature_c", "C"),
    ("throttle_reasons", "bits"),
)


class Nvml:
    """Power, energy, usage, clocks and throttling of NVIDIA cards."""

    hints: ClassVar[Mapping[str, str]] = {}

    def __init__(self, pynvml: Any = None) -> None:
        self._given = pynvml
        self._nvml: Any = None
        self._cards: list[Any] = []

    def availability(self) -> Unavailable | None:
        try:
            nvml = self._library()
        except ImportError:
            return Unavailable("pynvml is not installed", "pip install 'rigdyno[nvidia]'")
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return Unavailable(f"NVML can't start: {error}", "install the NVIDIA driver, and check with nvidia-smi")
        try:
            return None if nvml.nvmlDeviceGetCount() else Unavailable("the driver sees no NVIDIA card")
        finally:
            nvml.nvmlShutdown()

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        self._nvml = self._library()
        self._nvml.nvmlInit()
        count = self._nvml.nvmlDeviceGetCount()
        self._cards = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        return [Channel(f"gpu{index}_{name}", unit) for index in range(count) for name, unit in CHANNELS]

    def read(self) -> Sequence[float]:
        return [value for card in self._cards for value in self._read_card(card)]

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
        self._nvml, self._cards = None, []

    def _library(self) -> Any:
        return self._given if self._given is not None else importlib.import_module("pynvml")

    def _read_card(self, card: Any) -> list[float]:
        nvml = self._nvml
        return [
            self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1000),
            self._ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1000),
            self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(card).gpu / 100),
            self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(card).used),
            self._ask(lambda: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
            self._ask(lambda: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)),
            self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card)),
        ]

    def _ask(self, question: Callable[[], float]) -> float:
        """Cards differ in what they answer: an older one has no energy counter."""
        try:
            return float(question())
        except self._nvml.NVMLError:
            return math.nan
