"""The cost of a link per step, against values computed by hand."""

from __future__ import annotations

import pytest

from rigdyno.features.forecast.curve import ScalingCurve
from rigdyno.features.forecast.links import (
    CrossedStep,
    Crossing,
    crossed_steps,
    link_contradictions,
    nodes_for,
    rests_on_link,
    transfer_seconds,
)
from rigdyno.schema.scaling import Expected, Link, ScalingPoint

LINK = Link(bytes_per_step=100e6, gbit_s=8.0)  # 1e9 byte/s


@pytest.mark.parametrize(
    ("nodes", "seconds"),
    [
        (1, 0.0),
        (2, 0.1),  # 2 * 1/2 * 100 MB at 1 GB/s
        (4, 0.15),  # 2 * 3/4
        (16, 0.1875),  # 2 * 15/16
    ],
)
def test_a_ring_moves_almost_twice_the_gradients_over_each_link(nodes, seconds):
    assert transfer_seconds(LINK, nodes) == pytest.approx(seconds)


@pytest.mark.parametrize(("devices", "nodes"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_nodes_are_filled_up(devices, nodes):
    assert nodes_for(devices, 8) == nodes
    crossing = Crossing(link=LINK, batch=1, devices_per_node=8)
    assert crossing.crosses(devices) == (nodes > 1)


def test_between_all_of_the_transfer_hidden_and_nothing_of_it():
    """16 devices of 5 items on 2 nodes: 80 items a step. Computing takes 0.4 s [0.32, 0.5], the transfer 0.1 s."""
    crossing = Crossing(link=LINK, batch=5, devices_per_node=8)
    found = crossing.slow_down(Expected(devices=16, value=200.0, low=160.0, high=250.0, confidence=0.9))
    assert found.value == pytest.approx(80 / 0.2**0.5)  # the geometric middle of 0.4 and 0.5 s
    assert found.low == pytest.approx(80 / (0.5 + 0.1))
    assert found.high == pytest.approx(80 / 0.32)
    assert (found.devices, found.confidence) == (16, None)


def test_where_the_link_is_the_limit_computing_more_quickly_does_not_help():
    """80 items a step: computing takes 0.02 s [0.016, 0.025], the transfer 0.1 s."""
    crossing = Crossing(link=LINK, batch=5, devices_per_node=8)
    found = crossing.slow_down(Expected(devices=16, value=4000.0, low=3200.0, high=5000.0, confidence=0.9))
    assert found.value == pytest.approx(80 / (0.1 * 0.12) ** 0.5)
    assert found.low == pytest.approx(80 / 0.125)
    assert found.high == pytest.approx(80 / 0.1)


def test_a_link_without_limits_changes_nothing():
    crossing = Crossing(link=Link(bytes_per_step=1e-9, gbit_s=1e9), batch=5, devices_per_node=8)
    alone = Expected(devices=16, value=200.0, low=160.0, high=250.0, confidence=0.9)
    found = crossing.slow_down(alone)
    assert (found.value, found.low, found.high) == pytest.approx((alone.value, alone.low, alone.high))


def test_steps_of_points_and_of_what_they_predict():
    points = [ScalingPoint(devices=size, throughput=10.0 * size, nodes=max(1, size // 4)) for size in (4, 8, 16)]
    found = crossed_steps(ScalingCurve(points), [32], batch=5, devices_per_node=4)
    assert found[:3] == [
        CrossedStep("measured", 4, 1, 0.5),
        CrossedStep("measured", 8, 2, 0.5),
        CrossedStep("measured", 16, 4, 0.5),
    ]
    assert found[3][:3] == ("forecast", 32, 8)
    assert found[3].seconds == pytest.approx(0.5)


def test_a_transfer_that_takes_longer_than_the_whole_step_is_a_contradiction():
    quick, slow = CrossedStep("measured", 16, 2, 0.09), CrossedStep("measured", 16, 2, 0.11)
    assert link_contradictions(LINK, [slow]) == []
    assert link_contradictions(LINK, [CrossedStep("measured", 8, 1, 1e-9)]) == []
    assert link_contradictions(LINK, [slow, quick, quick]) == [
        "the given link and these figures can't both be right: between 2 nodes the transfer alone takes 100 ms a step, "
        "but a whole step of 16 devices 90.0 ms (measured)"
    ]


def test_only_sizes_that_cross_rest_on_the_link():
    crossing = Crossing(link=LINK, batch=5, devices_per_node=8)
    assert rests_on_link(crossing, [4, 8]) == []
    [sentence] = rests_on_link(crossing, [8, 16, 32])
    assert sentence == (
        "16, 32 devices rest on the given link (100 MB a step at 8 Gbit/s between nodes of 8), not on a measured "
        "crossing: a measurement of 16 devices on 2 nodes would do better."
    )
