"""Tests of the hwmon probe, on a folder in the kernel's layout."""

import math

import pytest

from rigdyno.probes.hwmon import Hwmon
from support import ManualClock


def chip(root, number, name, **files):
    folder = root / f"sys/class/hwmon/hwmon{number}"
    folder.mkdir(parents=True)
    for file, text in {"name": name, **files}.items():
        (folder / file).write_text(f"{text}\n")
    return folder


def opened(root, clock=None):
    probe = Hwmon(clock or ManualClock(), root)
    assert probe.availability() is None
    channels = probe.open(list)
    return probe, {channel.name: channel for channel in channels}


def test_a_pc_with_an_amd_gpu_is_read(tmp_path):
    chip(tmp_path, 0, "k10temp", temp1_input=45125, temp1_label="Tctl")
    chip(tmp_path, 1, "amdgpu", temp1_input=51000, temp1_label="edge", fan1_input=900, power1_average=35000000,
         power1_input=36000000, power1_label="PPT")  # fmt: skip
    probe, channels = opened(tmp_path)
    values = dict(zip(channels, probe.read(), strict=True))
    assert values["hwmon_k10temp0_temp1_Tctl"] == pytest.approx(45.125)
    assert values["hwmon_amdgpu0_power1_PPT"] == 35.0  # the average, and not a second time what it is now
    assert values["hwmon_amdgpu0_fan1_fan1"] == 900
    power = channels["hwmon_amdgpu0_power1_PPT"]
    assert (power.scope, power.extent, power.device) == ("card", "whole", "amdgpu0")
    assert sum(channel.quantity == "power" for channel in channels.values()) == 1
    probe.close()


def test_chips_of_other_probes_and_batteries_are_left_out(tmp_path):
    chip(tmp_path, 0, "ina3221", in1_label="VDD_IN", in1_input=5000, curr1_input=1000, power1_input=5000000)
    chip(tmp_path, 1, "nvme", temp1_input=40000)
    chip(tmp_path, 2, "BAT0", power1_input=9000000)
    assert "hardware monitor" in Hwmon(ManualClock(), tmp_path).availability().reason


def test_chips_of_one_name_are_numbered_and_unknown_power_is_a_part(tmp_path):
    chip(tmp_path, 0, "nct6775", temp1_input=30000)
    chip(tmp_path, 10, "nct6775", temp1_input=31000)
    chip(tmp_path, 2, "ina226", power1_input=2500000)
    chip(tmp_path, 3, "power_meter", power1_average=180000000)
    probe, channels = opened(tmp_path)
    assert {"hwmon_nct67750_temp1_temp1", "hwmon_nct67751_temp1_temp1"} <= set(channels)
    assert channels["hwmon_ina2260_power1_power1"].extent == "part"
    assert channels["hwmon_power_meter0_power1_power1"].scope == "wall"
    probe.close()


def test_temperatures_are_read_every_two_seconds_and_power_each_time(tmp_path):
    clock = ManualClock()
    folder = chip(tmp_path, 0, "amdgpu", temp1_input=50000, power1_average=10000000)
    probe, _ = opened(tmp_path, clock)
    assert sorted(probe.read()) == [10.0, 50.0]
    (folder / "temp1_input").write_text("60000\n")
    (folder / "power1_average").write_text("20000000\n")
    clock.advance(1.0)
    assert sorted(probe.read()) == [20.0, 50.0]
    clock.advance(1.0)
    assert sorted(probe.read()) == [20.0, 60.0]
    probe.close()
    clock.advance(5.0)
    assert all(math.isnan(value) for value in probe.read())
