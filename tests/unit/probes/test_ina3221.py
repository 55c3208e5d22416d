"""Tests of the ina3221 probe, on folders in the kernel's two layouts with made-up figures."""

import math

import pytest

from rigdyno.probes.ina3221 import Ina3221


def jetpack_4(root, rails, chip="6-0040"):
    folder = root / "sys/bus/i2c/drivers/ina3221x" / chip / "iio:device0"
    folder.mkdir(parents=True)
    for index, (name, milliwatts) in enumerate(rails):
        (folder / f"rail_name_{index}").write_text(f"{name}\n")
        (folder / f"in_power{index}_input").write_text(f"{milliwatts}\n")
    return folder


def jetpack_5(root, rails, chip="1-0040", monitor="hwmon3"):
    folder = root / "sys/bus/i2c/drivers/ina3221" / chip / "hwmon" / monitor
    folder.mkdir(parents=True)
    for index, (name, millivolts, milliamperes) in enumerate(rails, start=1):
        (folder / f"in{index}_label").write_text(f"{name}\n")
        (folder / f"in{index}_input").write_text(f"{millivolts}\n")
        (folder / f"curr{index}_input").write_text(f"{milliamperes}\n")
    (folder / "in7_label").write_text("sum of shunt voltages\n")
    (folder / "in7_input").write_text("12\n")
    return folder


def opened(root):
    probe = Ina3221(root)
    assert probe.availability() is None
    channels = probe.open(list)
    return probe, {channel.rail: channel for channel in channels}


def test_jetpack_4_gives_milliwatts(tmp_path):
    folder = jetpack_4(tmp_path, [("POM_5V_IN", 2500), ("POM_5V_GPU", 40), ("POM_5V_CPU", 600)])
    probe, channels = opened(tmp_path)
    assert list(probe.read()) == pytest.approx([2.5, 0.04, 0.6])
    assert [channels[name].extent for name in channels] == ["whole", "part", "part"]
    (folder / "in_power0_input").write_text("7125\n")
    assert probe.read()[0] == pytest.approx(7.125)
    probe.close()


def test_jetpack_5_gives_volts_and_amperes(tmp_path):
    jetpack_5(tmp_path, [("VDD_IN", 5008, 1000), ("VDD_CPU_GPU_CV", 5000, 240), ("NC", 5000, 1)])
    probe, channels = opened(tmp_path)
    assert list(channels) == ["VDD_IN", "VDD_CPU_GPU_CV"]
    assert list(probe.read()) == pytest.approx([5.008, 1.2])
    assert channels["VDD_IN"].extent == "whole"
    probe.close()


def test_a_board_that_does_not_measure_its_input_has_only_rails(tmp_path):
    jetpack_5(tmp_path, [("VDD_GPU_SOC", 5000, 500), ("VDD_CPU_CV", 5000, 160)])
    jetpack_5(tmp_path, [("VIN_SYS_5V0", 5000, 500), ("VDDQ_VDD2_1V8AO", 5000, 100)], "1-0041", "hwmon4")
    probe, channels = opened(tmp_path)
    assert {channel.extent for channel in channels.values()} == {"rail"}
    assert list(channels) == ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"]
    probe.close()


def test_a_rail_that_disappears_is_nan_and_not_zero(tmp_path):
    folder = jetpack_4(tmp_path, [("POM_5V_IN", 2500), ("POM_5V_GPU", 40)])
    probe, _ = opened(tmp_path)
    (folder / "in_power1_input").write_text("no number\n")
    assert probe.read()[0] == 2.5
    assert math.isnan(probe.read()[1])
    probe.close()
    assert all(math.isnan(value) for value in probe.read())


def test_a_missing_or_unreadable_monitor_is_unavailable(tmp_path):
    assert "only Jetson boards" in Ina3221(tmp_path).availability().reason
    folder = jetpack_4(tmp_path, [("POM_5V_IN", 1)])
    (folder / "in_power0_input").write_text("")
    unavailable = Ina3221(tmp_path).availability()
    assert unavailable.fix.startswith("sudo chmod a+r /sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power0_input")
