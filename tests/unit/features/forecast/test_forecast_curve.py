"""Forecasts on curves whose truth is known, and on published ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rigdyno.features.forecast.curve import LEAST_POINTS, ScalingCurve
from rigdyno.features.forecast.links import devices_on_a_node, doubts, find_jump, points_after_jump, uncrossed_link
from rigdyno.schema.scaling import ScalingPoint

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
K80_OVERALL = (41.49, 77.65, 154.2, 303.5, 608, 1120, 2209, 4231)
K80_FORWARD = (164, 195.89, 389.07, 760.66, 1262, 2233, 4323, 8394)

TRUTHS = {
    "perfect": lambda n: 50.0 * n,
    "the same share for every doubling": lambda n: 50.0 * n**0.9,
    "Amdahl": lambda n: 50.0 * n / (1 + 0.02 * (n - 1)),
    "the same time for every doubling": lambda n: 50.0 * n / (1 + 0.05 * math.log(n)),
    "a ring": lambda n: 50.0 * n / (1 + 0.2 * (1 - 1 / n)),
}


def points(rates, sizes=SIZES, nodes=None):
    return [
        ScalingPoint(devices=size, throughput=rate, nodes=nodes and nodes(size))
        for size, rate in zip(sizes, rates, strict=False)
    ]


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize("known", [5, 6])
def test_curves_without_noise_are_predicted_to_four_times_their_size(truth, known):
    curve = ScalingCurve(points([truth(size) for size in SIZES[:known]]))
    for size in (2 * curve.largest, 4 * curve.largest):
        expected = curve.at(size)
        assert expected.value == pytest.approx(truth(size), rel=0.12)
        assert expected.low < truth(size) < expected.high


def test_perfect_scaling_is_predicted_exactly():
    assert ScalingCurve(points([50.0 * size for size in SIZES[:4]])).at(64).value == pytest.approx(3200)


def test_more_than_perfect_is_not_carried_on():
    """Caches explain it once; nothing explains it for ever."""
    curve = ScalingCurve(points([50.0 * size**1.1 for size in SIZES[:4]]))
    assert curve.at(32).value <= 32 * max(50.0 * size**0.1 for size in SIZES[:4]) * 1.001


def test_forms_are_told_apart_by_what_they_would_have_predicted():
    amdahl = ScalingCurve(points([50.0 * n / (1 + 0.3 * (n - 1)) for n in SIZES]))
    power = ScalingCurve(points([50.0 * n**0.8 for n in SIZES]))
    assert amdahl.weights["serial"] > 0.9
    assert power.weights["power"] > 0.9
    assert sum(amdahl.weights.values()) == pytest.approx(1)


def test_intervals_widen_with_the_distance_and_with_points_that_lie_off_the_curve():
    smooth = ScalingCurve(points([50.0 * n**0.9 for n in SIZES[:6]]))
    rough = ScalingCurve(points([50.0 * n**0.9 * (1.15 if i % 2 else 0.87) for i, n in enumerate(SIZES[:6])]))
    near, far = smooth.at(64), smooth.at(512)
    assert far.high / far.low > near.high / near.low > 1
    assert rough.at(64).high / rough.at(64).low > near.high / near.low


def test_nine_of_ten_truths_lie_inside():
    """Several mechanisms with 1 % noise: an interval that is right too rarely, or always, is of no use."""
    random = np.random.default_rng(7)
    inside = []
    for _ in range(300):
        loss, kind = random.uniform(0, 0.2), random.integers(3)
        costs = [(size**loss, 1 + loss / 10 * (size - 1), 1 + loss * math.log(size))[kind] for size in SIZES]
        seen = [size / cost * math.exp(random.normal(0, 0.01)) for size, cost in zip(SIZES, costs, strict=True)]
        known = int(random.integers(LEAST_POINTS, 7))
        curve = ScalingCurve(points(seen[:known]))
        inside += [
            curve.at(size).low <= rate <= curve.at(size).high
            for size, rate in zip(SIZES[known : known + 2], seen[known : known + 2], strict=True)
        ]
    assert 0.8 <= np.mean(inside) <= 0.99


class TestJump:
    def test_the_published_forward_column_is_not_one_curve(self):
        """One GPU runs alone; from two on, something else is in that time."""
        at, factor = find_jump(points(K80_FORWARD))
        assert at == 1
        assert factor == pytest.approx(1.5, abs=0.1)
        kept, sentence = points_after_jump(points(K80_FORWARD))
        assert [point.devices for point in kept] == list(SIZES[1:])
        assert sentence.startswith("these points are not one curve: between 1 and 2 devices the cost of an item jumps")

    def test_the_overall_column_is_one(self):
        assert points_after_jump(points(K80_OVERALL)) == (points(K80_OVERALL), None)

    @pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
    def test_smooth_curves_are(self, truth):
        random, found = np.random.default_rng(3), 0
        for _ in range(100):
            noisy = [truth(size) * math.exp(random.normal(0, 0.02)) for size in SIZES]
            found += find_jump(points(noisy)) is not None
        assert found <= 2

    @pytest.mark.parametrize("at", [2, 3, 4, 5])
    def test_a_second_mechanism_is_found_where_it_begins(self, at):
        random = np.random.default_rng(at)
        rates = [50.0 * n**0.97 * (0.6 if i >= at else 1) for i, n in enumerate(SIZES)]
        found = find_jump(points([rate * math.exp(random.normal(0, 0.01)) for rate in rates]))
        assert found is not None
        assert found[0] == at

    def test_few_points_say_nothing_about_it(self):
        assert find_jump(points((1, 1.1, 4, 8, 16))) is None


class TestLinks:
    def test_a_link_that_no_point_has_crossed_is_not_crossed(self):
        on_one_node = points(K80_OVERALL[:4], nodes=lambda size: 1)
        assert uncrossed_link(on_one_node, 8, None) is None
        assert "Measure 16 devices on 2 nodes" in uncrossed_link(on_one_node, 16, None)
        assert uncrossed_link(on_one_node, 16, 16) is None
        assert "Measure 32 devices on 2 nodes" in uncrossed_link(on_one_node, 17, 16)

    def test_one_that_a_point_has_crossed_is(self):
        assert uncrossed_link(points(K80_OVERALL[:5], nodes=lambda size: max(1, size // 8)), 128, None) is None

    def test_where_nobody_says_how_many_nodes_there_were_it_can_not_be_known(self):
        assert uncrossed_link(points(K80_OVERALL[:4]), 128, None) is None

    def test_how_many_devices_a_node_holds_is_said_or_shown_or_unknown(self):
        crossed = points(K80_OVERALL[:6], nodes=lambda size: max(1, size // 8))
        assert devices_on_a_node(crossed, None) == 8
        assert devices_on_a_node(crossed, 16) == 16
        assert devices_on_a_node(points(K80_OVERALL), None) is None
        assert devices_on_a_node(points((1, 2, 3), sizes=(2, 3, 5), nodes=lambda size: 2), None) == 3


class TestDoubts:
    def said(self, *rates, sizes=SIZES):
        given = points(rates, sizes)
        curve = ScalingCurve(given)
        return doubts(given, [curve.at(2 * curve.largest), curve.at(4 * curve.largest)])

    @pytest.mark.parametrize("rates", [K80_OVERALL, K80_OVERALL[:3], (50, 104, 208), [50.0 * n**0.8 for n in SIZES]])
    def test_what_is_usual_is_left_alone(self, rates):
        assert self.said(*rates) == []

    @pytest.mark.parametrize(
        ("serial", "sizes"), [(0.02, (1, 4, 16, 64)), (0.05, (1, 8, 16, 64)), (0.05, (1, 2, 4, 8, 64))]
    )
    def test_what_one_of_the_forms_explains_is_left_alone(self, serial, sizes):
        rates = [50.0 * n / (1 + serial * (n - 1)) for n in sizes]
        assert not any("fits no curve" in said for said in self.said(*rates, sizes=sizes))

    def test_a_first_point_that_is_too_low_is_asked_about_once(self):
        first, *others = self.said(80, 195, 380, 750, 1480)
        assert "all others do more than perfect scaling from 1" in first
        assert not any("perfect scaling" in said for said in others)

    def test_more_than_perfect_scaling(self):
        first, *_ = self.said(80, 290, 10_000, sizes=(1, 4, 8))
        assert first.startswith("8 devices do 1562 % of what perfect scaling from 1 would give")

    @pytest.mark.parametrize("wrong", [0, 1, 2, 3, 4])
    @pytest.mark.parametrize("factor", [0.02, 0.5, 3.0, 100.0])
    def test_a_point_that_no_curve_explains_is_named(self, wrong, factor):
        rates = [50.0 * n**0.95 * (factor if at == wrong else 1.0) for at, n in enumerate(SIZES[:5])]
        assert any(f"the point of {SIZES[wrong]} devices fits no curve" in said for said in self.said(*rates))

    def test_an_interval_that_is_wider_than_its_figure(self):
        *_, last = self.said(80, 290, 3, sizes=(1, 4, 8))
        assert last.startswith("for 16, 32 devices the interval is wider than the figure itself")


def test_three_points_say_less_about_far_away_than_six():
    few, many = ScalingCurve(points(K80_OVERALL[:3])), ScalingCurve(points(K80_OVERALL[:6]))
    for times in (2, 4):
        widths = [math.log(each.high / each.low) for each in (curve.at(times * curve.largest) for curve in (few, many))]
        assert widths[0] > 1.15 * widths[1]


@pytest.mark.parametrize("known", [3, 4, 5])
@pytest.mark.parametrize("times", [2, 4])
def test_nine_of_ten_truths_lie_inside_however_few_points_there_are(known, times):
    """Over mechanisms that the forms know and others that they don't, with 1.5 % of noise."""
    draw, hits = np.random.default_rng(7), []
    for number in range(300):
        cost = draw.uniform(0.01, 0.1)
        truth = [
            lambda n, cost=cost: n ** (1 - cost),
            lambda n, cost=cost: n / (1 + cost / 10 * (n - 1)),
            lambda n, cost=cost: n / (1 + cost * math.log(n)),
            lambda n, cost=cost: n / (1 + 3 * cost * (1 - 1 / n)),
            lambda n, cost=cost: n / (1 + cost * max(0.0, math.log2(n) - 1)),
        ][number % 5]
        rates = [truth(n) * draw.lognormal(0, 0.015) for n in SIZES]
        expected = ScalingCurve(points(rates[:known])).at(times * SIZES[known - 1])
        hits.append(expected.low <= rates[SIZES.index(times * SIZES[known - 1])] <= expected.high)
    assert np.mean(hits) >= 0.87
