"""Replays a log of tegrastats through probe, sampler and analysis, and compares joules and usage with a calculation by
hand.

The first phase repeats a line recorded on a Jetson Nano; load, power and temperatures of the other two are made up.
"""

import os
import threading

import numpy as np
import pytest
from recordings import NANO_IDLE

from driving import until
from rigdyno.analyse.energy import meters_of, totals_of
from rigdyno.analyse.streams import TimeSpan
from rigdyno.probes.common.probe_set import ProbeSet
from rigdyno.probes.tegrastats import Tegrastats
from rigdyno.runner.sampler import Sampler
from rigdyno.schema.samples import read_rows
from rigdyno.schema.spec import sampler_of
from support import ManualClock

TRAINING = NANO_IDLE.replace("GR3D_FREQ 0%", "GR3D_FREQ 98%@921").replace("POM_5V_IN 900", "POM_5V_IN 6000")
TRAINING = TRAINING.replace("GPU@41C", "GPU@60C").replace("POM_5V_GPU 0/", "POM_5V_GPU 2400/")
THROTTLED = (
    TRAINING.replace("98%@921", "99%@460").replace("POM_5V_IN 6000", "POM_5V_IN 3600").replace("GPU@60C", "GPU@97C")
)
IDLE = NANO_IDLE.replace("GR3D_FREQ 0%", "GR3D_FREQ 0%@76")
LOG = [IDLE] * 10 + [TRAINING] * 20 + [THROTTLED] * 10
BEGIN_S = 1  # of the manual clock


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """Return header and rows, one reading each half second. A pipe that the test writes to prints the log."""
    folder = tmp_path_factory.mktemp("replayed")
    pipe = folder / "log"
    os.mkfifo(pipe)
    clock = ManualClock()
    probe = Tegrastats(clock=_Ticking(clock), root=folder, command=["cat", str(pipe)])
    lines = []
    writer = threading.Thread(target=lambda: lines.append(pipe.open("w")))
    writer.start()
    opening = threading.Thread(target=lambda: (writer.join(), print(LOG[0], file=lines[0], flush=True)))
    opening.start()
    sampler = Sampler(folder / "telemetry.rows", sampler_of(0), clock, ProbeSet({"tegrastats": probe}, list, clock))
    opening.join()
    for line in LOG:
        print(line, file=lines[0], flush=True)
        until(lambda: not np.isnan(sampler.read()[0]))
        clock.advance(0.5)
    sampler.close()
    lines[0].close()
    return read_rows(folder / "telemetry.rows")


class _Ticking:
    """A clock that uses real time to wait for the first line."""

    def __init__(self, clock):
        self.now_ns = clock.now_ns

    @staticmethod
    def sleep(seconds):
        threading.Event().wait(seconds)


def span(begin, end):
    return TimeSpan(int((BEGIN_S + begin) * 1e9), int((BEGIN_S + end) * 1e9))


def board(replayed, window):
    header, rows = replayed
    return totals_of(meters_of(header.channels, rows, window))["board"]


@pytest.mark.parametrize(
    ("window", "joules"),
    [
        ((0.0, 4.5), 0.9 * 4.5),  # idle
        ((5.0, 14.5), 6.0 * 9.5),  # training
        ((15.0, 19.5), 3.6 * 4.5),  # throttled
        ((4.5, 5.0), (0.9 + 6.0) / 2 * 0.5),  # the ramp between two readings
        ((0.0, 19.5), 0.9 * 4.5 + 3.45 * 0.5 + 6.0 * 9.5 + 4.8 * 0.5 + 3.6 * 4.5),
    ],
)
def test_joules_at_the_boards_input_match_a_sum_by_hand(replayed, window, joules):
    total = board(replayed, span(*window))
    assert total.joules == pytest.approx(joules)
    assert total.coverage == pytest.approx(1.0)
    assert total.source == "POM_5V_IN (tegrastats)"


def test_rails_usage_clock_and_temperature_are_replayed(replayed):
    header, rows = replayed
    named = {channel.name: rows[channel.name] for channel in header.channels}
    sound = ~np.isnan(named["tegra_gpu_load"])
    load, clock = named["tegra_gpu_load"][sound], named["tegra_gpu_mhz"][sound]
    assert load.mean() == pytest.approx((10 * 0 + 20 * 0.98 + 10 * 0.99) / 40)
    assert (clock[12], clock[-1]) == (921, 460)  # at the same load half of the clock: that is what throttling is
    assert named["tegra_GPU_c"][sound].max() == 97
    rails = {meter.title: meter.watts for meter in meters_of(header.channels, rows, span(5.0, 14.5))}
    assert rails == pytest.approx({"POM_5V_IN": 6.0, "POM_5V_GPU": 2.4, "POM_5V_CPU": 0.123})
