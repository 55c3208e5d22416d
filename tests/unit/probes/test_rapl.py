"""Tests of the rapl probe, on a simulated powercap folder in the kernel's layout."""

import math
import os

import pytest

from rigdyno.probes.common.probe_set import ProbeSet
from rigdyno.probes.host import Host
from rigdyno.probes.rapl import Rapl
from support import ManualClock

ZONES = (
    ("intel-rapl:0", "package-0"),
    ("intel-rapl:0:0", "core"),
    ("intel-rapl:0:1", "uncore"),
    ("intel-rapl:0:2", "dram"),
    ("intel-rapl:1", "package-1"),
    ("intel-rapl:1:0", "dram"),
    ("intel-rapl:2", "psys"),
    ("intel-rapl-mmio:0", "package-0"),
)


@pytest.fixture
def powercap(tmp_path):
    folder = tmp_path / "sys/class/powercap"
    for zone, name in ZONES:
        (folder / zone).mkdir(parents=True)
        (folder / zone / "name").write_text(f"{name}\n")
        (folder / zone / "energy_uj").write_text("900000\n")
        (folder / zone / "max_energy_range_uj").write_text("1000000\n")
    return folder


def test_joules_are_counted_across_a_wrap_of_the_counter(tmp_path, powercap):
    probe = Rapl(tmp_path)
    assert probe.availability() is None
    assert probe.open(list)[0].name == "package0_energy_joules"
    assert probe.read()[0] == 0.0
    (powercap / "intel-rapl:0/energy_uj").write_text("950000\n")
    assert probe.read()[0] == pytest.approx(0.05)
    (powercap / "intel-rapl:0/energy_uj").write_text("100000\n")  # wrapped around
    assert probe.read()[0] == pytest.approx(0.2)
    assert probe.read()[1:] == [0.0] * 6  # the other zones didn't change
    probe.close()
    assert math.isnan(probe.read()[0])


def test_only_packages_and_memory_are_whole(tmp_path, powercap):
    channels = {channel.title: channel for channel in Rapl(tmp_path).open(list)}
    assert list(channels) == [
        "package0", "package0 core", "package0 uncore", "package0 dram", "package1", "package1 dram", "psys",
    ]  # fmt: skip
    wholes = {title for title, channel in channels.items() if channel.extent == "whole"}
    assert wholes == {"package0", "package0 dram", "package1", "package1 dram"}
    assert channels["psys"].scope == "board"
    assert all(channel.kind == "counter" and channel.unit == "J" for channel in channels.values())


def test_a_counter_for_root_only_suggests_a_command(tmp_path, powercap, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    unavailable = Rapl(tmp_path).availability()
    assert unavailable is not None
    assert unavailable.fix == "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"


@pytest.mark.parametrize(("flags", "words"), [("fpu hypervisor", "virtual machine"), ("fpu", "driver")])
def test_a_missing_powercap_has_a_reason(tmp_path, flags, words):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
    unavailable = Rapl(tmp_path).availability()
    assert unavailable is not None
    assert words in unavailable.reason
    assert unavailable.fix


def test_other_probes_are_read_while_a_counter_hangs(tmp_path, powercap, give_up_on):
    """Opening a pipe without a writer hangs, like a sensor on a stuck bus."""
    stuck = powercap / "intel-rapl:0/energy_uj"
    stuck.unlink()
    os.mkfifo(stuck)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu 1 0 1 8 0 0 0 0\ncpu0 1 0 1 8 0 0 0 0\n")
    give_up_on("rapl")
    clock = ManualClock()
    meters = ProbeSet({"rapl": Rapl(tmp_path), "host": Host(clock, tmp_path)}, list, clock)
    try:
        assert "didn't answer" in meters.absent["rapl"]
        assert {channel.sensor for channel in meters.channels} == {"host"}
        assert len(meters.read()) == len(meters.channels)
    finally:
        os.close(os.open(stuck, os.O_RDWR))  # lets go of it
        meters.close()
