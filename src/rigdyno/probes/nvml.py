"""Reads NVIDIA GPUs through the driver's management library, NVML."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rigdyno.base.clock import Clock, SystemClock
from rigdyno.base.units import NS_PER_S
from rigdyno.contracts import Channel, Probe, Unavailable

MOST_WATTS = 5000.0

SLOW, SLOW_NS = ("memory", "clock", "temperature", "throttle"), 2 * NS_PER_S  # read less often: each call takes time

INSTALL_DRIVER = "install the NVIDIA driver, and check with nvidia-smi"

# One of these exists if there is a driver: of a PC or a server, of WSL, of a Jetson.
DRIVER_FILES = ("dev/nvidiactl", "proc/driver/nvidia", "dev/dxg", "dev/nvhost-gpu", "dev/nvgpu")

Query = Callable[[Any, Any], float]  # (library, device handle) -> value

# Power is a 1 s average on Ampere and later, and A100 and H100 sample a quarter of the time. The energy counter is
# preferred for windows of seconds.
_POWER_SECONDS, _COUNTER_SECONDS = 0.1, 0.1

_KINDS: tuple[tuple[Channel, Query], ...] = (
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
    """Read the temperature. Later drivers have a second function for it, and may no longer support the first."""
    try:
        return float(nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU))
    except (AttributeError, nvml.NVMLError):
        return float(nvml.nvmlDeviceGetTemperatureV(card, nvml.NVML_TEMPERATURE_GPU))


def _throttle_reasons(nvml: Any, card: Any) -> float:
    """Read the throttle reasons. Drivers since 2023 call them event reasons; older drivers and packages have only the
    old name."""
    try:
        return float(nvml.nvmlDeviceGetCurrentClocksEventReasons(card))
    except (AttributeError, nvml.NVMLError):
        return float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card))


class _ChannelQuery(NamedTuple):
    device: Any
    query: Query
    is_slow: bool


class Nvml(Probe):
    """Power, energy, usage, clocks and throttling of NVIDIA GPUs."""

    def __init__(self, pynvml: Any = None, root: Path = Path("/"), clock: Clock | None = None) -> None:
        self._given, self._root = pynvml, root
        self._clock: Clock = clock or SystemClock()
        self._nvml: Any = None
        self._queries: list[_ChannelQuery] = []

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
            return self._check_readable(nvml)
        finally:
            nvml.nvmlShutdown()

    def _has_no_driver(self) -> bool:
        """Return whether there is certainly no driver. Loading the library would be too slow for `rigdyno list`."""
        return sys.platform == "linux" and not any((self._root / path).exists() for path in DRIVER_FILES)

    def _check_readable(self, nvml: Any) -> Unavailable | None:
        """Read something: on a Jetson NVML starts, but then answers NotSupported to every call."""
        try:
            devices = _list_devices(nvml)
        except nvml.NVMLError as error:
            return Unavailable(f"NVML can't list its GPUs: {error}", "check with nvidia-smi")
        if not devices:
            return Unavailable("the driver sees no NVIDIA GPU")
        if any(_read(nvml, device, query) is not None for device in devices for _, query in _KINDS):
            return None
        return Unavailable(
            "NVML starts but answers nothing, as on a Jetson", "there the probes ina3221 and tegrastats read the board"
        )

    def open(self, worker_pids: Callable[[], Sequence[int]]) -> Sequence[Channel]:
        """Return the channels that each GPU supports: older ones have no energy counter."""
        self._nvml = nvml = self._library()
        nvml.nvmlInit()
        channels = []
        for index, device in enumerate(_list_devices(nvml)):
            for kind, query in _KINDS:
                if _read(nvml, device, query) is not None:
                    self._queries.append(_ChannelQuery(device, query, kind.quantity in SLOW))
                    channels.append(_make_channel(kind, f"gpu{index}", _most_watts(nvml, device)))
        self._values = [math.nan] * len(channels)
        self._slow_due_ns = self._clock.now_ns()
        return channels

    def read(self) -> Sequence[float]:
        now_ns = self._clock.now_ns()
        slow = now_ns >= self._slow_due_ns
        for index, each in enumerate(self._queries):
            if slow or not each.is_slow:
                value = _read(self._nvml, each.device, each.query)
                self._values[index] = math.nan if value is None else value
        if slow:
            self._slow_due_ns = now_ns + SLOW_NS
        return list(self._values)

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
        self._nvml, self._queries = None, []

    def _library(self) -> Any:
        return self._given if self._given is not None else importlib.import_module("pynvml")


def _list_devices(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _read(nvml: Any, device: Any, query: Query) -> float | None:
    """Return the value, or None if this GPU, driver or package doesn't support it."""
    try:
        return float(query(nvml, device))
    except (nvml.NVMLError, AttributeError, IndexError, TypeError):
        return None


def _most_watts(nvml: Any, device: Any) -> float:
    """Return more than the GPU can draw, even in peaks of microseconds: three times its highest power limit."""
    limit = _read(nvml, device, lambda nvml, card: nvml.nvmlDeviceGetPowerManagementLimitConstraints(card)[1] / 1000)
    return 3 * limit if limit else MOST_WATTS


def _make_channel(kind: Channel, device: str, most_watts: float) -> Channel:
    most = most_watts if kind.quantity in ("power", "energy") else None
    name = f"{device}_{kind.name}"
    return msgspec.structs.replace(kind, name=name, device=device, scope="card", sensor="nvml", most=most)
