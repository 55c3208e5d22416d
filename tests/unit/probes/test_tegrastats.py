"""Tests of the tegrastats probe: each format, and a script that replays a log."""

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import NANO_IDLE, ORIN, ORIN_NO_LOAD, XAVIER

from driving import until
from rigdyno.probes.tegrastats import Tegrastats, parse_tegrastats

MB = 2**20


def test_a_recorded_line_of_a_nano_is_parsed():
    line = parse_tegrastats(NANO_IDLE)
    assert line.memory_bytes == 613 * MB
    assert line.loads == {"gpu": 0.0, "emc": 0.0}
    assert line.clocks_mhz == {}
    assert line.temperatures_c == {"PLL": 39, "CPU": 40.5, "GPU": 41, "AO": 46, "thermal": 41}  # PMIC is a constant
    assert line.rails_w == {"POM_5V_IN": 0.9, "POM_5V_GPU": 0.0, "POM_5V_CPU": 0.123}


def test_a_line_of_a_xavier_is_parsed():
    line = parse_tegrastats(XAVIER)
    assert line.loads == {"gpu": 0.10, "emc": 0.07}
    assert line.clocks_mhz == {"gpu": 1300, "emc": 1600}
    assert line.rails_w == {"GPU": 0.62, "CPU": 0.311, "SOC": 0.933, "CV": 0.0, "VDDRQ": 0.155, "SYS5V": 1.493}
    assert line.temperatures_c["GPU"] == 35  # a rail and a sensor may have the same name


def test_a_line_of_an_orin_is_parsed():
    line = parse_tegrastats(ORIN)
    assert line.loads["gpu"] == 0.0
    assert line.clocks_mhz["gpu"] == 1200
    assert "GPU" not in line.temperatures_c
    assert "NC" not in line.rails_w
    assert line.rails_w["VDD_GPU_SOC"] == pytest.approx(2.403)


def test_a_line_without_loads_has_clocks_only():
    line = parse_tegrastats(ORIN_NO_LOAD)
    assert "gpu" not in line.loads
    assert line.clocks_mhz["gpu"] == 1000
    assert line.temperatures_c["cpu"] == 50.1
    assert line.rails_w["VDD_IN"] == pytest.approx(8.044)


words = st.lists(
    st.one_of(st.sampled_from([*NANO_IDLE.split(), *XAVIER.split(), *ORIN.split()]), st.text(max_size=12)), max_size=30
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.one_of(st.text(max_size=100), words.map(" ".join)))
def test_any_line_parses_into_finite_numbers(text):
    line = parse_tegrastats(text)
    for values in line[1:]:
        assert all(math.isfinite(value) for value in values.values())


def replaying(tmp_path, lines, *then):
    """Return a command that prints these lines at once, continues with `then`, and then does nothing."""
    script = tmp_path / "tegrastats.py"
    printing = f"for line in {lines!r}: print(line, flush=True)"
    script.write_text("\n".join(["import os, sys, time", printing, *then, "time.sleep(60)"]))
    return [sys.executable, str(script)]


def test_channels_come_from_the_first_line_and_readings_from_the_newest(tmp_path):
    go = tmp_path / "go"
    busy = NANO_IDLE.replace("GR3D_FREQ 0%", "GR3D_FREQ 93%").replace("POM_5V_IN 900", "POM_5V_IN 6200")
    wait = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    lines = [NANO_IDLE, "noise"]
    probe = Tegrastats(root=tmp_path, command=replaying(tmp_path, lines, f"{wait}", f"print({busy!r}, flush=True)"))
    assert probe.availability() is None
    channels = probe.open(list)
    try:
        found = {channel.name: channel for channel in channels}
        assert found["rail_POM_5V_IN_w"].extent == "whole"
        assert found["rail_POM_5V_GPU_w"].extent == "part"
        assert found["tegra_gpu_load"].quantity == "utilisation"
        assert all(math.isnan(value) for value in probe.read())  # no line since the first
        go.touch()
        values = {}
        until(lambda: values.update(zip(found, probe.read(), strict=True)) or not math.isnan(values["tegra_gpu_load"]))
        assert values["tegra_gpu_load"] == 0.93
        assert values["rail_POM_5V_IN_w"] == 6.2
    finally:
        probe.close()


def test_rails_of_the_kernel_are_not_read_twice(tmp_path):
    rails = tmp_path / "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    rails.mkdir(parents=True)
    (rails / "rail_name_0").write_text("POM_5V_IN\n")
    (rails / "in_power0_input").write_text("900\n")
    probe = Tegrastats(root=tmp_path, command=replaying(tmp_path, [NANO_IDLE]))
    channels = probe.open(list)
    probe.close()
    assert {channel.quantity for channel in channels} == {"memory", "utilisation", "temperature"}


def test_an_ended_command_is_an_error(tmp_path):
    probe = Tegrastats(root=tmp_path, command=replaying(tmp_path, [NANO_IDLE], "sys.exit(3)"))
    probe.open(list)

    def ended():
        try:
            probe.read()
        except ChildProcessError as error:
            return "exit code 3" in str(error)
        return False

    until(ended)
    probe.close()


def test_a_silent_command_times_out(tmp_path):
    probe = Tegrastats(root=tmp_path, command=replaying(tmp_path, ["what is this"], "sys.exit(0)"))
    with pytest.raises(TimeoutError, match="printed nothing readable"):
        probe.open(list)


def test_a_missing_tegrastats_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "only Jetson" in Tegrastats(root=tmp_path).availability().reason
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nv_tegra_release").write_text("# R35\n")
    assert Tegrastats(root=tmp_path).availability().fix == "sudo apt install nvidia-l4t-tools"
