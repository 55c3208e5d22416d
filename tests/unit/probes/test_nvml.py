"""Tests of the nvml probe with a fake nvidia-ml-py that raises the package's own errors."""

import math
import sys
from types import SimpleNamespace
from typing import ClassVar

import pynvml
import pytest

from rigdyno.probes.nvml import Nvml
from support import ManualClock

NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
FUNCTION_NOT_FOUND = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
GPU_IS_LOST = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


class FakeNvml:
    """Replaces the library. `refuses` maps (GPU, function) to an error; a GPU of None means all of them."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = pynvml.NVML_CLOCK_SM, pynvml.NVML_TEMPERATURE_GPU
    ANSWERS: ClassVar = {
        "nvmlDeviceGetPowerUsage": 250_500,
        "nvmlDeviceGetTotalEnergyConsumption": 12_000,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=75, memory=10),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=10**9),
        "nvmlDeviceGetClockInfo": 1410,
        "nvmlDeviceGetTemperature": 66,
        "nvmlDeviceGetTemperatureV": 66,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x40,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x40,
    }

    def __init__(self, count=2, start_error=None, refuses=None, lacks=()):
        self.count, self.start_error, self.refuses, self.lacks = count, start_error, dict(refuses or {}), lacks
        self.starts = 0

    def nvmlInit(self):  # noqa: N802
        if self.start_error is not None:
            raise self.start_error
        self.starts += 1

    def nvmlShutdown(self):  # noqa: N802
        self.starts -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def __getattr__(self, name):
        if name not in self.ANSWERS or name in self.lacks:
            raise AttributeError(name)

        def answer(card, *_):
            error = self.refuses.get((card, name)) or self.refuses.get((None, name))
            if error is not None:
                raise error
            return self.ANSWERS[name]

        return answer


def read_once(library):
    probe = Nvml(library)
    assert probe.availability() is None
    names = [channel.name for channel in probe.open(list)]
    values = dict(zip(names, probe.read(), strict=True))
    probe.close()
    assert library.starts == 0
    return values


def test_every_function_of_the_fake_is_in_the_real_library():
    assert all(hasattr(pynvml, name) for name in FakeNvml.ANSWERS)


def test_a_gpu_without_an_energy_counter_lacks_that_channel():
    values = read_once(FakeNvml(refuses={(1, "nvmlDeviceGetTotalEnergyConsumption"): NOT_SUPPORTED}))
    assert values["gpu0_power_w"] == 250.5
    assert values["gpu0_energy_joules"] == 12.0
    assert values["gpu1_utilisation"] == 0.75
    assert values["gpu1_throttle_reasons"] == 64
    assert "gpu1_energy_joules" not in values


@pytest.mark.parametrize(
    "library",
    [
        FakeNvml(lacks=("nvmlDeviceGetCurrentClocksEventReasons",)),  # an old package
        FakeNvml(lacks=("nvmlDeviceGetCurrentClocksThrottleReasons",)),
        FakeNvml(refuses={(None, "nvmlDeviceGetCurrentClocksEventReasons"): FUNCTION_NOT_FOUND}),  # an old driver
    ],
)
def test_throttle_reasons_are_read_under_the_old_and_the_new_name(library):
    assert read_once(library)["gpu0_throttle_reasons"] == 64


def test_temperature_is_read_by_either_function():
    for name in ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"):
        assert read_once(FakeNvml(lacks=(name,)))["gpu0_temperature_c"] == 66


def test_nvml_on_a_jetson_is_unavailable():
    library = FakeNvml(count=1, refuses={(None, name): NOT_SUPPORTED for name in FakeNvml.ANSWERS})
    unavailable = Nvml(library).availability()
    assert "Jetson" in unavailable.reason
    assert "ina3221" in unavailable.fix
    assert library.starts == 0


def test_a_lost_gpu_reads_nan():
    library = FakeNvml(count=1)
    probe = Nvml(library)
    probe.open(list)
    library.refuses = {(None, name): GPU_IS_LOST for name in FakeNvml.ANSWERS}
    assert all(math.isnan(value) for value in probe.read())
    probe.close()


def test_channels_have_scope_extent_and_device():
    probe = Nvml(FakeNvml(count=1))
    channels = {channel.quantity: channel for channel in probe.open(list)}
    probe.close()
    assert channels["energy"].kind == "counter"
    assert channels["energy"].meter == channels["power"].meter == ("card", "gpu0", "")
    assert {channel.sensor for channel in channels.values()} == {"nvml"}
    assert channels["power"].interval_seconds == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (FakeNvml(start_error=pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)), "Driver Not Loaded"),
        (FakeNvml(start_error=pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)), "Not Found"),
        (FakeNvml(count=0), "no NVIDIA GPU"),
    ],
)
def test_a_missing_driver_is_unavailable(library, words):
    unavailable = Nvml(library).availability()
    assert unavailable is not None
    assert words in unavailable.reason


def test_a_missing_package_suggests_a_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    unavailable = Nvml().availability()
    assert unavailable is not None
    assert unavailable.fix == "pip install 'rigdyno[nvidia]'"


def test_without_a_driver_the_library_is_not_even_loaded(tmp_path):
    unavailable = Nvml(root=tmp_path).availability()
    assert (unavailable.reason, unavailable.fix) == (
        "there is no NVIDIA driver here",
        "install the NVIDIA driver, and check with nvidia-smi",
    )


def test_the_gpus_power_limit_bounds_plausible_readings():
    library = FakeNvml(count=1)
    library.nvmlDeviceGetPowerManagementLimitConstraints = lambda card: [100_000, 350_000]
    channels = {channel.quantity: channel for channel in Nvml(library).open(list)}
    assert channels["power"].most == channels["energy"].most == 1050.0
    assert channels["temperature"].most is None


def test_power_and_usage_are_read_each_time_and_the_rest_every_two_seconds():
    clock, library = ManualClock(), FakeNvml(count=1)
    probe = Nvml(library, clock=clock)
    names = [channel.quantity for channel in probe.open(list)]
    probe.read()
    library.refuses = {(None, name): GPU_IS_LOST for name in FakeNvml.ANSWERS}
    clock.advance(1.0)
    lost = {name for name, value in zip(names, probe.read(), strict=True) if math.isnan(value)}
    assert lost == {"power", "energy", "utilisation"}
    clock.advance(1.0)
    assert all(math.isnan(value) for value in probe.read())
    probe.close()
