"""Usage and power over time, from telemetry written by hand."""

import numpy as np
import pytest

from rigdyno.analyse.usage import usage_of
from rigdyno.schema.channel import Channel
from rigdyno.schema.samples import STEP_FIELDS, Header, telemetry_header
from rigdyno.schema.spec import sampler_of
from support import a_rank

S = 1_000_000_000
CORES = [Channel(f"cpu{n}", "share", "utilisation", device=f"cpu{n}", sensor="host") for n in range(2)]
CARD = Channel("tegra_gpu_load", "share", "utilisation", device="gpu", sensor="tegrastats")
INPUT = Channel("in_w", "W", "power", device="board", rail="POM_5V_IN", scope="board", extent="whole", sensor="ina3221")
RAIL = Channel("gpu_w", "W", "power", device="board", rail="POM_5V_GPU", scope="board", extent="part", sensor="ina3221")
COUNTER = Channel("j", "J", "energy", "counter", "package0", "", "package", "whole", sensor="rapl")


def telemetry(channels, *readings, node=0, begin_s=0):
    header = telemetry_header(channels, sampler_of(node))
    rows = np.zeros(len(readings), np.dtype([("at_ns", "<i8"), *((each.name, "<f8") for each in channels)]))
    for number, values in enumerate(readings):
        rows[number] = ((begin_s + number) * S, *values)
    return header, rows


def steps(begin_s, end_s, node=0):
    rows = np.zeros(1, np.dtype(list(STEP_FIELDS)))
    rows["start_ns"], rows["end_ns"], rows["steps"] = begin_s * S, end_s * S, 1
    return Header(fields=STEP_FIELDS, kinds=("step",), participant=a_rank(node, node)), rows


def test_means_are_of_the_time_while_it_stepped_and_curves_of_all():
    read = telemetry(
        [*CORES, CARD, INPUT, RAIL], (0, 0, 0, 2, 1), (0.4, 0.6, 0.2, 5, 3), (0.8, 1, 0.8, 7, 4), (0, 0, 0, 2, 1)
    )
    found = usage_of([steps(1, 2)], [read])
    assert found.cpu == pytest.approx((0.5 + 0.9) / 2)
    assert found.device == pytest.approx(0.5)
    assert (found.device_low, found.device_high) == (pytest.approx(0.23), pytest.approx(0.77))
    assert found.burstiness == pytest.approx(0.3 / 0.5)
    [node] = found.nodes
    assert node.seconds == (-1, 0, 1, 2)
    assert node.cpu == pytest.approx((0, 0.5, 0.9, 0))
    assert node.device == pytest.approx((0, 0.2, 0.8, 0))
    assert node.watts == (2, 5, 7, 2)  # the board's input alone: the rail is in it


def test_a_counter_gives_power_between_two_readings_and_none_where_it_falls():
    found = usage_of([steps(0, 3)], [telemetry([*CORES, COUNTER], (0, 0, 10), (0, 0, 25), (0, 0, 3), (0, 0, 8))])
    assert found.nodes[0].watts == (None, 15, None, 5)
    assert found.device is None
    assert found.nodes[0].device == ()


def test_what_could_not_be_read_is_a_gap():
    found = usage_of([steps(0, 2)], [telemetry(CORES, (0.5, np.nan), (np.nan, np.nan), (1, 1))])
    assert found.nodes[0].cpu == (0.5, None, 1.0)
    assert found.nodes[0].watts == ()
    assert found.cpu == pytest.approx(0.75)


def test_nodes_count_from_their_own_first_step_by_their_own_clocks():
    """The second node's clock is an hour ahead."""
    one = telemetry(CORES, (0, 0), (1, 1), (1, 1))
    other = telemetry(CORES, (0, 0), (0.5, 0.5), (0.5, 0.5), node=1, begin_s=3600)
    found = usage_of([steps(1, 2), steps(3601, 3602, node=1)], [one, other])
    assert [node.seconds for node in found.nodes] == [(-1, 0, 1)] * 2
    assert found.cpu == pytest.approx(0.75)


def test_nobody_sampled_it():
    assert usage_of([steps(0, 1)], []) is None
    assert usage_of([], [telemetry(CORES, (0, 0), (1, 1))]) is None
