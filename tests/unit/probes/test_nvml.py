"""NVIDIA cards, with a driver that is made up at pynvml's edge."""

import math
import sys
from types import SimpleNamespace

import pytest

from rigdyno.probes.nvml import Nvml


class FakeNvml:
    """Two cards; the second one is old and has no energy counter."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    class NVMLError(Exception):
        pass

    def __init__(self, count=2, broken=False):
        self.count, self.broken, self.starts = count, broken, 0

    def nvmlInit(self):  # noqa: N802
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")
        self.starts += 1

    def nvmlShutdown(self):  # noqa: N802
        self.starts -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetPowerUsage(self, card):  # noqa: N802
        return 250_500

    def nvmlDeviceGetTotalEnergyConsumption(self, card):  # noqa: N802
        if card == 1:
            raise self.NVMLError("Not Supported")
        return 12_000

    def nvmlDeviceGetUtilizationRates(self, card):  # noqa: N802
        return SimpleNamespace(gpu=75)

    def nvmlDeviceGetMemoryInfo(self, card):  # noqa: N802
        return SimpleNamespace(used=10**9)

    def nvmlDeviceGetClockInfo(self, card, kind):  # noqa: N802
        return 1410

    def nvmlDeviceGetTemperature(self, card, sensor):  # noqa: N802
        return 66

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card):  # noqa: N802
        return 0x40


def test_two_cards():
    library = FakeNvml()
    probe = Nvml(library)
    assert probe.availability() is None
    names = [channel.name for channel in probe.open(list)]
    values = dict(zip(names, probe.read(), strict=True))
    assert values["gpu0_power_w"] == 250.5
    assert values["gpu0_energy_joules"] == 12.0
    assert values["gpu1_utilisation"] == 0.75
    assert values["gpu1_throttle_reasons"] == 64
    assert math.isnan(values["gpu1_energy_joules"])
    probe.close()
    assert library.starts == 0


@pytest.mark.parametrize(
    ("library", "words"), [(FakeNvml(broken=True), "Driver Not Loaded"), (FakeNvml(count=0), "no NVIDIA card")]
)
def test_a_driver_that_is_not_there(library, words):
    unavailable = Nvml(library).availability()
    assert unavailable is not None
    assert words in unavailable.reason


def test_a_missing_package_has_a_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    unavailable = Nvml().availability()
    assert unavailable is not None
    assert unavailable.fix == "pip install 'rigdyno[nvidia]'"
